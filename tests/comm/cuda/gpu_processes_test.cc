// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Ranks as processes, a GPU each: high throughput and low latency are as on the CPU, and nobody
// waits for one that is killed.  This process forks, so it may not look for GPUs itself; but where
// MPI has started it, it is a rank.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include "moebius/low_latency.h"
#include "tests/comm/cuda/sides.h"
#include "tests/comm/cuda/wave_reader.h"

namespace moebius::testing {
namespace {

using std::chrono::milliseconds;

// Told by a child.
int count_gpus() {
  std::vector<std::string> errors;
  try {
    run_process_ranks(
        {}, [](Group&) { throw Error(std::to_string(cuda_device_count())); }, &errors);
  } catch (const Error&) {
  }
  return std::stoi(errors.at(0));
}

DispatchProblem make_problem(int num_ranks) {
  DispatchProblem p;
  p.num_ranks = num_ranks;
  p.num_experts = 16;
  p.topk = 4;
  p.hidden = 512;
  for (int r = 0; r < num_ranks; ++r) {
    p.tokens.push_back(30 + 7 * r);
  }
  return p;
}

// Each rank computes the others' part on the CPU, on threads of its own.
void on_cpu(const Topology& topology, auto body) {
  const int per_node = topology.num_nodes() == 1 ? 0 : topology.node_size(0);
  run_thread_ranks({.num_ranks = topology.size, .ranks_per_node = per_node, .pin = false},
                   [&](Group& group) { body(group, group.rank() == topology.rank); });
}

Tensor up(const Tensor& t, const Stream& stream) {
  return to_device(t, stream.device(), stream);
}
Tensor down(const Tensor& t, const Stream& stream) {
  return to_device(t, Device::cpu(), stream);
}
void expect_equal(const Tensor& got, const Tensor& expected, const char* what) {
  EXPECT_TRUE(same_bytes(got, expected)) << what;
}

void check_high_throughput(Group& group) {
  const DispatchProblem p = make_problem(group.size());
  const int rank = group.rank();
  DispatchOutput expected;
  Tensor expected_sum;
  on_cpu(group.topology(), [&](Group& cpu, bool is_mine) {
    const RankInput in = make_input(p, cpu.rank());
    const Stream stream = Stream::cpu(1);
    HighThroughput transport(cpu, p.placement(), small_config(), small_config());
    const DispatchOutput output =
        transport.dispatch({{in.x, in.code}, in.ids, in.weights, 4, {}}, stream);
    const auto sum = transport.combine({output.payloads[0], output.topk_weights, {}, {}},
                                       *output.handle, stream);
    if (is_mine) {
      expected = output;
      expected_sum = sum.x;
    }
  });
  const Stream stream = Stream::cuda(group.device().index);
  const RankInput in = make_input(p, rank);
  HighThroughput transport(group, p.placement(), small_config(16), small_config(16));
  const DispatchInput input{
      {up(in.x, stream), up(in.code, stream)}, up(in.ids, stream), up(in.weights, stream), 4, {}};
  for (int call = 0; call < 20; ++call) {
    const DispatchOutput output = transport.dispatch(input, stream);
    const auto sum = transport.combine({output.payloads[0], output.topk_weights, {}, {}},
                                       *output.handle, stream);
    expect_equal(down(output.payloads[0], stream), expected.payloads[0], "rows");
    expect_equal(down(output.payloads[1], stream), expected.payloads[1], "codes");
    expect_equal(down(output.topk_ids, stream), expected.topk_ids, "ids");
    expect_equal(down(output.topk_weights, stream), expected.topk_weights, "weights");
    expect_equal(down(output.expert_num_tokens, stream), expected.expert_num_tokens, "counts");
    expect_equal(down(sum.x, stream), expected_sum, "sums");
  }
  group.barrier("end");
  expect(!::testing::Test::HasFailure(), "see above");
}

void check_low_latency(Group& group) {
  const DispatchProblem p = make_problem(group.size());
  const LowLatencyOptions options_of{64, p.hidden, p.topk, DType::kBF16};
  Tensor expected;
  // Expert e multiplies by nothing: rows go back as they came.
  on_cpu(group.topology(), [&](Group& cpu, bool is_mine) {
    const RankInput in = make_input(p, cpu.rank());
    const Stream stream = Stream::cpu(1);
    LowLatency transport(cpu, p.placement(), options_of);
    const auto received = transport.dispatch({in.x, in.ids, LowLatencyCast::kNone}, stream);
    const Tensor out = Tensor::empty(in.x.shape(), DType::kBF16);
    transport.combine({received.x, in.ids, in.weights}, *received.handle, stream, out);
    if (is_mine) {
      expected = out;
    }
  });
  const Stream stream = Stream::cuda(group.device().index);
  const RankInput in = make_input(p, group.rank());
  const Tensor x = up(in.x, stream);
  const Tensor ids = up(in.ids, stream);
  const Tensor weights = up(in.weights, stream);
  const Tensor out = Tensor::zeros(in.x.shape(), DType::kBF16, group.device());
  LowLatency transport(group, p.placement(), options_of);
  for (int call = 0; call < 20; ++call) {
    const auto received = transport.dispatch({x, ids, LowLatencyCast::kNone}, stream);
    transport.combine({received.x, ids, weights}, *received.handle, stream, out);
    expect_equal(down(out, stream), expected, "sums");
    transport.check();
  }
  group.barrier("end");
  expect(!::testing::Test::HasFailure(), "see above");
}

class GpuProcesses : public ::testing::TestWithParam<GpuRanks> {
 protected:
  void SetUp() override {
    static const int found = count_gpus();
    if (found < GetParam().num_gpus) {
      GTEST_SKIP() << "skipped: " << (found == 0 ? "no GPU" : "too few GPUs");
    }
    if (!why_no_nccl().empty()) {
      GTEST_SKIP() << "skipped: " << why_no_nccl();
    }
  }

