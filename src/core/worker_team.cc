// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/worker_team.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/backoff.h"
#include "core/cpu_sets.h"
#include "core/openmp_executor.h"
#include "core/start_thread.h"
#include "moebius/error.h"
#include "moebius/parallel_executor.h"
#include "moebius/settings.h"

namespace moebius::worker_team {

namespace {

using std::chrono::nanoseconds;

// How long an idle worker looks for the next loop before it sleeps, and a caller for the end of its
// own.  The loops of a layer call follow each other within some 10 us, and the calls of a decoding
// model within 1 ms or so; a thread that has to be woken comes 15 to 50 us late.
constexpr std::chrono::milliseconds kSpinTime{2};

// What all teams of the process share.
struct Process {
  std::atomic<int> num_threads{0};  // callers and workers of all teams
  std::atomic<int> num_processes{1};
  std::atomic<unsigned> num_forks{0};  // on the way from the first process to this one
};
constinit Process process;

// In the child of a fork(), which has only the thread that called it.
void enter_child() {
  process.num_threads.store(0, std::memory_order_relaxed);
  process.num_forks.fetch_add(1, std::memory_order_relaxed);
}

void expect_no_error(int status, std::string_view call) {
  if (status != 0) {
    throw Error(fmt::format("{}: {}", call, std::generic_category().message(status)));
  }
}

// They are counted from the start: the threads of an OpenMP runtime are not in the child, either,
// and it may have had some before our first loop.
const int counting_status = pthread_atfork(nullptr, nullptr, enter_child);

unsigned count_forks() {
  expect_no_error(counting_status, "pthread_atfork");
  return process.num_forks.load(std::memory_order_relaxed);
}

// Whether loops of this thread run on it alone: it is a worker, is in a job, or has begun to end.
constinit thread_local bool runs_alone = false;

// Looks at `state` until it is not `value`, at least once and then for `time`; returns what it saw
// last.  What whoever stored that with release order had written is visible then.
int spin_while(const std::atomic<int>& state, int value, nanoseconds time) {
  constexpr int kLooksPerClock = 64;  // one reading of the clock takes as long as two pauses
  int seen = state.load(std::memory_order_acquire);
  if (seen != value || time.count() == 0) {
    return seen;
  }
  const auto end = std::chrono::steady_clock::now() + time;
  do {
    for (int i = 0; i < kLooksPerClock; ++i) {
      cpu_relax();
      seen = state.load(std::memory_order_acquire);
      if (seen != value) {
        return seen;
      }
    }
  } while (std::chrono::steady_clock::now() < end);
  return seen;
}

// A worker as its caller sees it.  All they tell each other is one word, whose values are:
//   kIdle     the worker spins, or is about to look
//   kAsleep   it sleeps until the word changes
//   kPosted   the caller has a job for it
//   kTaken    it is at the job
//   kAwaited  the same, and the caller sleeps until the word changes
//   kOver     it is to end
// Who may change it:
//   the caller  kIdle, kAsleep -> kPosted    post
//               kPosted -> kIdle             recall: the worker did not take the job and never will
//               kTaken -> kAwaited           recall
//               any -> kOver                 end
//   the worker  kIdle -> kAsleep             await_news
//               kPosted -> kTaken            take
//               kTaken, kAwaited -> kIdle    give_back
// Invariants: a job is written before it is posted, and stays until recall() has returned.  A loop
// never waits for a worker to wake up, only for one that has taken its job.
// Why the default order, sequentially consistent, before each notify_one(): that looks for sleepers
// with a load, which a weaker store could be delayed past.
class alignas(64) Mailbox {  // one cache line each, on which its worker spins
 public:
  // Of the caller.
  void post() {
    // Releases the job; pairs with take.
    if (word_.exchange(kPosted) == kAsleep) {
      word_.notify_one();
    }
  }
  void recall(nanoseconds spin_time) {
    // All that acquires here pairs with give_back: what the job wrote.
    int seen = word_.load(std::memory_order_acquire);
    if (seen == kPosted && word_.compare_exchange_strong(seen, kIdle, std::memory_order_acquire)) {
      return;
    }
    if (seen == kTaken) {
      seen = spin_while(word_, kTaken, spin_time);
    }
    if (seen == kTaken &&
        word_.compare_exchange_strong(seen, kAwaited, std::memory_order_acquire)) {
      word_.wait(kAwaited, std::memory_order_acquire);
    }
  }
  void end() {
    if (word_.exchange(kOver) == kAsleep) {
      word_.notify_one();
    }
  }

