// The functions of CUDA's runtime that the benchmarks call, without a GPU: memory is the simulator's, work is done when
// it is asked for, and so at the time that a graph is captured. Every time is a microsecond.
#include <cuda_profiler_api.h>
#include <cuda_runtime.h>

#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "tests/simulator/global_memory.hpp"

namespace {

using nibble::device::simulator::Access;
using nibble::device::simulator::Region;

std::map<void*, std::unique_ptr<Region>>& allocations() {
  static std::map<void*, std::unique_ptr<Region>> all;
  return all;
}

bool is_profiling = false;

// Whether an allocation has these bytes; a mistake is what a test has to see.
bool is_device(const void* memory, std::size_t bytes) {
  const Region* const region = nibble::device::simulator::find_region(memory);
  return region != nullptr && region->contains(reinterpret_cast<std::uintptr_t>(memory), bytes);
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  // Which memory a kernel only reads is not known here, so that bounds are all that is checked.
  auto region = std::make_unique<Region>("cudaMalloc", bytes, Access::bounds_only, 0);
  *memory = region->base();
  allocations()[*memory] = std::move(region);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  return memory == nullptr || allocations().erase(memory) == 1 ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  if (!is_device(memory, bytes)) return cudaErrorInvalidValue;
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (is_device(from, bytes) != (kind != cudaMemcpyHostToDevice) ||
      is_device(to, bytes) != (kind != cudaMemcpyDeviceToHost))
    return cudaErrorInvalidValue;
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t /*stream*/) {
  return cudaMemcpy(to, from, bytes, kind);
}

cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t error) { return error == cudaErrorInvalidValue ? "invalid value" : "error"; }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  *stream = reinterpret_cast<cudaStream_t>(new char);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete reinterpret_cast<char*>(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t /*stream*/, cudaStreamCaptureMode /*mode*/) { return cudaSuccess; }
cudaError_t cudaStreamEndCapture(cudaStream_t /*stream*/, cudaGraph_t* graph) {
  *graph = reinterpret_cast<cudaGraph_t>(new char);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t /*graph*/, unsigned long long /*flags*/) {
  *executable = reinterpret_cast<cudaGraphExec_t>(new char);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t /*executable*/, cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<char*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete reinterpret_cast<char*>(executable);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = reinterpret_cast<cudaEvent_t>(new char);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<char*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t /*event*/, cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t /*event*/) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t /*begin*/, cudaEvent_t /*end*/) {
  *milliseconds = 1e-3f;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr /*which*/, int /*device*/) {
  *value = 4;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  std::strcpy(properties->name, "simulated device");
  properties->multiProcessorCount = 4;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 0;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 0;
  return cudaSuccess;
}
cudaError_t cudaProfilerStart() {
  is_profiling = true;
  return cudaSuccess;
}
cudaError_t cudaProfilerStop() { return is_profiling ? cudaSuccess : cudaErrorInvalidValue; }

}  // extern "C"