  ProcessGroupOptions options(milliseconds timeout = std::chrono::seconds(20)) const {
    ProcessGroupOptions options;
    options.num_ranks = GetParam().num_ranks;
    options.ranks_per_node = GetParam().ranks_per_node;
    options.timeout = timeout;
    for (int rank = 0; rank < options.num_ranks; ++rank) {
      options.devices.push_back(Device::cuda(rank));
    }
    return options;
  }
  DispatchProblem problem() const { return make_problem(GetParam().num_ranks); }
};

TEST_P(GpuProcesses, HighThroughputIsAsOnTheCpu) {
  run_process_ranks(options(), check_high_throughput);
}

TEST_P(GpuProcesses, LowLatencyIsAsOnTheCpu) {
  run_process_ranks(options(), check_low_latency);
}

// This process is a rank.
TEST(GpuMpi, DispatchIsAsOnTheCpu) {
  if (!launched_by_mpi()) {
    GTEST_SKIP() << "skipped: not started by MPI";
  }
  auto group = make_mpi_group({.timeout = std::chrono::seconds(20)});
  if (cuda_device_count() < group->size()) {
    GTEST_SKIP() << "skipped: needs " << group->size() << " GPUs, found " << cuda_device_count();
  }
  const Device device = Device::cuda(group->rank());
  const auto ranks = make_nccl_group(std::move(group), device);
  check_high_throughput(*ranks);
  check_low_latency(*ranks);
}

// In the middle of a loop of calls.  The others' kernels end by themselves, and every process ends.
void expect_named(const ProcessGroupOptions& options,
                  int guilty,
                  const std::function<void(Group&)>& body) {
  std::vector<std::string> errors;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(run_process_ranks(options, body, &errors), Error);
  const auto took = std::chrono::steady_clock::now() - begin;
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    const std::string& message = errors.at(static_cast<size_t>(rank));
    EXPECT_NE(message.find("rank " + std::to_string(guilty)), std::string::npos)
        << "rank " << rank << ": " << message;
    EXPECT_EQ(message.find("rank " + std::to_string(rank) + " was killed") != std::string::npos,
              rank == guilty)
        << message;
  }
  // Setting up NCCL and ending processes beside the deadline.
  EXPECT_LT(took, options.timeout + std::chrono::seconds(20));
}

TEST_P(GpuProcesses, AKilledRankIsNamedInHighThroughput) {
  if (GetParam().num_ranks == 1) {
    GTEST_SKIP() << "skipped: nobody to miss";
  }
  const DispatchProblem p = problem();
  const int guilty = p.num_ranks - 1;
  expect_named(options(milliseconds(5000)), guilty, [&](Group& group) {
    const Stream stream = Stream::cuda(group.device().index);
    const RankInput in = make_input(p, group.rank());
    HighThroughput transport(group, p.placement(), small_config(16), small_config(16));
    const DispatchInput input{
        {up(in.x, stream)}, up(in.ids, stream), up(in.weights, stream), 4, {}};
    for (int call = 0; call < 100000; ++call) {
      const DispatchOutput output = transport.dispatch(input, stream);
      transport.combine({output.payloads[0], output.topk_weights, {}, {}}, *output.handle, stream);
      if (call == 50 && group.rank() == guilty) {
        raise(SIGKILL);
      }
    }
  });
}

// Where rows come in waves, between their ids and the last of them as well as anywhere else.
TEST_P(GpuProcesses, AKilledRankIsNamedWhileItsRowsAreOnTheirWay) {
  if (GetParam().num_ranks == 1) {
    GTEST_SKIP() << "skipped: nobody to miss";
  }
  const DispatchProblem p = problem();
  const int guilty = p.num_ranks - 1;
  expect_named(options(milliseconds(5000)), guilty, [&](Group& group) {
    const Stream stream = Stream::cuda(group.device().index);
    const Stream reader = Stream::cuda(group.device().index);
    const RankInput in = make_input(p, group.rank());
    HighThroughput transport(group, p.placement(), small_config(16), small_config(16));
    DispatchInput input{{up(in.x, stream)}, up(in.ids, stream), up(in.weights, stream), 4, {}};
    input.early_rows = group.topology().num_nodes() == 1 ? 1 : 0;
    for (int call = 0; call < 100000; ++call) {
      const DispatchOutput output = transport.dispatch(input, stream);
      if (output.arrivals) {
        const Tensor rows = read_by_waves(output, reader);
        reader.synchronize();
      }
      if (call == 50 && group.rank() == guilty) {
        raise(SIGKILL);
      }
    }
  });
}

TEST_P(GpuProcesses, AKilledRankIsNamedInLowLatency) {
  if (GetParam().num_ranks == 1) {
    GTEST_SKIP() << "skipped: nobody to miss";
  }
  const DispatchProblem p = problem();
  const int guilty = p.num_ranks - 1;
  expect_named(options(milliseconds(5000)), guilty, [&](Group& group) {
    const Stream stream = Stream::cuda(group.device().index);
    const RankInput in = make_input(p, group.rank());
    const Tensor x = up(in.x, stream);
    const Tensor ids = up(in.ids, stream);
    const Tensor weights = up(in.weights, stream);
    const Tensor out = Tensor::zeros(in.x.shape(), DType::kBF16, group.device());
    LowLatency transport(group, p.placement(), {64, p.hidden, p.topk, DType::kBF16});
    for (int call = 0; call < 100000; ++call) {
      const auto received = transport.dispatch({x, ids, LowLatencyCast::kNone}, stream);
      transport.combine({received.x, ids, weights}, *received.handle, stream, out);
      if (call % 10 == 9) {
        stream.synchronize();
      }
      if (call == 50 && group.rank() == guilty) {
        raise(SIGKILL);
      }
    }
  });
}

TEST_P(GpuProcesses, AKilledRankIsNamedInACollective) {
  if (GetParam().num_ranks == 1) {
    GTEST_SKIP() << "skipped: nobody to miss";
  }
  const int guilty = GetParam().num_ranks - 1;
  expect_named(options(milliseconds(5000)), guilty, [&](Group& group) {
    const Stream stream = Stream::cuda(group.device().index);
    const std::vector<int64_t> counts(static_cast<size_t>(group.size()), 1000);
    const Tensor in = Tensor::zeros({1000, 1024}, DType::kF32, group.device());
    const Tensor out = Tensor::zeros({1000 * group.size(), 1024}, DType::kF32, group.device());
    for (int call = 0; call < 100000; ++call) {
      all_gatherv(group, "gather", in, counts, out, stream);
      if (call % 10 == 9) {
        stream.synchronize();
      }
      if (call == 53 && group.rank() == guilty) {
        raise(SIGKILL);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Groups,
                         GpuProcesses,
                         ::testing::Values(GpuRanks{"nccl", 1, 1},
                                           GpuRanks{"nccl", 2, 2},
                                           GpuRanks{"nccl", 2, 2, 1},
                                           GpuRanks{"nccl", 4, 4},
                                           GpuRanks{"nccl", 4, 4, 2},
                                           GpuRanks{"nccl", 8, 8}),
                         gpu_ranks_name);

}  // namespace
}  // namespace moebius::testing
