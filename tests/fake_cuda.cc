// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions of the runtime that the library links, and no others: a new one must be added here.
#include "tests/fake_cuda.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

namespace {

std::map<std::string, int>& calls() {
  static std::map<std::string, int> counts;
  return counts;
}

cudaError_t note(const char* function) {
  ++calls()[function];
  return cudaSuccess;
}

bool events_are_complete = true;
bool has_memory = true;
std::optional<cudaStream_t> captured;  // the stream that is being recorded

// An address that stands for an object of the runtime.
template <typename Handle>
Handle next_handle() {
  static uintptr_t last = 0;
  return reinterpret_cast<Handle>(last += 64);
}

cudaError_t allocate(void** data, size_t bytes) {
  constexpr size_t kAlignment = 256;
  if (!has_memory) {
    return cudaErrorMemoryAllocation;
  }
  *data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  return note("allocate");
}

CUresult encode_tiled(CUtensorMap*,
                      CUtensorMapDataType,
                      cuuint32_t,
                      void*,
                      const cuuint64_t*,
                      const cuuint64_t*,
                      const cuuint32_t*,
                      const cuuint32_t*,
                      CUtensorMapInterleave,
                      CUtensorMapSwizzle,
                      CUtensorMapL2promotion,
                      CUtensorMapFloatOOBfill) {
  note("cuTensorMapEncodeTiled");
  return CUDA_SUCCESS;
}

}  // namespace

namespace moebius::testing {

std::map<std::string, int> take_cuda_calls() {
  return std::exchange(calls(), {});
}

void complete_events(bool are_complete) {
  events_are_complete = are_complete;
}

void set_gpu_memory(bool is_left) {
  has_memory = is_left;
}

}  // namespace moebius::testing

extern "C" {

// What nvcc's host code calls.
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(
    void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void*) {
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* bytes, void* stream) {
  *grid = *block = dim3(1);
  *bytes = 0;
  *static_cast<void**>(stream) = nullptr;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) {
  return note("launch");
}

cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
  return note("launch");
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) {
  return note("launch");
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;  // it reads a variable of the thread
}
const char* cudaGetErrorString(cudaError_t) {
  return "an error of no CUDA";
}
const char* cudaGetErrorName(cudaError_t) {
  return "noCuda";
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return note("cudaGetDeviceCount");
}
cudaError_t cudaGetDevice(int* index) {
  *index = 0;
  return cudaSuccess;  // it reads a variable of the thread
}
cudaError_t cudaSetDevice(int) {
  return note("cudaSetDevice");
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "no GPU");
  properties->major = 9;
  properties->multiProcessorCount = 132;
  properties->totalGlobalMem = size_t{64} << 30;
  properties->sharedMemPerBlockOptin = 232448;
  return note("cudaGetDeviceProperties");
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount ? 132 : 1;
  return note("cudaDeviceGetAttribute");
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return note("cudaDeviceCanAccessPeer");
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void*) {
  *attributes = {};
  return note("cudaPointerGetAttributes");
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  return note("cudaFuncGetAttributes");
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return note("cudaFuncSetAttribute");
}
cudaError_t cudaGetDriverEntryPointByVersion(const char*,
                                             void** function,
                                             unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = reinterpret_cast<void*>(&encode_tiled);
  *result = cudaDriverEntryPointSuccess;
  return note("cudaGetDriverEntryPointByVersion");
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  return allocate(data, bytes);
}
cudaError_t cudaFree(void* data) {
  std::free(data);
  return note("free");
}
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  return allocate(data, bytes);
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return note("cudaHostGetDevicePointer");
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) {
  *pool = next_handle<cudaMemPool_t>();
  return note("cudaMemPoolCreate");
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return note("cudaMemPoolSetAttribute");
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) {
  return note("cudaMemPoolSetAccess");
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) {
  return note("cudaMemPoolTrimTo");
}
cudaError_t cudaMallocFromPoolAsync(void** data, size_t bytes, cudaMemPool_t, cudaStream_t) {
  return allocate(data, bytes);
}
cudaError_t cudaFreeAsync(void* data, cudaStream_t) {
  std::free(data);
  return note("free");
}
cudaError_t cudaMemGetInfo(size_t* unused, size_t* total) {
  *unused = *total = size_t{64} << 30;
  return note("cudaMemGetInfo");
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) {
  return cudaErrorNotSupported;
}
cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) {
  return cudaErrorNotSupported;
}
cudaError_t cudaIpcCloseMemHandle(void*) {
  return cudaErrorNotSupported;
}

cudaError_t cudaMemsetAsync(void* data, int byte, size_t bytes, cudaStream_t) {
  std::memset(data, byte, bytes);
  return note("cudaMemsetAsync");
}
cudaError_t cudaMemcpyAsync(
    void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  std::memcpy(to, from, bytes);
  return note("cudaMemcpyAsync");
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t) {
  std::memcpy(to, from, bytes);
  return note("cudaMemcpyPeerAsync");
}
cudaError_t cudaMemcpy2DAsync(
    void*, size_t, const void*, size_t, size_t, size_t, cudaMemcpyKind, cudaStream_t) {
  return cudaErrorNotSupported;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = next_handle<cudaStream_t>();
  return note("cudaStreamCreateWithFlags");
}
cudaError_t cudaStreamDestroy(cudaStream_t) {
  return note("cudaStreamDestroy");
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return note("cudaStreamSynchronize");
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return note("cudaStreamWaitEvent");
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = next_handle<cudaEvent_t>();
  return note("cudaEventCreateWithFlags");
}
cudaError_t cudaEventDestroy(cudaEvent_t) {
  return note("cudaEventDestroy");
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
  return note("cudaEventRecord");
}
cudaError_t cudaEventQuery(cudaEvent_t) {
  note("cudaEventQuery");
  return events_are_complete ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return note("cudaEventSynchronize");
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = 0.0f;
  return note("cudaEventElapsedTime");
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return note("cudaThreadExchangeStreamCaptureMode");
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                     cudaStreamCaptureStatus* status,
                                     unsigned long long* id,
                                     cudaGraph_t*,
                                     const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**,
                                     size_t*) {
  const bool is_captured = captured.has_value() && stream == *captured;
  *status = is_captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (id != nullptr) {
    *id = is_captured ? 1 : 0;
  }
  return note("cudaStreamGetCaptureInfo");
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  captured = stream;
  return note("cudaStreamBeginCapture");
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  captured.reset();
  *graph = next_handle<cudaGraph_t>();
  return note("cudaStreamEndCapture");
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t, unsigned long long) {
  *executable = next_handle<cudaGraphExec_t>();
  return note("cudaGraphInstantiate");
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  return note("cudaGraphUpload");
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) {
  return note("cudaGraphLaunch");
}
cudaError_t cudaGraphDestroy(cudaGraph_t) {
  return note("cudaGraphDestroy");
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) {
  return note("cudaGraphExecDestroy");
}

}  // extern "C"
