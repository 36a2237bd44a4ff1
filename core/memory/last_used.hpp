#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

namespace nibble {

/// Values that are made when they are first asked for. The two that were used last are kept: enough for a pipeline
/// that goes from one tensor to the next. Thread-safe.
template <class Value> class LastUsed {
 public:
  /// That of `key`, or else what make() returns.
  template <class Make> std::shared_ptr<const Value> get(std::size_t key, Make&& make) {
    const std::scoped_lock lock(mutex_);
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry)
      if (entry->first == key) {
        entries_.splice(entries_.begin(), entries_, entry);
        return entries_.front().second;
      }
    if (entries_.size() == kept) entries_.pop_back();
    entries_.emplace_front(key, make());
    return entries_.front().second;
  }
  static constexpr std::size_t kept = 2;

 private:
  std::mutex mutex_;
  std::list<std::pair<std::size_t, std::shared_ptr<const Value>>> entries_;
};

}  // namespace nibble
