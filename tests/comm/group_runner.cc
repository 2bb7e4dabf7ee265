// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// This file also has the main() of the programs that use it.
#include "tests/comm/group_runner.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

#include "tests/comm/piped_processes.h"

#ifdef MOEBIUS_HAVE_MPI
#include <mpi.h>
#endif

namespace moebius::testing {

namespace {

enum class Kind {
  kThreads,
  kOwnThreads,
  kSplitThreads,
  kProcesses,
  kOwnProcesses,
  kSplitProcesses,
  kMpi,
  kSplitMpi,
  kMpiComms
};
constexpr std::pair<const char*, Kind> kKinds[] = {
    {"threads", Kind::kThreads},
    {"own_threads", Kind::kOwnThreads},
    {"split_threads", Kind::kSplitThreads},
    {"processes", Kind::kProcesses},
    {"own_processes", Kind::kOwnProcesses},
    {"split_processes", Kind::kSplitProcesses},
    {"mpi", Kind::kMpi},
    {"split_mpi", Kind::kSplitMpi},
    {"mpi_comms", Kind::kMpiComms},
};
Kind kind = Kind::kThreads;
int world_size = 0;
int world_rank = 0;

// It is generous, since other processes may hold the CPUs.
constexpr std::chrono::seconds kTimeout{60};

// All ranks of a job run the same tests.  Rank 0 prints them all; the others print only their
// failures.
class FailuresOnly : public ::testing::EmptyTestEventListener {
 public:
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (result.failed()) {
      std::fprintf(stderr, "[rank %d of the job] %s:%d: %s\n", world_rank,
                   result.file_name() == nullptr ? "?" : result.file_name(), result.line_number(),
                   result.message());
    }
  }
};

void start_mpi(int* argc, char*** argv) {
#ifdef MOEBIUS_HAVE_MPI
  int provided = 0;
  MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
#else
  (void)argc;
  (void)argv;
#endif
}

int finish_mpi(int status) {
#ifdef MOEBIUS_HAVE_MPI
  if (status != 0) {
    MPI_Abort(MPI_COMM_WORLD, status);  // a rank whose test failed may have peers that wait
  }
  MPI_Finalize();
#endif
  return status;
}

}  // namespace

std::string_view runner_name() {
  return runs_on_mpi() ? "mpi" : kind >= Kind::kProcesses ? "processes" : "threads";
}

bool runs_on_mpi() {
  return kind >= Kind::kMpi;
}

bool runs_on_forked_ranks() {
  return runner_name() == "processes";
}

std::string to_string(const GroupShape& shape) {
  return fmt::format(
      "R{}{}", shape.num_ranks,
      shape.ranks_per_node == 0 ? "" : fmt::format("_nodes_of_{}", shape.ranks_per_node));
}

std::vector<GroupShape> group_shapes() {
  // Of a split job there are two halves.
  const int num_mpi = kind == Kind::kMpi ? world_size : world_size / 2;
  const std::vector<int> sizes = runs_on_mpi()              ? std::vector{num_mpi}
                                 : kind == Kind::kThreads   ? std::vector{1, 2, 3, 4, 8, 64}
                                 : kind == Kind::kProcesses ? std::vector{1, 2, 3, 4, 8}
                                                            : std::vector{1, 4};
  constexpr int kMostNodes = 16;  // more take long and show nothing else
  std::vector<GroupShape> shapes;
  for (const int num_ranks : sizes) {
    for (const int ranks_per_node : {0, 1, 2, 4}) {
      const int num_nodes = ranks_per_node == 0 ? 1 : num_ranks / ranks_per_node;
      if (ranks_per_node < num_ranks && num_nodes <= kMostNodes) {
        shapes.push_back({num_ranks, ranks_per_node});
      }
    }
  }
  return shapes;
}

