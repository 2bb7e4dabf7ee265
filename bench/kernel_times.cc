// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A library that records when each kernel, copy and memset of a program ran on its GPU, also those
// of replayed graphs.  The CUDA driver loads it into any program:
//   CUDA_INJECTION64_PATH=build/release/bench/libkernel_times.so MOEBIUS_KERNEL_TIMES=FILE PROGRAM
// FILE gets a line for each of them, in no order; kHeader names the columns.  tools/kernel_times.py
// shows them in the order of time.
#include <cupti.h>
#include <cxxabi.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>

namespace {

// Begin and end are ns on CUPTI's clock, which all GPUs share.  Graph is 0 outside of graphs.
constexpr const char* kHeader = "device\tstream\tgraph\tbegin\tend\tblocks\tname\n";
constexpr size_t kBufferBytes = 8 << 20;
constexpr size_t kAlignment = 8;  // CUPTI's records need this

std::FILE* file = nullptr;
std::mutex mutex;  // threads of CUPTI hand over buffers

template <typename Record>
void write(const Record& record, int64_t blocks, const char* name) {
  std::fprintf(file, "%u\t%u\t%u\t%llu\t%llu\t%lld\t%s\n", record.deviceId, record.streamId,
               record.graphId, static_cast<unsigned long long>(record.start),
               static_cast<unsigned long long>(record.end), static_cast<long long>(blocks), name);
}

void write(const CUpti_Activity& activity) {
  switch (activity.kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& kernel = reinterpret_cast<const CUpti_ActivityKernel10&>(activity);
      const std::unique_ptr<char, decltype(&std::free)> readable(
          abi::__cxa_demangle(kernel.name, nullptr, nullptr, nullptr), std::free);
      write(kernel, int64_t{kernel.gridX} * kernel.gridY * kernel.gridZ,
            readable ? readable.get() : kernel.name);
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      write(reinterpret_cast<const CUpti_ActivityMemcpy6&>(activity), 0, "memcpy");
      break;
    case CUPTI_ACTIVITY_KIND_MEMSET:
      write(reinterpret_cast<const CUpti_ActivityMemset4&>(activity), 0, "memset");
      break;
    default:
      break;
  }
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* bytes, size_t* max_records) {
  *buffer = new (std::align_val_t{kAlignment}) uint8_t[kBufferBytes];
  *bytes = kBufferBytes;
  *max_records = 0;  // no limit but the room
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  const std::lock_guard lock(mutex);
  CUpti_Activity* activity = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid_bytes, &activity) == CUPTI_SUCCESS) {
    write(*activity);
  }
  std::fflush(file);
  operator delete[](buffer, std::align_val_t{kAlignment});
}

}  // namespace

// The driver calls this before the program's first CUDA call.  1 means that it is done.
extern "C" int InitializeInjection() {
  const char* name = std::getenv("MOEBIUS_KERNEL_TIMES");
  file = name != nullptr ? std::fopen(name, "w") : nullptr;
  if (file == nullptr) {
    std::fprintf(stderr, "kernel_times: MOEBIUS_KERNEL_TIMES names no file that can be written\n");
    return 1;
  }
  std::fputs(kHeader, file);
  CUptiResult result = cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
  for (const CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                        CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET}) {
    if (result == CUPTI_SUCCESS) {
      result = cuptiActivityEnable(kind);
    }
  }
  if (result != CUPTI_SUCCESS) {
    const char* reason = "";
    cuptiGetResultString(result, &reason);
    std::fprintf(stderr, "kernel_times: %s\n", reason);
    return 1;
  }
  std::atexit([] { cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED); });
  return 1;
}
