#include "tests/simulator/global_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "tests/simulator/simulator.hpp"

namespace nibble::device::simulator {
namespace {

constexpr std::size_t slack = 512;      // before and after each allocation
constexpr std::size_t alignment = 256;  // of cudaMalloc

struct Registry {
  std::mutex mutex;
  std::map<std::uintptr_t, Region*> by_address;
};

Registry& registry() {
  // Never destroyed: static objects may hold regions until the program ends.
  static Registry* const all = new Registry;
  return *all;
}

void enter(Region* region) {
  const std::lock_guard lock(registry().mutex);
  registry().by_address[reinterpret_cast<std::uintptr_t>(region->base())] = region;
}

}  // namespace

Region::Region(std::string name, std::size_t bytes, Access access, std::size_t offset_bytes)
    : name_(std::move(name)),
      memory_(std::make_unique<char[]>(bytes + offset_bytes + 2 * slack + alignment)),
      bytes_(bytes),
      access_(access),
      written_(is_read_only() ? 0 : bytes) {
  const auto first = (reinterpret_cast<std::uintptr_t>(memory_.get()) + slack + alignment - 1) & ~(alignment - 1);
  base_ = reinterpret_cast<char*>(first) + offset_bytes;
  std::memset(base_, 0xff, bytes);  // NaN in every format of floats
  enter(this);
}

Region::Region(std::string name, void* memory, std::size_t bytes)
    : name_(std::move(name)), base_(static_cast<char*>(memory)), bytes_(bytes), access_(Access::bounds_only) {
  enter(this);
}

Region::~Region() {
  const std::lock_guard lock(registry().mutex);
  registry().by_address.erase(reinterpret_cast<std::uintptr_t>(base_));
}

void Region::touch(std::size_t offset, std::size_t bytes, Use use, const Site& site) {
  if (access_ == Access::bounds_only) return;
  if (is_read_only()) {
    if (use != Use::read) fail(Fault::misuse, site, fmt::format("write to '{}', which is read-only", name_));
    return;
  }
  const auto lock = current->block->lock_if_several();
  u8* const written = written_.data() + offset;
  if (access_ == Access::write_once) {
    if (use == Use::read) fail(Fault::misuse, site, fmt::format("read of '{}', which is an output", name_));
    const void* twice = std::memchr(written, 1, bytes);
    if (twice != nullptr)
      fail(Fault::written_twice, site,
           fmt::format("byte {} of '{}' is written twice", static_cast<const u8*>(twice) - written_.data(), name_));
  } else {
    const void* unknown = use == Use::write ? nullptr : std::memchr(written, 0, bytes);
    if (unknown != nullptr)
      fail(Fault::uninitialized, site,
           fmt::format("{} byte {} of '{}', never written", use == Use::read ? "read of" : "atomic operation on",
                       static_cast<const u8*>(unknown) - written_.data(), name_));
    shadow_.touch(reinterpret_cast<std::uintptr_t>(base_), offset, bytes, bytes_, use, name_, site);
  }
  if (use != Use::read) std::memset(written, 1, bytes);
}

void Region::reset() {
  std::fill(written_.begin(), written_.end(), u8{0});
  shadow_.clear();
  std::memset(base_, 0xff, bytes_);
}

void Region::require_complete(const Site& site) const {
  if (access_ != Access::write_once) return;
  const auto missed = std::find(written_.begin(), written_.end(), u8{0});
  if (missed != written_.end())
    fail(Fault::not_written, site,
         fmt::format("{} of {} bytes of '{}', the first is {}", std::count(missed, written_.end(), u8{0}), bytes_,
                     name_, missed - written_.begin()));
}

void Region::require_known(std::size_t offset, std::size_t bytes, const Site& site) const {
  const void* unknown = std::memchr(written_.data() + offset, 0, bytes);
  if (unknown != nullptr)
    fail(Fault::uninitialized, site,
         fmt::format("copy of byte {} of '{}', never written", static_cast<const u8*>(unknown) - written_.data(),
                     name_));
}

Region* find_region(const void* address) {
  if (address == nullptr) return nullptr;
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const std::lock_guard lock(registry().mutex);
  auto after = registry().by_address.upper_bound(at);
  if (after == registry().by_address.begin()) return nullptr;
  Region* region = std::prev(after)->second;
  return region->contains(at, 0) ? region : nullptr;
}

namespace {

// Where in the region the bytes are, which must exist.
std::size_t checked_offset(const char* verb, const void* address, std::size_t bytes, const Region* region,
                           const Site& site) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  if (region == nullptr)
    fail(Fault::global_bounds, site,
         fmt::format("{} of {} bytes through {}", verb, bytes,
                     at < 4096 ? "a null pointer" : "a pointer into no allocation"));
  const auto offset = static_cast<std::ptrdiff_t>(at - reinterpret_cast<std::uintptr_t>(region->base()));
  if (!region->contains(at, bytes))
    fail(Fault::global_bounds, site,
         fmt::format("{} of {} bytes at byte {} of '{}', which has {}", verb, bytes, offset, region->name(),
                     region->bytes()));
  return static_cast<std::size_t>(offset);
}

}  // namespace

void check_global(const void* address, std::size_t bytes, std::size_t alignment_bytes, Region* region, Use use,
                  const Site& site) {
  const char* verb = use == Use::read ? "read" : use == Use::write ? "write" : "atomic operation";
  const std::size_t offset = checked_offset(verb, address, bytes, region, site);
  if (reinterpret_cast<std::uintptr_t>(address) % alignment_bytes != 0)
    fail(Fault::misaligned, site,
         fmt::format("{} of {} bytes at byte {} of '{}'", verb, bytes, offset, region->name()));
  current->block->check_dependency(*current, *region, use, site);
  region->touch(offset, bytes, use, site);
}

void check_prefetch(const void* address, std::size_t bytes, const Region* region, const Site& site) {
  checked_offset("prefetch", address, bytes, region, site);
}

void check_constant(const Region* region, const Site& site) {
  if (region == nullptr) return;
  if (!region->is_read_only() && region->access() != Access::bounds_only)
    fail(Fault::misuse, site,
         fmt::format("ldg (ld.global.nc) of '{}', which is not read-only while the kernel runs", region->name()));
  current->block->check_early_load(*region, "ldg", site);
}

void check_early(const Region* region, const Site& site) {
  if (region != nullptr) current->block->check_early_load(*region, "ldcs", site);
}

}  // namespace nibble::device::simulator