namespace {

// The test has threads of its own.  A rank that throws says so, like those of run_thread_ranks().
void run_own_threads(const ThreadGroupOptions& options, const std::function<void(Group&)>& body) {
  std::vector<std::unique_ptr<Group>> groups = make_thread_groups(options.num_ranks, options);
  std::vector<std::exception_ptr> exceptions(groups.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < groups.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Group> group = std::move(groups[rank]);
      try {
        body(*group);
      } catch (const std::exception& error) {
        exceptions[rank] = std::current_exception();
        group->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::exception_ptr& exception : exceptions) {
    if (exception) {
      std::rethrow_exception(exception);
    }
  }
}

void run_own_processes(const ProcessGroupOptions& options,
                       const std::function<void(Group&)>& body) {
  PipedProcesses processes(options, [&](const Bootstrap& bootstrap) {
    const auto group = make_process_group(bootstrap);
    try {
      body(*group);
    } catch (const std::exception& error) {
      group->abort(error.what());
      throw;
    }
  });
  std::vector<PipedReport> reports = processes.wait(4 * kTimeout);
  std::stable_sort(reports.begin(), reports.end(), [](const auto& a, const auto& b) {
    return a.message.empty() == b.message.empty() ? a.ended < b.ended : !a.message.empty();
  });
  for (const PipedReport& report : reports) {
    expect(report.has_reported, "a process has not ended by itself");
    if (!report.message.empty()) {
      throw Error(report.message);  // of the first that failed
    }
  }
}

void run_mpi(const GroupShape& shape, const std::function<void(Group&)>& body) {
#ifdef MOEBIUS_HAVE_MPI
  if (kind == Kind::kMpiComms) {
    MPI_Comm half = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, 0, &half);
    auto group = make_mpi_group(
        {.ranks_per_node = shape.ranks_per_node, .timeout = kTimeout, .comm = &half});
    MPI_Comm_free(&half);  // the group has its own
    return body(*group);
  }
#endif
  const bool is_split = kind == Kind::kSplitMpi;
  const auto group = make_mpi_group(
      {.ranks_per_node = (is_split ? 2 : 1) * shape.ranks_per_node, .timeout = kTimeout});
  body(is_split ? *group->split(group->rank() % 2) : *group);
}

}  // namespace

void run_ranks(const GroupShape& shape, const std::function<void(Group&)>& body) {
  const bool is_split = kind == Kind::kSplitThreads || kind == Kind::kSplitProcesses;
  const int factor = is_split ? 2 : 1;
  const int num_ranks = factor * shape.num_ranks;
  const int ranks_per_node = factor * shape.ranks_per_node;
  const auto checked = [&](Group& group) {
    body(group);
    if (runs_on_forked_ranks() && ::testing::Test::HasFailure()) {
      throw Error(fmt::format("rank {} did not meet an expectation: see above", group.rank()));
    }
  };
  const auto on_rank = [&](Group& group) {
    const auto part = is_split ? group.split(group.rank() % 2 == 0 ? 0 : -1) : nullptr;
    if (part || !is_split) {
      checked(part ? *part : group);
    }
  };
  const ThreadGroupOptions on_threads{
      .num_ranks = num_ranks, .ranks_per_node = ranks_per_node, .timeout = kTimeout};
  const ProcessGroupOptions on_processes{
      .num_ranks = num_ranks, .ranks_per_node = ranks_per_node, .timeout = kTimeout};
  switch (kind) {
    case Kind::kThreads:
    case Kind::kSplitThreads:
      return run_thread_ranks(on_threads, on_rank);
    case Kind::kOwnThreads:
      return run_own_threads(on_threads, on_rank);
    case Kind::kProcesses:
    case Kind::kSplitProcesses:
      return run_process_ranks(on_processes, on_rank);
    case Kind::kOwnProcesses:
      return run_own_processes(on_processes, on_rank);
    default:
      run_mpi(shape, on_rank);
  }
}

RankCounts::RankCounts(int num_ranks) {
  const size_t bytes = static_cast<size_t>(num_ranks) * sizeof(std::atomic<int>);
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);  // zeros
  expect(memory != MAP_FAILED, "no memory to share with forked ranks");
  counts_ = {static_cast<std::atomic<int>*>(memory), static_cast<size_t>(num_ranks)};
}

RankCounts::~RankCounts() {
  munmap(counts_.data(), counts_.size_bytes());
}

}  // namespace moebius::testing

int main(int argc, char** argv) {
  using namespace moebius::testing;
  const auto is_given = [&](const char* wanted) {
    return std::any_of(argv + 1, argv + argc,
                       [&](const char* arg) { return std::strcmp(arg, wanted) == 0; });
  };
  for (const auto& [name, its_kind] : kKinds) {
    if (is_given(fmt::format("--group={}", name).c_str())) {
      kind = its_kind;
    }
  }
  if (runs_on_mpi()) {
    start_mpi(&argc, &argv);
  }
  if (kind != Kind::kThreads) {
    // Other tests start ranks of their own, or none, whatever the kind.
    GTEST_FLAG_SET(filter, "*/*:GroupRunner.*:LargeMessages.*");
  }
  ::testing::InitGoogleTest(&argc, argv);
  if (world_rank > 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresOnly);
  }
  const int status = RUN_ALL_TESTS();
  return runs_on_mpi() ? finish_mpi(status) : status;
}
