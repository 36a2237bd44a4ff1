// Each stage of a conversion alone, without the others: what the pipeline can at best reach. Prints one JSON object
// with `seconds` and `bytes`; bench/convert.py and bench/scaling.py start it.
//
//   bench_stages read FILE               pread of the whole file into a buffer per thread, used again and again
//   bench_stages encode MODEL --to nf4   every tensor through its codec, from memory into a buffer per thread
//   bench_stages write DIR --bytes N     pwrite of N bytes past the page cache from huge pages, by 8 threads, then
//                                        fdatasync; where that is not to be had, and with --through-cache, through the
//                                        page cache
//   bench_stages hash --bytes N          XXH3-128 of batches that are in cache, as the pipeline makes it, and joining
//                                        them in order
//   bench_stages memory                  read bandwidth: the sum of more than 1 GB; and memcpy of as much
//   bench_stages time COMMAND ...        a process: wall, user and system seconds, peak memory (a caller in Python
//                                        would pass its own memory on: what a child has before exec() counts)
//   bench_stages simd                    the instruction set that the inner loops use here

#include <fcntl.h>
#include <fmt/format.h>
#include <oneapi/tbb/global_control.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "bench/programs/memory.hpp"
#include "core/memory/scratch.hpp"
#include "core/xxh3.hpp"
#include "formats/commit/writer.hpp"
#include "nibble/codec.hpp"
#include "nibble/plan.hpp"
#include "nibble/target.hpp"
#include "quant/quantizers/quantizer.hpp"

namespace {

using nibble::bench::Pages;

constexpr std::uint64_t chunk_bytes = 1 << 20;  // as the pipeline cuts

struct Options {
  std::string path;
  std::string to = "nf4";
  unsigned threads = 2;
  std::uint64_t bytes = 1 << 30;
  bool all = false;
  bool through_cache = false;
};

void check(bool good, const std::string& what) {
  if (!good) throw std::system_error(errno, std::generic_category(), what);
}

class File {
 public:
  File(const std::string& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    check(fd_ >= 0, "open");
  }
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&&) = delete;
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

// Of all threads so far.
double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

// Runs `step(thread, i)` for i in [0, count) on several threads, each taking the next i; the seconds that took.
double run(unsigned threads, std::uint64_t count, const std::function<void(unsigned, std::uint64_t)>& step) {
  std::atomic<std::uint64_t> next = 0;
  const auto start = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> workers;
    for (unsigned thread = 0; thread < threads; ++thread)
      workers.emplace_back([&, thread] {
        for (std::uint64_t i = next++; i < count; i = next++) step(thread, i);
      });
  }
  return seconds_since(start);
}

std::vector<Pages> buffer_per_thread(unsigned threads) {
  std::vector<Pages> buffers;
  for (unsigned i = 0; i < threads; ++i) buffers.emplace_back(2 * chunk_bytes);
  return buffers;
}

std::uint64_t chunks_in(std::uint64_t bytes) { return (bytes + chunk_bytes - 1) / chunk_bytes; }

std::uint64_t chunk_size(std::uint64_t bytes, std::uint64_t i) {
  return std::min(chunk_bytes, bytes - i * chunk_bytes);
}

void print(double seconds, std::uint64_t bytes) {
  fmt::print("{{\"seconds\": {:.6f}, \"bytes\": {}}}\n", seconds, bytes);
}

void read(const Options& options) {
  const File file(options.path, O_RDONLY);
  struct stat status {};
  check(fstat(file.get(), &status) == 0, "stat");
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  const auto buffers = buffer_per_thread(options.threads);
  const double seconds = run(options.threads, chunks_in(bytes), [&](unsigned thread, std::uint64_t i) {
    const std::uint64_t size = chunk_size(bytes, i);
    check(pread(file.get(), buffers[thread].bytes().data(), size, static_cast<off_t>(i * chunk_bytes)) ==
              static_cast<ssize_t>(size),
          "pread");
  });
  print(seconds, bytes);
}

struct Tensor {
  nibble::PlannedTensor planned;
  std::unique_ptr<const nibble::Codec> codec;
  std::unique_ptr<const nibble::Quantizer> quantizer;
  nibble::Chunking chunking;
  std::unique_ptr<nibble::MemoryScratch> scratch;
  std::unique_ptr<nibble::Encoder> encoder;
  std::uint64_t elements = 0;
  std::uint64_t stored = 0;  // bytes of the codes
  Pages source;
  std::atomic<std::uint64_t> chunks_left = 0;
};

struct Chunk {
  Tensor* tensor;
  std::uint64_t first;
  std::uint64_t weights;
};

// Takes the planes that an encoder makes at the end, in order, hashes them, and says how long that took.
class InOrder final : public nibble::PlaneSink {
 public:
  explicit InOrder(std::size_t planes) : hashes_(planes) {}
  void write(std::size_t plane, std::span<const std::byte> bytes) override {
    const auto start = std::chrono::steady_clock::now();
    hashes_.at(plane).append(bytes);
    seconds += seconds_since(start);
  }
  double seconds = 0;

 private:
  std::vector<nibble::Xxh3Chunks> hashes_;
};

