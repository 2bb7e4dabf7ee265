// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <exception>
#include <map>
#include <mutex>
#include <vector>

#include "core/cuda/check.h"
#include "core/cuda/outside_of_captures.h"
#include "core/cuda/runtime.h"

namespace moebius::cuda {

namespace {

// Events without times that nobody has a handle on any more.  A layer call records several, and
// making and destroying one takes the host as long as recording it.  Recording an event again does
// not change what waits for its earlier record.
class UnusedEvents {
 public:
  // Null: there is none.
  cudaEvent_t take(int index) {
    const std::lock_guard lock(mutex_);
    std::vector<cudaEvent_t>& events = by_device_[index];
    if (events.empty()) {
      return nullptr;
    }
    const cudaEvent_t event = events.back();
    events.pop_back();
    return event;
  }
  void give(int index, cudaEvent_t event) noexcept {
    try {
      const std::lock_guard lock(mutex_);
      by_device_[index].push_back(event);
    } catch (const std::exception&) {  // there is no memory to remember it
      log_cuda_error(cudaEventDestroy(event), "cudaEventDestroy");
    }
  }

 private:
  std::mutex mutex_;
  std::map<int, std::vector<cudaEvent_t>> by_device_;
};

UnusedEvents& unused_events() {
  static auto& instance = *new UnusedEvents;  // leaked, as handles may outlive main()
  return instance;
}

std::shared_ptr<void> reused_event(int index) {
  cudaEvent_t event = unused_events().take(index);
  if (event == nullptr) {
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
               "cudaEventCreateWithFlags");
  }
  return {event, [index](void* e) { unused_events().give(index, static_cast<cudaEvent_t>(e)); }};
}

std::shared_ptr<void> own_event(unsigned flags) {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags");
  return {event, [](void* e) {
            log_cuda_error(cudaEventDestroy(static_cast<cudaEvent_t>(e)), "cudaEventDestroy");
          }};
}

}  // namespace

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
  // Why captures have events of their own: such an event refers to its capture, and CUDA 13.0
  // crashes where one thread records it again while another ends the capture.
  std::shared_ptr<void> event = is_timed                    ? own_event(cudaEventDefault)
                                : capture_id(stream, index) ? own_event(cudaEventDisableTiming)
                                                            : reused_event(index);
  check_cuda(cudaEventRecord(static_cast<cudaEvent_t>(event.get()), as_stream(stream)),
             "cudaEventRecord");
  return event;
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
