#include "tests/simulator/backend/stream.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>

#include "tests/simulator/options.hpp"

namespace nibble::device {
namespace {

constexpr std::uintptr_t page = 4096;

// The failure that the environment asks for. Another one begins to count anew.
struct AskedFault {
  std::mutex mutex;
  std::string text;
  int calls = 0;
};

bool is_asked(std::string_view name) {
  static AskedFault asked;
  const char* const value = std::getenv("NIBBLE_SIMULATED_FAULT");
  const std::string_view text = value != nullptr ? value : "";
  const std::lock_guard lock(asked.mutex);
  if (asked.text != text) {
    asked.text = text;
    asked.calls = 0;
  }
  const std::size_t colon = text.find(':');
  if (text.substr(0, colon) != name) return false;
  int first = 1;
  if (colon != std::string_view::npos) std::from_chars(text.data() + colon + 1, text.data() + text.size(), first);
  return ++asked.calls >= first;
}

void may_fail(const char* name) {
  if (is_asked(name)) throw LaunchError(999, fmt::format("{}: a fault was asked for", name));
}

struct Pinned {
  std::mutex mutex;
  std::map<std::uintptr_t, std::size_t> bytes;  // by address
};

Pinned& pinned() {
  static Pinned all;
  return all;
}

bool is_pinned(const void* memory, std::size_t bytes) {
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  const std::lock_guard lock(pinned().mutex);
  const auto after = pinned().bytes.upper_bound(at);
  if (after == pinned().bytes.begin()) return false;
  const auto& [begin, size] = *std::prev(after);
  return bytes <= size && at - begin <= size - bytes;
}

void check_host(const void* memory, std::size_t bytes) {
  if (!is_pinned(memory, bytes) && is_asked("unpinned"))
    throw LaunchError(999, fmt::format("a copy of {} bytes is not from or to pinned memory", bytes));
}

// The part of an allocation that a copy touches.
simulator::Region& touched(const void* memory, std::size_t bytes, std::size_t& offset) {
  simulator::Region* const region = simulator::find_region(memory);
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  if (region == nullptr || !region->contains(at, bytes))
    simulator::fail(
        simulator::Fault::global_bounds, Site::current(),
        fmt::format(
            "copy of {} bytes in {}", bytes,
            region == nullptr ? "no allocation" : fmt::format("'{}', which has {}", region->name(), region->bytes())));
  offset = at - reinterpret_cast<std::uintptr_t>(region->base());
  return *region;
}

}  // namespace

int device_count() {
  may_fail("device_count");
  return is_asked("none") ? 0 : 1;
}

std::string device_name(int /*device*/) { return "simulated device"; }

u32 capability_of(int /*device*/) { return is_asked("old") ? 75 : simulator::current_options().capability; }

int current_device() { return 0; }

void use_device(int device) {
  may_fail("use_device");
  if (device != 0) throw LaunchError(101, fmt::format("use_device: there is no device {}", device));
}

void pin(void* memory, std::size_t bytes) {
  may_fail("pin");
  const auto begin = reinterpret_cast<std::uintptr_t>(memory), end = begin + bytes;
  const std::lock_guard lock(pinned().mutex);
  for (const auto& [other, size] : pinned().bytes)
    if (begin / page * page < (other + size + page - 1) / page * page &&
        other / page * page < (end + page - 1) / page * page)
      throw LaunchError(712, "pin: part of it is pinned");
  pinned().bytes[begin] = bytes;
}

void unpin(void* memory) noexcept {
  const std::lock_guard lock(pinned().mutex);
  pinned().bytes.erase(reinterpret_cast<std::uintptr_t>(memory));
}

void clear_memory(void* memory, std::size_t bytes, StreamRef /*stream*/) {
  may_fail("clear");
  std::size_t offset = 0;
  simulator::Region& region = touched(memory, bytes, offset);
  std::memset(memory, 0, bytes);
  region.set_known(offset, bytes);
}

Memory::Memory(const char* name, std::size_t bytes) {
  may_fail("memory");
  region_ = std::make_unique<simulator::Region>(name, bytes, simulator::Access::read_write, 0);
  region_->reset();  // unknown, until it is written
}

Stream::Stream() { may_fail("stream"); }

void Stream::copy_to_device(void* to, const void* from, std::size_t bytes) {
  may_fail("copy_to_device");
  check_host(from, bytes);
  std::size_t offset = 0;
  simulator::Region& region = touched(to, bytes, offset);
  std::memcpy(to, from, bytes);
  region.set_known(offset, bytes);
}

void Stream::copy_to_host(void* to, const void* from, std::size_t bytes) {
  may_fail("copy_to_host");
  check_host(to, bytes);
  std::size_t offset = 0;
  touched(from, bytes, offset).require_known(offset, bytes, Site::current());
  std::memset(to, 0xee, bytes);  // for who looks too early
  copies_.push_back({to, from, bytes});
}

void Stream::wait() {
  may_fail("wait");
  finish_copies();
}

void Stream::finish_copies() {
  for (const CopyToHost& copy : copies_) std::memcpy(copy.to, copy.from, copy.bytes);
  copies_.clear();
}

}  // namespace nibble::device
