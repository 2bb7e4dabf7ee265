// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/openmp_executor.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "moebius/error.h"

namespace moebius {

namespace {

// Calls fn(data) on up to num_threads threads, the calling one among them, and returns when all of
// them have; compilers make it of `#pragma omp parallel`.
using Parallel = void (*)(void (*fn)(void*), void* data, unsigned num_threads, unsigned flags);
using ThreadNum = int (*)();   // which of them the calling thread is, from 0
using MaxThreads = int (*)();  // how many loops that name no number get

struct Share {
  ParallelExecutor::Job job;
  void* context;
  int num_threads;
  ThreadNum thread_num;
};

void run_share(void* data) {
  const auto* share = static_cast<const Share*>(data);
  const int thread_idx = share->thread_num();
  if (thread_idx < share->num_threads) {
    share->job(share->context, thread_idx);
  }
}

class OpenmpExecutor final : public ParallelExecutor {
 public:
  OpenmpExecutor(Parallel parallel, ThreadNum thread_num, MaxThreads max_threads)
      : parallel_(parallel), thread_num_(thread_num), max_threads_(max_threads) {}

  // Why the loop gets as many threads as those of others: GNU's runtime ends threads where a loop
  // has fewer of them than the one before, and makes them again for the next.
  void run(int num_threads, Job job, void* context) override {
    Share share{job, context, num_threads, thread_num_};
    const int team = std::max(num_threads, max_threads_());
    parallel_(run_share, &share, static_cast<unsigned>(team), 0);
  }

 private:
  Parallel parallel_;
  ThreadNum thread_num_;
  MaxThreads max_threads_;
};

// The names under which the process has loaded what may be an OpenMP runtime.
std::vector<std::string> loaded_runtimes() {
  std::vector<std::string> names;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* found) {
        const std::string_view path = info->dlpi_name;
        const std::string_view file = path.substr(path.rfind('/') + 1);
        for (const std::string_view name : {"libgomp", "libomp", "libiomp5"}) {
          if (file.starts_with(name)) {
            static_cast<std::vector<std::string>*>(found)->emplace_back(path);
          }
        }
        return 0;
      },
      &names);
  return names;
}

}  // namespace

std::shared_ptr<ParallelExecutor> find_openmp_executor() {
  for (const std::string& name : loaded_runtimes()) {
    // The handle is kept, and with it the runtime.
    void* runtime = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (runtime == nullptr) {
      continue;
    }
    const auto parallel = reinterpret_cast<Parallel>(dlsym(runtime, "GOMP_parallel"));
    const auto thread_num = reinterpret_cast<ThreadNum>(dlsym(runtime, "omp_get_thread_num"));
    const auto max_threads = reinterpret_cast<MaxThreads>(dlsym(runtime, "omp_get_max_threads"));
    if (parallel != nullptr && thread_num != nullptr && max_threads != nullptr) {
      return std::make_shared<OpenmpExecutor>(parallel, thread_num, max_threads);
    }
  }
  return nullptr;
}

std::shared_ptr<ParallelExecutor> make_openmp_executor() {
  if (std::shared_ptr<ParallelExecutor> found = find_openmp_executor()) {
    return found;
  }
  throw Unsupported(
      "MOEBIUS_EXECUTOR is openmp, and the process has loaded no OpenMP runtime (libgomp, libomp "
      "or libiomp5), expected one, as torch loads it");
}

}  // namespace moebius