void encode(const Options& options) {
  nibble::Recipe recipe;
  recipe.to = options.to;
  if (options.all) {
    recipe.embeddings = recipe.lm_head = options.to;
    recipe.default_skips = false;
    recipe.allow_nibble_only = true;
  }
  const auto reader = nibble::open_checkpoint(options.path);
  const nibble::Plan plan = nibble::make_plan(*reader, recipe);
  std::vector<std::unique_ptr<Tensor>> tensors;
  std::vector<Chunk> chunks;
  for (const nibble::PlannedTensor& planned : plan.tensors) {
    if (planned.transposed || planned.source_offset != 0)
      throw std::runtime_error(planned.info.name + " is transposed or a slice, which is not measured here");
    auto tensor = std::make_unique<Tensor>();
    const nibble::TensorInfo& info = planned.info;
    tensor->planned = planned;
    tensor->codec = nibble::make_codec(planned.codec);
    tensor->quantizer = make_quantizer(*tensor->codec);
    tensor->chunking = tensor->quantizer->chunking(info, chunk_bytes * 8 / nibble::traits(info.dtype).bits);
    if (tensor->chunking.scan) throw std::runtime_error(info.name + ": rows longer than a chunk are not measured here");
    tensor->scratch = std::make_unique<nibble::MemoryScratch>(tensor->quantizer->scratch_bytes(info));
    tensor->encoder = tensor->quantizer->encoder(info, tensor->chunking, *tensor->scratch);
    tensor->elements = info.elements();
    tensor->stored = tensor->codec->code_bytes(info, tensor->elements);
    tensor->source = Pages(info.bytes());
    reader->read(planned.source, 0, tensor->source.bytes());
    for (std::uint64_t first = 0; first < tensor->elements; first += tensor->chunking.weights)
      chunks.push_back({tensor.get(), first, std::min(tensor->chunking.weights, tensor->elements - first)});
    tensor->chunks_left = (tensor->elements + tensor->chunking.weights - 1) / tensor->chunking.weights;
    tensors.push_back(std::move(tensor));
  }
  const auto buffers = buffer_per_thread(options.threads);
  // Of all threads together; what goes in order is part of it.
  std::atomic<double> finish_seconds = 0, in_order_seconds = 0;
  const tbb::global_control threads(tbb::global_control::max_allowed_parallelism, options.threads);
  const double processor_before = processor_seconds();
  const double seconds = run(options.threads, chunks.size(), [&](unsigned thread, std::uint64_t i) {
    const auto& [tensor, first, weights] = chunks[i];
    const nibble::DType dtype = tensor->planned.info.dtype;
    const auto source =
        tensor->source.bytes().subspan(nibble::byte_count(dtype, first), nibble::byte_count(dtype, weights));
    const std::uint64_t stored = weights * tensor->stored / tensor->elements;
    tensor->encoder->encode(first, source, buffers[thread].bytes().first(stored), nullptr);
    if (--tensor->chunks_left > 0) return;
    const auto start = std::chrono::steady_clock::now();
    InOrder rest(tensor->codec->planes(tensor->planned.info).size());
    tensor->encoder->finish(rest);
    in_order_seconds += rest.seconds;
    finish_seconds += seconds_since(start);
  });
  fmt::print(
      "{{\"seconds\": {:.6f}, \"processor_seconds\": {:.6f}, \"finish_seconds\": {:.6f}, \"in_order_seconds\": {:.6f}, "
      "\"bytes\": {}, \"stored\": {}}}\n",
      seconds, processor_seconds() - processor_before, finish_seconds.load(), in_order_seconds.load(),
      plan.source_bytes(), plan.stored_bytes());
}

// As nibble does it: past the page cache by threads that wait for the disk, or through it by those that work.
void write(const Options& options) {
  const std::string path = options.path + "/bench_stages";
  constexpr int flags = O_WRONLY | O_CREAT | O_TRUNC;
  bool direct = !options.through_cache;
  std::optional<File> file;
  if (direct) try {
      file.emplace(path, flags | O_DIRECT);
    } catch (const std::system_error&) {
      direct = false;
    }
  if (!file) file.emplace(path, flags);
  const unsigned threads = direct ? nibble::Writer::max_behind : options.threads;
  nibble::HugePages pages;
  nibble::Buffers pool(&pages);
  std::vector<nibble::Buffers::Loan> buffers;
  for (unsigned i = 0; i < threads; ++i) {
    buffers.push_back(pool.lend(chunk_bytes, 0, nibble::Buffers::Way::direct));
    std::ranges::fill(buffers.back().bytes(), std::byte{1});
  }
  const std::uint64_t whole = direct ? 4096 : 1;
  const std::uint64_t bytes = (options.bytes + whole - 1) / whole * whole;
  fallocate(file->get(), 0, 0, static_cast<off_t>(bytes));  // as nibble, where it can be
  const double processor_before = processor_seconds();
  const auto start = std::chrono::steady_clock::now();
  run(threads, chunks_in(bytes), [&](unsigned thread, std::uint64_t i) {
    const auto at = static_cast<off_t>(i * chunk_bytes);
    const std::uint64_t size = chunk_size(bytes, i);
    check(pwrite(file->get(), buffers[thread].bytes().data(), size, at) == static_cast<ssize_t>(size), "pwrite");
    if (!direct) sync_file_range(file->get(), at, static_cast<off_t>(size), SYNC_FILE_RANGE_WRITE);  // starts at once
  });
  check(fdatasync(file->get()) == 0, "fdatasync");
  const double seconds = seconds_since(start);
  fmt::print("{{\"seconds\": {:.6f}, \"processor_seconds\": {:.6f}, \"bytes\": {}}}\n", seconds,
             processor_seconds() - processor_before, bytes);
  check(unlink(path.c_str()) == 0, "unlink");
}

