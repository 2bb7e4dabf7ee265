// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The threads of parallel loops.  Under a thread sanitizer, plain variables show what must be
// ordered.
#include "core/worker_team.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/cpu_sets.h"
#include "core/parallel.h"
#include "moebius/error.h"
#include "tests/error_text.h"

namespace {

std::atomic<int64_t> num_allocations{0};

void* allocate(size_t bytes) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  void* block = std::malloc(std::max<size_t>(bytes, 1));
  if (block == nullptr) {
    throw std::bad_alloc();
  }
  return block;
}

}  // namespace

// Not inlined, since GCC 12 takes half of a pair that is for a mismatch.
[[gnu::noinline]] void* operator new(size_t bytes) {
  return allocate(bytes);
}
[[gnu::noinline]] void operator delete(void* block) noexcept {
  std::free(block);
}
[[gnu::noinline]] void operator delete(void* block, size_t) noexcept {
  std::free(block);
}

namespace moebius {
namespace {

using testing::expect_mentions;
using testing::message_of;

class ScopedEnv {
 public:
  ScopedEnv(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~ScopedEnv() { unsetenv(name_); }

 private:
  const char* name_;
};

// Runs `body` on a thread of its own, which begins without a team.
template <typename Body>
void on_new_thread(const Body& body) {
  std::thread(body).join();
}

// Until `count` is at least `n`, so tasks that wait for each other need threads of their own; false
// when they do not come.
bool await(const std::atomic<int>& count, int n) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (count.load() < n) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

// A loop of as many tasks as threads, each of which waits until all have begun.
bool runs_side_by_side(int num_threads) {
  std::atomic<int> begun{0};
  std::atomic<bool> all_came{true};
  parallel_tasks(Stream::cpu(num_threads), num_threads, [&](int64_t, int) {
    ++begun;
    if (!await(begun, num_threads)) {
      all_came = false;
    }
  });
  return all_came;
}

int num_threads_of_process() {
  int n = 0;
  for ([[maybe_unused]] const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    ++n;
  }
  return n;
}

// A joined thread may be listed for a moment longer.
bool becomes_num_threads(int n) {
  for (int i = 0; i < 2000 && num_threads_of_process() != n; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return num_threads_of_process() == n;
}

// As long as it lives, no thread can be started: none gets a stack of this size.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    pthread_attr_t attributes;
    pthread_getattr_default_np(&attributes);
    pthread_attr_getstacksize(&attributes, &usual_);
    pthread_attr_destroy(&attributes);
    set(size_t{1} << 47);
  }
  ~NoMoreThreads() { set(usual_); }

 private:
  static void set(size_t bytes) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, bytes);
    EXPECT_EQ(pthread_setattr_default_np(&attributes), 0);
    pthread_attr_destroy(&attributes);
  }

  size_t usual_ = 0;
};

TEST(WorkerTeam, TasksRunSideBySide) {
  EXPECT_TRUE(runs_side_by_side(2));
  EXPECT_TRUE(runs_side_by_side(5));
  EXPECT_TRUE(runs_side_by_side(3));
}

