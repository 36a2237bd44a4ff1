#include "bench/kernels/gpu/gpu.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <type_traits>

namespace nibble::bench {
namespace {

struct Destroy {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
  void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
};
template <class Handle> using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;

Owned<cudaStream_t> make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  return Owned<cudaStream_t>(stream);
}
Owned<cudaEvent_t> make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "cudaEventCreate");
  return Owned<cudaEvent_t>(event);
}

// The calls of a contender, ready to be done again and again.
class Replay {
 public:
  Replay(const Contender& contender, std::size_t min_calls)
      : contender_(contender), calls_((min_calls + contender.copies - 1) / contender.copies * contender.copies) {
    if (!contender.in_graph) return;
    stream_ = make_stream();
    // Relaxed, as libraries may set attributes of their kernels meanwhile.
    check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
    put_calls();
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream_.get(), &graph), "cudaStreamEndCapture");
    const Owned<cudaGraph_t> owner(graph);
    cudaGraphExec_t executable = nullptr;
    check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    graph_.reset(executable);
  }

  [[nodiscard]] std::size_t calls() const { return calls_; }

  // In microseconds per call.
  [[nodiscard]] double time() const {
    check(cudaEventRecord(begin_.get(), stream_.get()), "cudaEventRecord");
    if (graph_)
      check(cudaGraphLaunch(graph_.get(), stream_.get()), "cudaGraphLaunch");
    else
      put_calls();
    check(cudaEventRecord(end_.get(), stream_.get()), "cudaEventRecord");
    check(cudaEventSynchronize(end_.get()), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()), "cudaEventElapsedTime");
    return 1e3 * double{milliseconds} / static_cast<double>(calls_);
  }

 private:
  void put_calls() const {
    for (std::size_t i = 0; i < calls_; ++i) contender_.run(i % contender_.copies, stream_.get());
  }

  const Contender& contender_;
  std::size_t calls_;
  Owned<cudaStream_t> stream_;  // the default stream, where there is no graph
  Owned<cudaEvent_t> begin_ = make_event(), end_ = make_event();
  Owned<cudaGraphExec_t> graph_;
};

Times summary(std::vector<double> samples, std::size_t calls) {
  std::sort(samples.begin(), samples.end());
  const auto at = [&samples](double share) {
    return samples[static_cast<std::size_t>(share * static_cast<double>(samples.size() - 1) + 0.5)];
  };
  return {at(0.5), at(0.1), at(0.9), samples.size(), calls};
}

}  // namespace

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

Buffer::Buffer(std::size_t bytes, Fill fill) : bytes_(bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, std::max<std::size_t>(bytes, 1)), "cudaMalloc");
  memory_.reset(memory);
  if (fill == Fill::nan) poison();
}

void Buffer::poison() { check(cudaMemset(memory_.get(), 0xff, bytes_), "cudaMemset"); }

void Buffer::from_host(const void* host) const {
  check(cudaMemcpy(memory_.get(), host, bytes_, cudaMemcpyHostToDevice), "cudaMemcpy");
}

void Buffer::read(void* host, std::size_t first_byte, std::size_t bytes) const {
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  check(cudaMemcpy(host, as<char>() + first_byte, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

std::vector<Times> measure(const std::vector<Contender>& contenders, const Effort& effort) {
  if (contenders.empty()) return {};
  std::vector<std::unique_ptr<Replay>> replays;
  for (const Contender& contender : contenders)
    replays.push_back(std::make_unique<Replay>(contender, effort.min_calls));
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  for (int i = 0; i < 3; ++i)
    for (const auto& replay : replays) static_cast<void>(replay->time());

  constexpr std::size_t most = 300;
  std::vector<std::vector<double>> samples(replays.size());
  const auto begin = std::chrono::steady_clock::now();
  const auto enough = [&] {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    const std::size_t rounds = samples[0].size();
    return rounds >= most || (rounds >= effort.min_replays && passed.count() >= effort.seconds);
  };
  while (!enough())
    for (std::size_t i = 0; i < replays.size(); ++i) samples[i].push_back(replays[i]->time());

  std::vector<Times> times;
  for (std::size_t i = 0; i < replays.size(); ++i) times.push_back(summary(samples[i], replays[i]->calls()));
  return times;
}

}  // namespace nibble::bench
