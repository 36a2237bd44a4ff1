// Runs a kernel on the processor: a fiber for each thread of a block, one block after another.
//
// A thread runs until it must wait: at a barrier, or at an operation of its warp that other lanes have not reached.
// Which thread runs next is random, from a seed. Semantics only: nothing here knows about time.
#pragma once
#include <deque>
#include <exception>
#include <memory>
#include <type_traits>
#include <vector>

#include "kernels/device/kernel.hpp"
#include "tests/simulator/bulk_copies.hpp"
#include "tests/simulator/cluster.hpp"
#include "tests/simulator/fiber.hpp"
#include "tests/simulator/global_memory.hpp"
#include "tests/simulator/global_races.hpp"
#include "tests/simulator/options.hpp"
#include "tests/simulator/shared_memory.hpp"
#include "tests/simulator/warpgroup.hpp"

namespace nibble::device::simulator {

inline constexpr u32 warp_size = 32, max_threads = 1024;

class Block;

/// What the lanes of a warp do together.
enum class Together : u8 { shuffle, vote, load_matrix, multiply, synchronize, registers, cluster };

struct CopyToShared {
  u32 target, size;
  const void* source;
  u32 bytes;  // of `size`; the rest becomes zero
  Site site;
};

struct Thread {
  u32 index = 0, who = 0;  // in its block; in the clocks of its cluster
  Block* block = nullptr;
  Fiber fiber;
  bool exited = false;
  const char* waits_in = "nothing";
  Site site;

  Clock* clock = nullptr;        // per thread and agent: up to which step it is ordered before now
  Clock* proxy_clock = nullptr;  // the part of that which the asynchronous proxy may see

  std::vector<CopyToShared> open_copies;  // cp.async, since the last commit
  std::deque<std::vector<CopyToShared>> copy_groups;

  std::vector<Clock> fenced_clock;  // of the block's threads, at the last threadfence
  std::vector<Acquire> seen;        // by atomic operations since then

  Warpgroup warpgroup;
  u32 groups_left = 0;  // the argument of wgmma_wait

  bool after_dependency = false;  // it is known to come after a dependency_wait

  bool arrived_at_cluster = false;  // and has not waited yet
  u32 cluster_phase = 0;            // when it arrived

  [[nodiscard]] u32 lane() const { return index % warp_size; }
  [[nodiscard]] u32 warp() const { return index / warp_size; }
};

/// The thread that runs now on this thread of the machine.
inline thread_local constinit Thread* current = nullptr;

/// What one launch is.
struct Launch {
  Grid grid;
  u32 threads;
  u32 dynamic_shared_bytes;
  void (*body)(const void* kernel);
  const void* kernel;
  bool overlaps;  // the kernel before it may still run
  u32 min_blocks, cluster;
  std::size_t max_shared_bytes;  // of all launches of the kernel
  std::size_t parameter_bytes;   // pointers are larger here than on a GPU
  LoadedCode code;
  BlockOrder* order = nullptr;
  u64 first = 0;  // of the blocks that run
};

/// One block at a time; the object is used again for the next, since its stacks and clocks are costly to make.
class Block {
 public:
  /// In this order: begin, advance until nothing can run, end. Of a cluster, several blocks advance by turns.
  void begin(const Launch& launch, Grid block_index, const Options& options, u64 seed, Cluster& cluster, u32 rank);
  void advance();
  [[nodiscard]] bool can_advance() const { return live_ > 0 && (runnable_warps_ != 0 || !bulk_copies_.empty()); }
  [[nodiscard]] bool has_ended() const { return live_ == 0; }
  void end();
  [[nodiscard]] std::string report_waiting() const;

  Grid index, grid;
  u32 threads = 0;
  u32 number = 0, first_block = 0;  // of all blocks ever run; of the first that this launch runs
  SharedMemory shared;
  Statistics statistics;
  std::vector<Site> sites;

  /// Where this block keeps the static array of that declaration.
  u32 static_shared(const void* declaration, u32 bytes, const Site& site);
  [[nodiscard]] u32 dynamic_shared_offset() const { return dynamic_shared_offset_; }
  [[nodiscard]] u32 dynamic_shared_bytes() const { return dynamic_shared_bytes_; }

  /// Named barrier `id` of `count` threads; barrier 0 of all of them is sync_threads.
  void barrier(Thread& thread, u32 id, u32 count, bool wait, const Site& site);
  void synchronize_warp(Thread& thread, u32 mask, const Site& site);

  // The order of blocks: global_races.hpp.
  void atomic_operation(Thread& thread, std::uintptr_t address);  // under lock_if_several()
  void fence(Thread& thread, const Site& site);
  [[nodiscard]] bool acquired(const Thread& thread, u32 from_block, u32 from_thread, Clock from_step) const;
  /// Held for what blocks share, if several run at a time.
  [[nodiscard]] std::unique_lock<std::recursive_mutex> lock_if_several() const {
    return options_.workers > 1 ? std::unique_lock(launch_.order->mutex) : std::unique_lock<std::recursive_mutex>();
  }