TEST(WorkerTeam, WhatIsWrittenBeforeIsSeenInsideAndWhatIsWrittenInsideIsSeenAfter) {
  for (const char* spin_us : {"0", "200"}) {
    const ScopedEnv env("MOEBIUS_SPIN_US", spin_us);
    on_new_thread([] {
      const Stream stream = Stream::cpu(3);
      for (int round = 0; round < 300; ++round) {
        std::array<int, 3> values{};
        std::array<int, 3> results{};
        values.fill(round);
        parallel_tasks(stream, 3, [&](int64_t task, int) {
          results[static_cast<size_t>(task)] = values[static_cast<size_t>(task)] + 1;
          if (round % 50 == 0) {  // long enough for the caller to sleep, too
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
        });
        for (const int result : results) {
          ASSERT_EQ(result, round + 1);
        }
      }
    });
  }
}

// A task of one loop waits for a whole loop of another thread.
TEST(WorkerTeam, LoopsOfTwoThreadsDoNotWaitForEachOther) {
  std::atomic<int> is_waiting{0};
  std::atomic<int> is_done{0};
  std::atomic<bool> in_time{true};
  std::thread other([&] {
    in_time = in_time && await(is_waiting, 2);
    parallel_tasks(Stream::cpu(2), 100, [](int64_t, int) {});
    is_done = 1;
  });
  parallel_tasks(Stream::cpu(2), 2, [&](int64_t, int) {
    ++is_waiting;
    if (!await(is_done, 1)) {
      in_time = false;
    }
  });
  other.join();
  EXPECT_TRUE(in_time);
}

TEST(WorkerTeam, ManyThreadsHaveTeamsAtOnce) {
  constexpr int kCallers = 6;
  std::array<int64_t, kCallers> sums{};
  std::vector<std::thread> callers;
  for (size_t caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&sums, caller] {
      const Stream stream = Stream::cpu(3);
      for (int round = 0; round < 100; ++round) {
        std::array<int64_t, 20> parts{};
        parallel_tasks(stream, 20,
                       [&](int64_t task, int) { parts[static_cast<size_t>(task)] = task; });
        for (const int64_t part : parts) {
          sums[caller] += part;
        }
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  for (const int64_t sum : sums) {
    EXPECT_EQ(sum, 100 * 190);
  }
}

TEST(WorkerTeam, ALoopInsideALoopRunsOnTheThreadThatMeetsIt) {
  const Stream stream = Stream::cpu(3);
  std::atomic<int> elsewhere{0};
  parallel_tasks(stream, 6, [&](int64_t, int) {
    const auto self = std::this_thread::get_id();
    parallel_tasks(stream, 8, [&](int64_t, int thread_idx) {
      elsewhere += std::this_thread::get_id() != self || thread_idx != 0;
    });
  });
  EXPECT_EQ(elsewhere, 0);
}

TEST(WorkerTeam, AThreadThatEndsGivesItsWorkersBack) {
  on_new_thread([] {});  // the thread sanitizer has a thread of its own from the first one on
  const int before = num_threads_of_process();
  on_new_thread([&] {
    EXPECT_TRUE(runs_side_by_side(4));
    EXPECT_EQ(num_threads_of_process(), before + 4);
  });
  EXPECT_TRUE(becomes_num_threads(before)) << num_threads_of_process() << ", expected " << before;
}

// Workers that have had no job, sleep, spin, or were just given back.
TEST(WorkerTeam, TeamsEndAtAnyMoment) {
  for (int round = 0; round < 100; ++round) {
    const ScopedEnv env("MOEBIUS_SPIN_US", round % 2 == 0 ? "0" : "1000");
    on_new_thread([&] {
      for (int i = 0; i < round % 3 + 1; ++i) {
        parallel_tasks(Stream::cpu(3), 3, [](int64_t, int) {});
      }
      std::this_thread::sleep_for(std::chrono::microseconds(round % 7 * 30));
    });
  }
}

TEST(WorkerTeam, AfterAnExceptionTheNextLoopRunsAsEver) {
  const Stream stream = Stream::cpu(3);
  for (int round = 0; round < 50; ++round) {
    EXPECT_EQ(message_of<std::runtime_error>([&] {
                parallel_tasks(stream, 100, [](int64_t task, int) {
                  if (task == 40) {
                    throw std::runtime_error("task 40");
                  }
                });
              }),
              "task 40");
    std::atomic<int> runs{0};
    parallel_tasks(stream, 100, [&](int64_t, int) { ++runs; });
    EXPECT_EQ(runs, 100);
  }
}

TEST(WorkerTeam, AThreadThatCannotBeStartedIsAnErrorBeforeAnyTaskRuns) {
  on_new_thread([] {
    EXPECT_TRUE(runs_side_by_side(2));
    std::atomic<int> runs{0};
    const auto count = [&](int64_t, int) { ++runs; };
    {
      const NoMoreThreads limit;
      for (int round = 0; round < 2; ++round) {
        const std::string message =
            message_of<Error>([&] { parallel_tasks(Stream::cpu(4), 10, count); });
        expect_mentions(message, {"cannot start a thread for parallel loops, number 3 of 4",
                                  "Resource temporarily unavailable"});
        EXPECT_EQ(message.find('\n'), std::string::npos);
      }
      EXPECT_EQ(runs, 0);
      EXPECT_TRUE(runs_side_by_side(2)) << "the threads there are still serve";
    }
    EXPECT_TRUE(runs_side_by_side(4));
  });
}

TEST(WorkerTeam, ALoopAllocatesNothing) {
  const Stream stream = Stream::cpu(3);
  std::atomic<int64_t> sum{0};
  const auto loop = [&] { parallel_tasks(stream, 30, [&](int64_t task, int) { sum += task; }); };
  loop();
  const int64_t before = num_allocations;
  for (int round = 0; round < 20; ++round) {
    loop();
  }
  EXPECT_EQ(num_allocations, before);
  EXPECT_EQ(sum, 21 * 435);
}

// The child has only the thread that forked, so it needs workers of its own.
TEST(WorkerTeam, AForkedProcessStartsAnew) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer allows no threads in a child of several threads";
#endif
  EXPECT_TRUE(runs_side_by_side(3));
  for (int round = 0; round < 3; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      const bool ok = num_threads_of_process() == 1 && runs_side_by_side(2) &&
                      runs_side_by_side(4) && num_threads_of_process() == 4;
      _exit(ok ? 0 : 1);
    }
    ASSERT_GT(child, 0);
    EXPECT_TRUE(runs_side_by_side(3));
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

// exit() runs what a program does at its end, while workers spin or sleep.
TEST(WorkerTeam, AProcessEndsWellWithWorkersAround) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer allows no threads in a child of several threads";
#endif
  for (const char* spin_us : {"0", "1000000"}) {
    const ScopedEnv env("MOEBIUS_SPIN_US", spin_us);
    EXPECT_EXIT(
        {
          std::thread([] {
            runs_side_by_side(3);
            std::exit(7);
          }).join();
        },
        ::testing::ExitedWithCode(7), "");
  }
}

TEST(WorkerTeam, SettingsThatAreNotUnderstoodAreRefusedBeforeAnyTaskRuns) {
  for (const char* name : {"MOEBIUS_SPIN_US", "MOEBIUS_BIND_THREADS"}) {
    const ScopedEnv env(name, "active");
    on_new_thread([&] {
      int runs = 0;
      expect_mentions(
          message_of([&] { parallel_tasks(Stream::cpu(2), 2, [&](int64_t, int) { ++runs; }); }),
          {name, "active"});
      EXPECT_EQ(runs, 0);
    });
  }
}

TEST(WorkerTeam, WorkersCanBeBoundToOneCpuEach) {
  const auto all = usable_cpus();
  const ScopedEnv env("MOEBIUS_BIND_THREADS", "1");
  on_new_thread([&] {
    const int num_threads = static_cast<int>(std::min<size_t>(all.size(), 4)) + 1;
    std::vector<std::vector<int>> cpus(static_cast<size_t>(num_threads));
    std::atomic<int> begun{0};
    parallel_tasks(Stream::cpu(num_threads), num_threads, [&](int64_t, int thread_idx) {
      ++begun;
      EXPECT_TRUE(await(begun, num_threads));
      cpus[static_cast<size_t>(thread_idx)] = usable_cpus();
    });
    EXPECT_EQ(cpus[0], all) << "the caller stays as it was";
    std::set<int> bound;
    for (size_t i = 1; i < cpus.size(); ++i) {
      EXPECT_EQ(cpus[i].size(), 1u);
      bound.insert(cpus[i].begin(), cpus[i].end());
    }
    EXPECT_EQ(bound.size(), cpus.size() - 1) << "each has a CPU of its own";
  });
}

}  // namespace
}  // namespace moebius
