// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Parallel loops on the threads of an OpenMP runtime that the process has loaded.
#include "core/openmp_executor.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "core/parallel.h"
#include "tests/error_text.h"
#include "tests/scoped_setting.h"

namespace moebius {
namespace {

using testing::expect_error;
using testing::ScopedSetting;

// Settings of threads are read at the first loop of a thread, so each case has a thread of its own.
void on_new_thread(const std::function<void()>& body) {
  std::thread(body).join();
}

void run_a_loop() {
  parallel_tasks(Stream::cpu(2), 2, [](int64_t, int) {});
}

TEST(OpenmpExecutor, UnknownNamesAndMissingRuntimesAreRefused) {
  on_new_thread([] {
    const ScopedSetting setting("MOEBIUS_EXECUTOR", "tbb");
    expect_error({"MOEBIUS_EXECUTOR is tbb", "auto, own or openmp"}, run_a_loop);
  });
  if (dlopen("libgomp.so.1", RTLD_NOW | RTLD_NOLOAD) != nullptr) {
    return;  // something has loaded a runtime already
  }
  on_new_thread([] {
    const ScopedSetting setting("MOEBIUS_EXECUTOR", "openmp");
    expect_error({"no OpenMP runtime"}, run_a_loop);
  });
}

TEST(OpenmpExecutor, EveryTaskIsDoneOnceOnThreadsOfTheRuntime) {
  void* runtime = dlopen("libgomp.so.1", RTLD_NOW);
  if (runtime == nullptr) {
    GTEST_SKIP() << "there is no libgomp.so.1";
  }
  const auto thread_num = reinterpret_cast<int (*)()>(dlsym(runtime, "omp_get_thread_num"));
  const auto in_parallel = reinterpret_cast<int (*)()>(dlsym(runtime, "omp_in_parallel"));
  ASSERT_NE(thread_num, nullptr);
  ASSERT_NE(in_parallel, nullptr);
  on_new_thread([&] {
    const ScopedSetting setting("MOEBIUS_EXECUTOR", "openmp");
    for (const int num_threads : {2, 4, 3, 4}) {
      constexpr int64_t kNumTasks = 1000;
      std::vector<std::atomic<int>> done(kNumTasks);
      std::atomic<int> num_wrong = 0;
      std::atomic<int64_t> num_nested = 0;
      parallel_tasks(Stream::cpu(num_threads), kNumTasks, [&](int64_t task, int thread_idx) {
        done[static_cast<size_t>(task)].fetch_add(1);
        num_wrong += thread_idx != thread_num() || thread_idx >= num_threads || !in_parallel();
        // A loop inside a loop runs on the thread that meets it.
        parallel_tasks(Stream::cpu(2), 3, [&](int64_t, int inner) {
          num_wrong += inner != 0;
          num_nested.fetch_add(1);
        });
      });
      EXPECT_EQ(num_wrong, 0);
      EXPECT_EQ(num_nested, 3 * kNumTasks);
      for (const std::atomic<int>& count : done) {
        ASSERT_EQ(count, 1);
      }
    }
  });
}

// Whether a loop of a new thread runs on threads of the runtime.
bool runs_on_the_runtime(int (*in_parallel)()) {
  std::atomic<bool> is_parallel = false;
  on_new_thread([&] {
    parallel_tasks(Stream::cpu(2), 2, [&](int64_t, int) {
      if (in_parallel() != 0) {
        is_parallel = true;
      }
    });
  });
  return is_parallel;
}

TEST(OpenmpExecutor, IsTakenWhereThereIsARuntimeAndNotInTheChildOfAFork) {
  void* runtime = dlopen("libgomp.so.1", RTLD_NOW);
  if (runtime == nullptr) {
    GTEST_SKIP() << "there is no libgomp.so.1";
  }
  const auto in_parallel = reinterpret_cast<int (*)()>(dlsym(runtime, "omp_in_parallel"));
  ASSERT_NE(in_parallel, nullptr);
  EXPECT_TRUE(runs_on_the_runtime(in_parallel));
  {
    const ScopedSetting setting("MOEBIUS_EXECUTOR", "own");
    EXPECT_FALSE(runs_on_the_runtime(in_parallel));
  }
  for (const char* const name : {"auto", "openmp"}) {
    const ScopedSetting setting("MOEBIUS_EXECUTOR", name);
    run_a_loop();  // The thread that forks has used the runtime, whose threads the child lacks.
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      run_a_loop();
      _exit(runs_on_the_runtime(in_parallel) ? 1 : 0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << name;
  }
}

TEST(OpenmpExecutor, LoopsOfSeveralThreadsDoNotWaitForEachOther) {
  if (dlopen("libgomp.so.1", RTLD_NOW) == nullptr) {
    GTEST_SKIP() << "there is no libgomp.so.1";
  }
  const ScopedSetting setting("MOEBIUS_EXECUTOR", "openmp");
  std::atomic<int> num_inside = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 2; ++caller) {
    callers.emplace_back([&] {
      parallel_tasks(Stream::cpu(2), 2, [&](int64_t task, int) {
        if (task == 0) {
          num_inside.fetch_add(1);
          while (num_inside < 2) {  // until the other caller's loop runs, too
            std::this_thread::yield();
          }
        }
      });
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  EXPECT_EQ(num_inside, 2);
}

}  // namespace
}  // namespace moebius