  /// An operation of the lanes in `mask`. Each leaves a pointer to its operands, which lie on its stack; the last one
  /// to come runs `complete` for all. `aligned`: all of them must come from the same site.
  using Complete = void (*)(Block& block, u32 mask, void** operands, const Site& site);
  void together(Thread& thread, u32 mask, Together operation, bool aligned, void* operands, Complete complete,
                const Site& site);

  // cp.async
  void copy_to_shared(Thread& thread, const CopyToShared& copy);
  void commit_copies(Thread& thread);
  void wait_for_copies(Thread& thread, u32 groups_left, const Site& site);

  // mbarriers and the copies that report to them.
  void init_mbarrier(Thread& thread, u32 offset, u32 count, const Site& site);
  void fence_mbarrier_init(Thread& thread, const Site& site);
  void fence_proxy(Thread& thread, const Site& site);
  void arrive(Thread& thread, u32 offset, u32 expected_bytes, const Site& site);
  void wait_for_phase(Thread& thread, u32 offset, u32 parity, bool of_cluster, const Site& site);
  void issue_bulk_copy(Thread& thread, BulkCopy copy);

  // Programmatic dependent launch.
  void wait_for_dependency(Thread& thread, const Site& site);
  void launch_dependents();
  /// Fails if the launch overlaps the one before, and the thread comes to this memory before a dependency_wait.
  void check_dependency(Thread& thread, const Region& region, Use use, const Site& site);
  /// Fails unless the memory never changes: ldg and ldcs may read it before the wait, wherever they are written.
  void check_early_load(const Region& region, const char* load, const Site& site) const;

  // Clusters.
  [[nodiscard]] u32 rank() const { return rank_; }
  [[nodiscard]] u32 cluster_size() const { return launch_.cluster; }
  void synchronize_cluster(Thread& thread, const Site& site);
  void arrive_at_cluster(Thread& thread, const Site& site);
  void wait_for_cluster(Thread& thread, const Site& site);
  [[nodiscard]] Block& block_of_cluster(u32 rank, const Site& site);
  /// Where the array that holds this byte of shared memory lies in another block.
  u32 same_array(u32 offset, Block& other, const Site& site) const;
  /// A thread of the cluster is going to access this block's shared memory.
  void visit(const Thread& thread, const Site& site);

  // wgmma.
  void fence_accumulators(Thread& thread, float* d, u32 n, const Site& site);
  void fence_registers(Thread& thread, const u32* a, u32 n, const Site& site);
  void multiply_tiles(Thread& thread, WarpgroupMultiply multiply);
  void commit_multiplies(Thread& thread, const Site& site);
  void wait_for_multiplies(Thread& thread, u32 groups_left, const Site& site);

  /// setmaxnreg of the thread's warp; `grows` waits until the block has that many registers left.
  void set_registers(Thread& thread, u32 count, bool grows, const Site& site);

  [[nodiscard]] Thread& thread(u32 i) { return threads_[i]; }
  [[nodiscard]] u32 clock_size() const { return clock_size_; }
  [[nodiscard]] u32 first_who() const { return rank_ * threads; }
  [[nodiscard]] u32 first_agent() const { return launch_.cluster * threads + rank_ * agents; }
  [[nodiscard]] const Options& options() const { return options_; }

  /// Whether a test has turned off the synchronization at this site.
  [[nodiscard]] bool skipped(const Site& site);
  u64 random();

 private:
  struct Meeting {  // lanes on their way to one operation
    u32 mask = 0, arrived = 0;
    Together operation{};
    Site site;
    void* operands[warp_size];
  };
  struct Barrier {
    u32 count = 0, arrived = 0;
    std::vector<Thread*> waiting;
    std::vector<Clock> clock, proxy_clock;
    u32 lanes[warp_size];  // of each warp that have arrived
    Site site[warp_size];
  };

  static void thread_main();
  void check_exit(Thread& thread);
  void finish(Thread& thread);

  // Scheduling.
  Thread* pick();
  u32 pick_warp(u32& random_bits);
  void block_thread(Thread& thread, const char* waits_in, const Site& site);
  void wake(const Thread& thread);
  void sleep(const Thread& thread);
  void run_another(Thread& thread);
  void land_copies(Thread& thread, const std::vector<CopyToShared>& group);
  Mbarrier& mbarrier(Thread& thread, u32 offset, const Site& site);
  void complete_phase(Mbarrier& mbarrier);
  bool land_bulk_copy();  // one of those in flight, if any
  void join(Clock* clock, const Clock* other) const;
  void step(Thread& thread, const Site& site);