// What is done on any thread, and what is done in order.
void hash(const Options& options) {
  const Pages data(chunk_bytes / 4);  // a chunk of bf16 in four bits; four of them are a batch
  const std::uint64_t size = 4 * data.bytes().size(), count = options.bytes / size;
  std::vector<nibble::Xxh3Chunks> batches;
  for (std::uint64_t i = 0; i < count; ++i) batches.emplace_back(i * size);
  const double hash_seconds = run(1, count, [&](unsigned, std::uint64_t i) {
    for (int chunk = 0; chunk < 4; ++chunk) batches[i].append(data.bytes());
  });
  const Pages batch(size);
  nibble::Xxh3Chunks whole;
  const double append_seconds =
      run(1, count, [&](unsigned, std::uint64_t i) { whole.append(batch.bytes(), std::move(batches[i])); });
  fmt::print("{{\"seconds\": {:.6f}, \"append_seconds\": {:.6f}, \"bytes\": {}}}\n", hash_seconds, append_seconds,
             count * size);
}

void memory(const Options& options) {
  const Pages from(options.bytes);
  const Pages into(options.bytes);
  std::atomic<std::uint64_t> total = 0;  // so that the sums are not left out
  const auto chunk = [&](const Pages& pages, std::uint64_t i) {
    return pages.bytes().subspan(i * chunk_bytes, chunk_size(options.bytes, i));
  };
  const std::uint64_t chunks = chunks_in(options.bytes);
  const double reading =
      run(options.threads, chunks, [&](unsigned, std::uint64_t i) { total += nibble::bench::sum(chunk(from, i)); });
  const double copying = run(options.threads, chunks, [&](unsigned, std::uint64_t i) {
    std::memcpy(chunk(into, i).data(), chunk(from, i).data(), chunk(from, i).size());
  });
  fmt::print("{{\"seconds\": {:.6f}, \"copy_seconds\": {:.6f}, \"bytes\": {}, \"sum\": {}}}\n", reading, copying,
             options.bytes, total.load());
}

void time_process(char** command) {
  // Its output is not ours: that is one object.
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t process = 0;
  const auto start = std::chrono::steady_clock::now();
  errno = posix_spawnp(&process, command[0], &actions, nullptr, command, environ);
  check(errno == 0, std::string(command[0]));
  int status = 0;
  rusage usage{};
  check(wait4(process, &status, 0, &usage) == process, "wait4");
  const double seconds = seconds_since(start);
  posix_spawn_file_actions_destroy(&actions);
  if (status != 0) throw std::runtime_error(std::string(command[0]) + " failed");
  fmt::print("{{\"seconds\": {:.6f}, \"user\": {:.6f}, \"system\": {:.6f}, \"peak_bytes\": {}}}\n", seconds,
             seconds_of(usage.ru_utime), seconds_of(usage.ru_stime), usage.ru_maxrss * 1024);
}

}  // namespace

int main(int argc, char** argv) try {
  nibble::force_cpu_target_of_environment();
  if (argc > 2 && std::string_view(argv[1]) == "time") {  // what follows is not for this program to understand
    time_process(argv + 2);
    return 0;
  }
  CLI::App app("Stages of a conversion, each alone");
  app.require_subcommand(1);
  Options options;
  const auto command = [&](const char* name, void (*run_it)(const Options&), const char* path) {
    CLI::App* const added = app.add_subcommand(name);
    if (path != nullptr) added->add_option(path, options.path)->required()->check(CLI::ExistingPath);
    added->add_option("--threads", options.threads)->check(CLI::Range(1, 1024));
    added->add_option("--bytes", options.bytes);
    added->callback([&options, run_it] { run_it(options); });
    return added;
  };
  command("read", read, "FILE");
  CLI::App* const encoding = command("encode", encode, "MODEL");
  encoding->add_option("--to", options.to);
  encoding->add_flag("--all", options.all, "Embeddings and output layer, too");
  CLI::App* const writing = command("write", write, "DIR");
  writing->add_flag("--through-cache", options.through_cache, "Through the page cache");
  command("hash", hash, nullptr);
  command("memory", memory, nullptr);
  app.add_subcommand("simd")->callback([] { fmt::print("{}\n", nibble::bench::simd_target()); });
  CLI11_PARSE(app, argc, argv);
} catch (const std::exception& error) {
  fmt::print(stderr, "error: {}\n", error.what());
  return 1;
}
