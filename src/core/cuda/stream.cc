// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/cuda/check.h"
#include "core/cuda/outside_of_captures.h"
#include "core/cuda/runtime.h"

namespace moebius::cuda {

std::shared_ptr<void> make_stream(int index) {
  expect_usable(index);
  const DeviceGuard guard(index);
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
             "cudaStreamCreateWithFlags");
  return {stream,
          [](void* s) { log_cuda_error(cudaStreamDestroy(as_stream(s)), "cudaStreamDestroy"); }};
}

void synchronize_stream(void* stream, int index) {
  const DeviceGuard guard(index);
  check_cuda(cudaStreamSynchronize(as_stream(stream)), "cudaStreamSynchronize");
}

std::shared_ptr<void> record_event(void* stream, int index, bool is_timed) {
  const DeviceGuard guard(index);
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, is_timed ? cudaEventDefault : cudaEventDisableTiming),
             "cudaEventCreateWithFlags");
  std::shared_ptr<void> owner(event, [](void* e) {
    log_cuda_error(cudaEventDestroy(static_cast<cudaEvent_t>(e)), "cudaEventDestroy");
  });
  check_cuda(cudaEventRecord(event, as_stream(stream)), "cudaEventRecord");
  return owner;
}

void wait_event(void* stream, int index, void* event) {
  const DeviceGuard guard(index);
  check_cuda(cudaStreamWaitEvent(as_stream(stream), static_cast<cudaEvent_t>(event), 0),
             "cudaStreamWaitEvent");
}

void synchronize_event(void* event) {
  check_cuda(cudaEventSynchronize(static_cast<cudaEvent_t>(event)), "cudaEventSynchronize");
}

bool is_event_complete(void* event) {
  const OutsideOfCaptures outside;
  const cudaError_t status = cudaEventQuery(static_cast<cudaEvent_t>(event));
  if (status == cudaErrorNotReady) {
    (void)cudaGetLastError();  // the check of the next launch must not find it
    return false;
  }
  check_cuda(status, "cudaEventQuery");
  return true;
}

std::chrono::nanoseconds elapsed(void* from, void* to) {
  synchronize_event(from);
  synchronize_event(to);
  float milliseconds = 0.0f;
  check_cuda(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(from),
                                  static_cast<cudaEvent_t>(to)),
             "cudaEventElapsedTime");
  return std::chrono::nanoseconds(static_cast<int64_t>(double{milliseconds} * 1e6));
}

// Why the capture is thread-local: threads of other ranks allocate and synchronize meanwhile.
std::shared_ptr<void> capture(void* stream, int index, const std::function<void()>& work) {
  const DeviceGuard guard(index);
  check_cuda(cudaStreamBeginCapture(as_stream(stream), cudaStreamCaptureModeThreadLocal),
             "cudaStreamBeginCapture");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    if (cudaStreamEndCapture(as_stream(stream), &graph) == cudaSuccess && graph != nullptr) {
      log_cuda_error(cudaGraphDestroy(graph), "cudaGraphDestroy");
    }
    (void)cudaGetLastError();  // the exception under way says more
    throw;
  }
  check_cuda(cudaStreamEndCapture(as_stream(stream), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  log_cuda_error(cudaGraphDestroy(graph), "cudaGraphDestroy");
  check_cuda(status, "cudaGraphInstantiate");
  std::shared_ptr<void> owner(executable, [](void* g) {
    log_cuda_error(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(g)), "cudaGraphExecDestroy");
  });
  check_cuda(cudaGraphUpload(executable, as_stream(stream)), "cudaGraphUpload");
  synchronize_stream(stream, index);
  return owner;
}

void launch_graph(void* graph, void* stream, int index) {
  const DeviceGuard guard(index);
  check_cuda(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), as_stream(stream)),
             "cudaGraphLaunch");
}

uint64_t capture_id(void* stream, int index) {
  const DeviceGuard guard(index);
  auto status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  check_cuda(cudaStreamGetCaptureInfo(as_stream(stream), &status, &id), "cudaStreamGetCaptureInfo");
  return status == cudaStreamCaptureStatusActive ? id : 0;
}

}  // namespace moebius::cuda
