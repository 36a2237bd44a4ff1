#include "quant/jobs/convert/finished.hpp"

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace nibble {
namespace {

enum class RecordKind : std::uint64_t { finished, kept };

// Numbers as they are in memory, without padding: the log is read on the same machine.
template <class T> void put(std::string& record, const T& value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(std::uint64_t) == 0);
  record.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T> bool cut_value(std::string_view& record, T& value) {
  if (record.size() < sizeof value) return false;
  std::memcpy(&value, record.data(), sizeof value);
  record.remove_prefix(sizeof value);
  return true;
}

bool cut_hashes(std::string_view& record, std::vector<Xxh3>& hashes) {
  std::uint64_t count = 0;
  if (!cut_value(record, count) || count > record.size() / sizeof(Xxh3)) return false;
  hashes.resize(count);
  for (Xxh3& hash : hashes) (void)cut_value(record, hash);
  return true;
}

}  // namespace

std::string record_of(const KeptTensor& kept) {
  std::string record;
  put(record, RecordKind::kept);
  put(record, std::uint64_t{kept.tensor});
  put(record, kept.findings);
  return record;
}

std::string record_of(const FinishedTensor& finished) {
  std::string record;
  record.reserve(2 * finished.entry.size());  // more than the hashes take: they are in the entry, too
  put(record, RecordKind::finished);
  put(record, std::uint64_t{finished.tensor});
  put(record, finished.findings);
  put(record, finished.error);
  put(record, finished.sqnr_db);
  put(record, std::uint64_t{finished.hashes.size()});
  for (const std::vector<Xxh3>& part : finished.hashes) {
    put(record, std::uint64_t{part.size()});
    for (const Xxh3& hash : part) put(record, hash);
  }
  return record += finished.entry;
}

std::optional<Finished> finished_of(std::string_view record) {
  RecordKind kind{};
  std::uint64_t tensor = 0, parts = 0;
  if (!cut_value(record, kind) || !cut_value(record, tensor)) return std::nullopt;
  if (kind == RecordKind::kept) {
    KeptTensor kept{tensor, {}};
    return cut_value(record, kept.findings) && record.empty() ? std::optional<Finished>(kept) : std::nullopt;
  }
  FinishedTensor finished{tensor, {}, {}, 0, {}};
  if (kind != RecordKind::finished || !cut_value(record, finished.findings) || !cut_value(record, finished.error) ||
      !cut_value(record, finished.sqnr_db) || !cut_value(record, parts))
    return std::nullopt;
  for (; parts > 0; --parts)
    if (!cut_hashes(record, finished.hashes.emplace_back())) return std::nullopt;
  finished.entry = record;
  return finished;
}

}  // namespace nibble