  Options options_;
  u64 random_ = 1;
  Launch launch_{};
  std::vector<Thread> threads_;
  Stacks stacks_;
  Fiber outside_;
  u32 clock_size_ = 0;
  std::vector<Clock> clocks_, joined_;
  u32 warps_ = 0, live_ = 0;
  u32 runnable_warps_ = 0, runnable_[warp_size]{}, exited_[warp_size]{};  // bits: warps, lanes of each warp
  u8 priority_[warp_size]{};
  u32 since_priorities_changed_ = 0;
  u32 dynamic_shared_offset_ = 0, dynamic_shared_bytes_ = 0, static_shared_bytes_ = 0;
  struct StaticArray {
    const void* declaration;
    u32 offset, bytes;
  };
  std::vector<StaticArray> statics_;
  Cluster* cluster_ = nullptr;
  u32 rank_ = 0;
  struct Visit {
    Clock step = 0;
    Site site;
  };
  std::vector<Visit> visits_;  // the last by each thread of the cluster
  Barrier barriers_[16];
  std::deque<Mbarrier> mbarriers_;
  std::vector<BulkCopy> bulk_copies_;
  std::vector<Acquire> acquires_;
  struct DependencyWait {
    u32 thread;
    Clock step;
  };
  std::vector<DependencyWait> dependency_waits_;
  u32 registers_[warp_size]{}, free_registers_ = 0;  // of a thread of each warp; warps' worth that nobody has
  std::vector<Thread*> waiting_for_registers_;
  bool launched_dependents_ = false;
  std::vector<Meeting> meetings_[warp_size];
  std::exception_ptr failure_;
};

/// What the device has for a block and for a multiprocessor.
struct DeviceLimits {
  u32 block_shared_bytes, shared_bytes;  // 1 KiB of each block's is the system's
  u32 threads, blocks;
};
constexpr DeviceLimits device_limits(u32 capability) {
  if (capability >= 120) return {99u << 10, 100u << 10, 1536, 24};
  if (capability >= 90) return {227u << 10, 228u << 10, 2048, 32};
  if (capability == 89) return {99u << 10, 100u << 10, 1536, 24};
  if (capability == 86) return {99u << 10, 100u << 10, 1536, 16};
  return {163u << 10, 164u << 10, 2048, 32};
}

/// Throws LaunchError for what CUDA refuses before a block runs, and for a min_blocks that no device can keep.
void check_limits(const Launch& launch, u32 capability);

/// Runs all blocks, or those of Options::part. Throws Failure for the first thing found to be wrong.
void run_grid(Launch launch);

}  // namespace nibble::device::simulator

namespace nibble::device {

/// Of the simulated device: Options::multiprocessors and Options::capability.
inline u32 multiprocessors() { return simulator::current_options().multiprocessors; }
inline u32 capability() { return simulator::current_options().capability; }
inline MultiprocessorLimits multiprocessor_limits() {
  const simulator::DeviceLimits limits = simulator::device_limits(capability());
  return {limits.threads, limits.shared_bytes, 1024};
}
/// Clusters of any size up to Options::max_cluster fill a simulated device.
template <class Kernel> u32 resident_clusters(u32 cluster, std::size_t /*dynamic_shared_bytes*/) {
  if (cluster > simulator::current_options().max_cluster) return 0;
  return multiprocessors() > cluster ? multiprocessors() / cluster : 1;
}

/// The simulator sees static arrays only when they are used, so it counts none. None is larger than 2 KiB.
template <class Kernel> u32 static_shared_bytes() { return 0; }

namespace simulator {

/// Of the simulated device: for Options::target.
template <class Kernel> LoadedCode loaded_code() {
  const Options& options = current_options();
  const u32 target = options.loaded_target();
  return {target, options.capability, needs_sm90a<Kernel>() && target != 90 ? threads_without_body : Kernel::threads};
}

}  // namespace simulator

/// Whether the simulated device has code of a kernel that needs_sm90a.
template <class Kernel> bool is_loaded() { return is_code_of<Kernel>(simulator::loaded_code<Kernel>()); }

/// Runs `kernel` once for each thread of each block. Returns when it is done: there is no stream to wait for.
template <class Kernel>
void launch(Grid grid, std::size_t dynamic_shared_bytes, StreamRef /*stream*/, const Kernel& kernel,
            Overlap overlap = Overlap::no, u32 cluster = cluster_of<Kernel>()) {
  static_assert(std::is_trivially_copyable_v<Kernel>, "a kernel is copied to the device");
  static_assert(Kernel::threads % simulator::warp_size == 0 && Kernel::threads <= simulator::max_threads);
  const LoadedCode code = simulator::loaded_code<Kernel>();
  simulator::run_grid({grid, Kernel::threads, static_cast<u32>(dynamic_shared_bytes),
                       [](const void* self) { (*static_cast<const Kernel*>(self))(); }, &kernel,
                       overlap == Overlap::yes && waits_for_dependencies(code), min_blocks_of<Kernel>(), cluster,
                       max_shared_bytes_of<Kernel>(dynamic_shared_bytes), sizeof(Kernel), code});
}

}  // namespace nibble::device
