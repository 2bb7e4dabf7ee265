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

#ifdef MOEBIUS_HAVE_MPI
#include <mpi.h>
#endif

namespace moebius::testing {

namespace {

bool on_mpi = false;
bool on_processes = false;
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
  return on_mpi ? "mpi" : on_processes ? "processes" : "threads";
}

bool runs_on_mpi() {
  return on_mpi;
}

std::string to_string(const GroupShape& shape) {
  return fmt::format(
      "R{}{}", shape.num_ranks,
      shape.ranks_per_node == 0 ? "" : fmt::format("_nodes_of_{}", shape.ranks_per_node));
}

std::vector<GroupShape> group_shapes() {
  const std::vector<int> sizes = on_mpi         ? std::vector{world_size}
                                 : on_processes ? std::vector{1, 2, 3, 4, 8}
                                                : std::vector{1, 2, 3, 4, 8, 64};
  std::vector<GroupShape> shapes;
  for (const int num_ranks : sizes) {
    for (const int ranks_per_node : {0, 1, 2, 4}) {
      if (ranks_per_node < num_ranks) {
        shapes.push_back({num_ranks, ranks_per_node});
      }
    }
  }
  return shapes;
}

void run_ranks(const GroupShape& shape, const std::function<void(Group&)>& body) {
  if (on_processes) {
    run_process_ranks(
        {.num_ranks = shape.num_ranks, .ranks_per_node = shape.ranks_per_node, .timeout = kTimeout},
        [&](Group& group) {
          body(group);
          if (::testing::Test::HasFailure()) {
            throw Error(
                fmt::format("rank {} did not meet an expectation: see above", group.rank()));
          }
        });
    return;
  }
  if (!on_mpi) {
    run_thread_ranks(
        {.num_ranks = shape.num_ranks, .ranks_per_node = shape.ranks_per_node, .timeout = kTimeout},
        body);
    return;
  }
  const auto group = make_mpi_group({.ranks_per_node = shape.ranks_per_node, .timeout = kTimeout});
  body(*group);
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
  on_mpi = is_given("--group=mpi");
  on_processes = is_given("--group=processes");
  if (on_mpi) {
    start_mpi(&argc, &argv);
  }
  ::testing::InitGoogleTest(&argc, argv);
  if (world_rank > 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailuresOnly);
  }
  const int status = RUN_ALL_TESTS();
  return on_mpi ? finish_mpi(status) : status;
}