  // Of the worker.
  void await_news(nanoseconds spin_time) {
    int seen = spin_while(word_, kIdle, spin_time);
    if (seen == kIdle && word_.compare_exchange_strong(seen, kAsleep, std::memory_order_relaxed)) {
      word_.wait(kAsleep, std::memory_order_relaxed);
    }
  }
  // False when the job was withdrawn, or there is none.
  bool take() {
    int seen = kPosted;
    // pairs with post: the job, and what the caller wrote for it.
    return word_.compare_exchange_strong(seen, kTaken, std::memory_order_acquire,
                                         std::memory_order_relaxed);
  }
  // False when the worker is to end.
  bool give_back() {
    // Releases what the job wrote; pairs with recall.
    const int before = word_.exchange(kIdle);
    if (before == kAwaited) {
      word_.notify_one();
    }
    return before != kOver;
  }
  bool is_over() const { return word_.load(std::memory_order_relaxed) == kOver; }

 private:
  enum { kIdle, kAsleep, kPosted, kTaken, kAwaited, kOver };

  std::atomic<int> word_{kIdle};
};

struct ForeignJob {
  Job job;
  void* context;
};

// On threads of the caller's, too, a loop inside a loop runs on the thread that meets it.
void run_foreign(void* context, int thread_idx) noexcept {
  const auto* given = static_cast<const ForeignJob*>(context);
  const bool before = std::exchange(runs_alone, true);
  given->job(given->context, thread_idx);
  runs_alone = before;
}

void run_on(ParallelExecutor& executor, int num_threads, Job job, void* context) {
  ForeignJob on_foreign{job, context};
  executor.run(num_threads, run_foreign, &on_foreign);
}

// The executor that MOEBIUS_EXECUTOR names; null: the team has threads of its own.
std::shared_ptr<ParallelExecutor> chosen_executor() {
  const std::string name = setting("MOEBIUS_EXECUTOR").value_or("auto");
  expect(name == "auto" || name == "own" || name == "openmp",
         [&] { return fmt::format("MOEBIUS_EXECUTOR is {}, expected auto, own or openmp", name); });
  // The threads of an OpenMP runtime are not in the child of a fork, and GNU's waits for them there
  // for good.
  if (name == "own" || count_forks() > 0) {
    return nullptr;
  }
  return name == "auto" ? find_openmp_executor() : make_openmp_executor();
}

// The workers of one calling thread, which alone calls it.
class Team {
 public:
  Team()
      : executor_(chosen_executor()),
        num_forks_(count_forks()),
        chosen_spin_time_(setting_int("MOEBIUS_SPIN_US")),
        num_cpus_(num_usable_cpus()),
        num_cpus_of_process_(num_usable_cpus_of_process()),
        bind_to_(cpus_to_bind_to()) {
    process.num_threads.fetch_add(1, std::memory_order_relaxed);
  }
  ~Team() {
    for (Worker& worker : workers_) {
      worker.mailbox.end();
    }
    for (Worker& worker : workers_) {
      worker.thread.join();
    }
    process.num_threads.fetch_sub(num_threads(), std::memory_order_relaxed);
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  bool is_of_this_process() const {
    return num_forks_ == process.num_forks.load(std::memory_order_relaxed);
  }

  void run(int num_threads, Job job, void* context) {
    if (executor_ != nullptr) {
      run_on(*executor_, num_threads, job, context);
      return;
    }
    grow(num_threads);
    job_ = job;
    context_ = context;
    spin_time_ = spin_time();
    const auto begin = workers_.begin();
    const auto end = begin + (num_threads - 1);
    std::for_each(begin, end, [](Worker& worker) { worker.mailbox.post(); });
    runs_alone = true;
    job(context, 0);
    runs_alone = false;
    std::for_each(begin, end, [&](Worker& worker) { worker.mailbox.recall(spin_time_); });
  }

 private:
  struct Worker {
    Mailbox mailbox;
    std::thread thread;
  };

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // What a team that could not grow has got stays.
  void grow(int num_threads) {
    while (this->num_threads() < num_threads) {
      const int thread_idx = this->num_threads();
      Worker& worker = workers_.emplace_back();
      try {
        worker.thread = start_thread(
            [&] {
              return fmt::format("parallel loops, number {} of {}", thread_idx + 1, num_threads);
            },
            [this, &worker, thread_idx] { serve(worker.mailbox, thread_idx); });
      } catch (...) {
        workers_.pop_back();
        throw;
      }
      process.num_threads.fetch_add(1, std::memory_order_relaxed);
      if (!bind_to_.empty()) {
        pin_thread(worker.thread.native_handle(),
                   {bind_to_[static_cast<size_t>(thread_idx) % bind_to_.size()]});
      }
    }
  }

  // A worker's life.
  void serve(Mailbox& mailbox, int thread_idx) const noexcept {
    runs_alone = true;
    nanoseconds spin_time{0};
    while (!mailbox.is_over()) {
      mailbox.await_news(spin_time);
      if (mailbox.take()) {
        spin_time = spin_time_;  // stays unchanged until the job is given back
        job_(context_, thread_idx);
        if (!mailbox.give_back()) {
          return;
        }
      }
    }
  }

  // A thread that spins takes the CPU from one that works, where there are more threads than CPUs.
  nanoseconds spin_time() const {
    if (chosen_spin_time_) {
      return std::chrono::microseconds(*chosen_spin_time_);
    }
    const int all_threads = process.num_threads.load(std::memory_order_relaxed) *
                            process.num_processes.load(std::memory_order_relaxed);
    const bool is_crowded = num_threads() > num_cpus_ || all_threads > num_cpus_of_process_;
    return is_crowded ? nanoseconds(0) : kSpinTime;
  }

  // Beginning with the CPU that the caller is on, which it most likely keeps; empty where workers
  // are not bound.
  static std::vector<int> cpus_to_bind_to() {
    if (setting_int("MOEBIUS_BIND_THREADS").value_or(0) == 0) {
      return {};
    }
    std::vector<int> cpus = usable_cpus();
    const auto own = std::find(cpus.begin(), cpus.end(), sched_getcpu());
    if (own != cpus.end()) {
      std::rotate(cpus.begin(), own, cpus.end());
    }
    return cpus;
  }

  const std::shared_ptr<ParallelExecutor> executor_;  // null: the workers below
  const unsigned num_forks_;                          // of the process that has the workers
  const std::optional<int64_t> chosen_spin_time_;     // us
  const int num_cpus_;                                // of the calling thread
  const int num_cpus_of_process_;
  const std::vector<int> bind_to_;  // thread_idx i is bound to CPU [i modulo size]; or empty
  std::deque<Worker> workers_;      // [i] has thread_idx i + 1; addresses stay

  // Written by the caller before it posts, and read by workers that have taken the job.
  Job job_ = nullptr;
  void* context_ = nullptr;
  nanoseconds spin_time_{0};
};

// The calling thread's own, null until it needs one.
constinit thread_local Team* own_team = nullptr;

void end_thread(void* team) {
  runs_alone = true;
  std::unique_ptr<Team> own(static_cast<Team*>(team));
  if (!own->is_of_this_process()) {
    (void)own.release();  // the child has none of the threads, so it cannot join them
  }
}

// Calls end_thread() when the calling thread ends.  Where main() ends, its workers go with the
// process: an idle one touches nothing but its team, which stays.
// Why not a thread_local with a destructor: the C library ends the process when it has no memory to
// note one.
void end_with_thread(Team* team) {
  static const pthread_key_t key = [] {
    pthread_key_t made = 0;
    expect_no_error(pthread_key_create(&made, end_thread), "pthread_key_create");
    return made;
  }();
  expect_no_error(pthread_setspecific(key, team), "pthread_setspecific");
}

Team& team_of_this_thread() {
  if (own_team == nullptr || !own_team->is_of_this_process()) {
    auto team = std::make_unique<Team>();
    end_with_thread(team.get());
    own_team = team.release();
  }
  return *own_team;
}

// The threads of the caller's, if there are any.
struct Foreign {
  std::mutex mutex;
  std::shared_ptr<ParallelExecutor> executor;

