// Pointers on the simulated device: they know what they may point into.
#pragma once
#include <atomic>
#include <cstring>
#include <type_traits>

#include "tests/simulator/simulator.hpp"

#define NIBBLE_DEVICE inline
#define NIBBLE_UNROLL
#define NIBBLE_NO_UNROLL
#define NIBBLE_CONSTANT
// A declaration is known by the address of its key, of which each instance of a template has one of its own.
#define NIBBLE_SHARED(T, name, n) \
  static char name##_key;         \
  const ::nibble::device::Shared<T> name = ::nibble::device::simulator::static_shared<T>(&name##_key, n)

namespace nibble::device {

/// A pointer into global memory. Made from a raw pointer where a kernel's arguments are filled in.
template <class T> class Global {
 public:
  Global() = default;
  Global(T* pointer) : pointer_(pointer), region_(simulator::find_region(pointer)) {}
  template <class U>
  requires(!std::is_const_v<U> && std::is_same_v<const U, T>) Global(Global<U> other)
      : pointer_(other.unchecked()), region_(other.region()) {}
  Global(T* pointer, simulator::Region* region) : pointer_(pointer), region_(region) {}

  // May leave the allocation, as long as nobody reads there: hence no arithmetic on T*.
  Global operator+(i64 i) const {
    return {
        reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer_) + static_cast<std::uintptr_t>(i) * sizeof(T)),
        region_};
  }
  template <class U> [[nodiscard]] Global<U> as() const {
    return {reinterpret_cast<U*>(reinterpret_cast<std::uintptr_t>(pointer_)), region_};
  }
  [[nodiscard]] bool is_null() const { return pointer_ == nullptr; }

  // For the layer alone.
  [[nodiscard]] T* unchecked() const { return pointer_; }
  [[nodiscard]] simulator::Region* region() const { return region_; }

 private:
  T* pointer_ = nullptr;
  simulator::Region* region_ = nullptr;
};

/// A pointer into the shared memory of the block, and the array it must stay in.
template <class T> class Shared {
 public:
  Shared() = default;
  Shared(u32 offset, u32 begin, u32 end) : offset_(offset), begin_(begin), end_(end) {}

  Shared operator+(i64 i) const { return {offset_ + static_cast<u32>(i) * u32{sizeof(T)}, begin_, end_}; }
  template <class U> [[nodiscard]] Shared<U> as() const { return {offset_, begin_, end_}; }
  /// The elements [first, first + count), as an array of its own.
  [[nodiscard]] Shared part(i64 first, i64 count, Site site = Site::current()) const {
    const Shared begin = *this + first, end = begin + count;
    if (begin.offset_ < begin_ || end.offset_ > end_ || end.offset_ < begin.offset_)
      refuse(begin.offset_, end.offset_ - begin.offset_, site);
    return {begin.offset_, begin.offset_, end.offset_};
  }
  /// In bytes from the start of the block's shared memory.
  [[nodiscard]] u32 address() const { return offset_; }
  /// Of the same array, the place with that address().
  [[nodiscard]] Shared with_address(u32 address) const { return {address, begin_, end_}; }

  // For the layer alone: `bytes` bytes that may be touched, here or in another block.
  char* checked(u32 bytes, u32 alignment, const Site& site) const {
    return checked(*simulator::current->block, bytes, alignment, site);
  }
  char* checked(simulator::Block& block, u32 bytes, u32 alignment, const Site& site) const {
    if (offset_ < begin_ || offset_ > end_ || end_ - offset_ < bytes) [[unlikely]]
      refuse(offset_, bytes, site);
    if (offset_ % alignment != 0) [[unlikely]]
      simulator::fail(simulator::Fault::misaligned, site,
                      "access of " + std::to_string(bytes) + " bytes at shared byte " + std::to_string(offset_));
    return block.shared.data() + offset_;
  }
  [[nodiscard]] u32 begin() const { return begin_; }
  [[nodiscard]] Shared moved(u32 begin) const { return {offset_ - begin_ + begin, begin, end_ - begin_ + begin}; }

 private:
  [[noreturn]] void refuse(u32 offset, u32 bytes, const Site& site) const {
    simulator::fail(simulator::Fault::shared_bounds, site,
                    std::to_string(bytes) + " bytes at byte " + std::to_string(static_cast<i32>(offset - begin_)) +
                        " of an array of " + std::to_string(end_ - begin_));
  }
  u32 offset_ = 0, begin_ = 0, end_ = 0;
};

namespace simulator {

template <class T> Shared<T> static_shared(const void* declaration, u32 n, Site site = Site::current()) {
  const u32 begin = current->block->static_shared(declaration, n * u32{sizeof(T)}, site);
  return {begin, begin, begin + n * u32{sizeof(T)}};
}

}  // namespace simulator

inline u32 thread_id() { return simulator::current->index; }
inline u32 lane_id() { return simulator::current->lane(); }
inline u32 warp_id() { return simulator::current->warp(); }
inline u32 block_x() { return simulator::current->block->index.x; }
inline u32 block_y() { return simulator::current->block->index.y; }
inline u32 block_z() { return simulator::current->block->index.z; }
inline u32 grid_x() { return simulator::current->block->grid.x; }
inline u32 grid_y() { return simulator::current->block->grid.y; }
inline u32 grid_z() { return simulator::current->block->grid.z; }

inline Shared<u8> dynamic_shared() {
  const simulator::Block& block = *simulator::current->block;
  const u32 begin = block.dynamic_shared_offset();
  return {begin, begin, begin + block.dynamic_shared_bytes()};
}

}  // namespace nibble::device