  std::shared_ptr<ParallelExecutor> get() {
    const std::lock_guard lock(mutex);
    return executor;
  }
};
constinit std::atomic<bool> has_foreign{false};  // so that loops of our own threads take no lock

Foreign& foreign() {
  static auto& instance = *new Foreign;  // leaked, since threads may outlive main()
  return instance;
}

}  // namespace

void run(int num_threads, Job job, void* context) {
  assert(may_run());
  if (has_foreign.load(std::memory_order_relaxed)) [[unlikely]] {
    if (const std::shared_ptr<ParallelExecutor> executor = foreign().get()) {
      run_on(*executor, num_threads, job, context);
      return;
    }
  }
  team_of_this_thread().run(num_threads, job, context);
}

bool may_run() {
  return !runs_alone;
}

void set_num_processes(int num_processes) {
  process.num_processes.store(num_processes, std::memory_order_relaxed);
}

}  // namespace moebius::worker_team

namespace moebius {

void set_parallel_executor(std::shared_ptr<ParallelExecutor> executor) {
  worker_team::Foreign& foreign = worker_team::foreign();
  std::shared_ptr<ParallelExecutor> before = std::move(executor);  // may end without the lock
  const std::lock_guard lock(foreign.mutex);
  foreign.executor.swap(before);
  worker_team::has_foreign.store(foreign.executor != nullptr, std::memory_order_relaxed);
}

}  // namespace moebius
