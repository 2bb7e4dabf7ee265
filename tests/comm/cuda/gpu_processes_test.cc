// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Ranks as processes with a GPU each: high throughput and low latency give what they give on the
// CPU, and no rank waits for one that is killed.  This process forks, so it may not look for GPUs
// itself, unless MPI has started it as a rank.
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

// A child process counts them and tells this one.
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
  return with_tokens({.num_experts = 16, .topk = 4, .hidden = 512}, num_ranks, 30, 7);
}

// Calls body(group, is_mine) on threads that stand for all ranks on the CPU; each rank runs all of
// them for itself.
void on_cpu(const Topology& topology, auto body) {
  const int per_node = topology.num_nodes() == 1 ? 0 : topology.node_size(0);
  run_thread_ranks({.num_ranks = topology.size, .ranks_per_node = per_node, .pin = false},
                   [&](Group& group) { body(group, group.rank() == topology.rank); });
}

Tensor down(const Tensor& t, const Stream& stream) {
  return to_device(t, Device::cpu(), stream);
}
void expect_equal(const Tensor& got, const Tensor& expected, const char* what) {
  EXPECT_TRUE(same_bytes(got, expected)) << what;
}

// What a rank sends, on the stream's device.
DispatchInput input_on(const DispatchProblem& p, int rank, const Stream& stream) {
  const RankInput in = make_input(p, rank);
  const auto up = [&](const Tensor& t) { return to_device(t, stream.device(), stream); };
  return {{up(in.x), up(in.code)}, up(in.ids), up(in.weights), 4, {}};
}

LowLatencyOptions low_latency_options(const DispatchProblem& p) {
  return {64, p.hidden, p.topk, DType::kBF16};
}

// Rows go back as they came.
void pass_through(LowLatency& transport,
                  const DispatchInput& in,
                  const Stream& stream,
                  const Tensor& out) {
  const auto received =
      transport.dispatch({in.payloads[0], in.topk_ids, LowLatencyCast::kNone}, stream);
  transport.combine({received.x, in.topk_ids, in.topk_weights}, *received.handle, stream, out);
}

void check_high_throughput(Group& group) {
  const DispatchProblem p = make_problem(group.size());
  DispatchOutput expected;
  Tensor expected_sum;
  on_cpu(group.topology(), [&](Group& cpu, bool is_mine) {
    const Stream stream = Stream::cpu(1);
    HighThroughput transport(cpu, p.placement(), small_config(), small_config());
    const DispatchOutput output = transport.dispatch(input_on(p, cpu.rank(), stream), stream);
    const auto sum = transport.combine(rows_of(output), *output.handle, stream);
    if (is_mine) {
      expected = output;
      expected_sum = sum.x;
    }
  });
  const Stream stream = Stream::cuda(group.device().index);
  HighThroughput transport(group, p.placement(), small_config(16), small_config(16));
  const DispatchInput input = input_on(p, group.rank(), stream);
  for (int call = 0; call < 20; ++call) {
    const DispatchOutput output = transport.dispatch(input, stream);
    const auto sum = transport.combine(rows_of(output), *output.handle, stream);
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
  Tensor expected;
  on_cpu(group.topology(), [&](Group& cpu, bool is_mine) {
    const Stream stream = Stream::cpu(1);
    LowLatency transport(cpu, p.placement(), low_latency_options(p));
    const DispatchInput in = input_on(p, cpu.rank(), stream);
    const Tensor out = Tensor::empty(in.payloads[0].shape(), DType::kBF16);
    pass_through(transport, in, stream, out);
    if (is_mine) {
      expected = out;
    }
  });
  const Stream stream = Stream::cuda(group.device().index);
  const DispatchInput in = input_on(p, group.rank(), stream);
  const Tensor out = Tensor::zeros(in.payloads[0].shape(), DType::kBF16, group.device());
  LowLatency transport(group, p.placement(), low_latency_options(p));
  for (int call = 0; call < 20; ++call) {
    pass_through(transport, in, stream, out);
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
    if (GetParam().provider == "nccl" && !why_no_nccl().empty()) {
      GTEST_SKIP() << "skipped: " << why_no_nccl();
    }
  }

  ProcessGroupOptions options(milliseconds timeout = std::chrono::seconds(20)) const {
    ProcessGroupOptions options;
    options.num_ranks = GetParam().num_ranks;
    options.ranks_per_node = GetParam().ranks_per_node;
    options.timeout = timeout;
    options.nccl = GetParam().provider == "nccl";
    for (int rank = 0; rank < options.num_ranks; ++rank) {
      options.devices.push_back(Device::cuda(rank % GetParam().num_gpus));
    }
    return options;
  }
};

TEST_P(GpuProcesses, HighThroughputIsAsOnTheCpu) {
  run_process_ranks(options(), check_high_throughput);
}

TEST_P(GpuProcesses, LowLatencyIsAsOnTheCpu) {
  run_process_ranks(options(), check_low_latency);
}

// Here this process is a rank.
TEST(GpuMpi, DispatchIsAsOnTheCpu) {
  if (!launched_by_mpi()) {
    GTEST_SKIP() << "skipped: not started by MPI";
  }
  auto group = make_mpi_group({.timeout = std::chrono::seconds(20)});
  if (cuda_device_count() < 1) {
    GTEST_SKIP() << "skipped: needs a GPU";
  }
  const bool has_gpu_each = cuda_device_count() >= group->size();
  const Device device = Device::cuda(group->rank() % cuda_device_count());
  const auto ranks = has_gpu_each && why_no_nccl().empty()
                         ? make_nccl_group(std::move(group), device)
                         : make_cuda_group(std::move(group), device);
  check_high_throughput(*ranks);
  check_low_latency(*ranks);
}

// Makes calls until the last rank is killed in the middle of them.
void call_until_killed(const Group& group, const std::function<void(int number)>& call) {
  for (int number = 0; number < 100000; ++number) {
    call(number);
    if (number == 53 && group.rank() == group.size() - 1) {
      raise(SIGKILL);
    }
  }
}

// The last rank is killed in `body`.  Every process ends, as the others' kernels end by themselves,
// and names it.
void expect_last_is_named(const ProcessGroupOptions& options,
                          const std::function<void(Group& group, const Stream& stream)>& body) {
  const int guilty = options.num_ranks - 1;
  if (guilty == 0) {
    GTEST_SKIP() << "skipped: nobody to miss";
  }
  std::vector<std::string> errors;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(
      run_process_ranks(
          options, [&](Group& group) { body(group, Stream::cuda(group.device().index)); }, &errors),
      Error);
  const auto took = std::chrono::steady_clock::now() - begin;
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    const std::string& message = errors.at(static_cast<size_t>(rank));
    EXPECT_NE(message.find("rank " + std::to_string(guilty)), std::string::npos)
        << "rank " << rank << ": " << message;
    EXPECT_EQ(message.find("rank " + std::to_string(rank) + " was killed") != std::string::npos,
              rank == guilty)
        << message;
  }
  // Beside the deadline it takes time to set up NCCL and to end processes.
  EXPECT_LT(took, options.timeout + std::chrono::seconds(20));
}

TEST_P(GpuProcesses, AKilledRankIsNamedInHighThroughput) {
  expect_last_is_named(options(milliseconds(5000)), [](Group& group, const Stream& stream) {
    const DispatchProblem p = make_problem(group.size());
    HighThroughput transport(group, p.placement(), small_config(16), small_config(16));
    const DispatchInput input = input_on(p, group.rank(), stream);
    call_until_killed(group, [&](int) {
      const DispatchOutput output = transport.dispatch(input, stream);
      transport.combine(rows_of(output), *output.handle, stream);
    });
  });
}

// When rows come in waves, the rank may be killed between their ids and the last of them.
TEST_P(GpuProcesses, AKilledRankIsNamedWhileItsRowsAreOnTheirWay) {
  expect_last_is_named(options(milliseconds(5000)), [](Group& group, const Stream& stream) {
    const Stream reader = Stream::cuda(group.device().index);
    const DispatchProblem p = make_problem(group.size());
    HighThroughput transport(group, p.placement(), small_config(16), small_config(16));
    DispatchInput input = input_on(p, group.rank(), stream);
    input.early_rows = group.topology().num_nodes() == 1 ? 1 : 0;
    call_until_killed(group, [&](int) {
      const DispatchOutput output = transport.dispatch(input, stream);
      if (output.arrivals) {
        const Tensor rows = read_by_waves(output, reader);
        reader.synchronize();
      }
    });
  });
}

TEST_P(GpuProcesses, AKilledRankIsNamedInLowLatency) {
  expect_last_is_named(options(milliseconds(5000)), [](Group& group, const Stream& stream) {
    const DispatchProblem p = make_problem(group.size());
    const DispatchInput in = input_on(p, group.rank(), stream);
    const Tensor out = Tensor::zeros(in.payloads[0].shape(), DType::kBF16, group.device());
    LowLatency transport(group, p.placement(), low_latency_options(p));
    call_until_killed(group, [&](int number) {
      pass_through(transport, in, stream, out);
      if (number % 10 == 9) {
        stream.synchronize();
      }
    });
  });
}

TEST_P(GpuProcesses, AKilledRankIsNamedInACollective) {
  expect_last_is_named(options(milliseconds(5000)), [](Group& group, const Stream& stream) {
    const std::vector<int64_t> counts(static_cast<size_t>(group.size()), 1000);
    const Tensor in = Tensor::zeros({1000, 1024}, DType::kF32, group.device());
    const Tensor out = Tensor::zeros({1000 * group.size(), 1024}, DType::kF32, group.device());
    call_until_killed(group, [&](int number) {
      all_gatherv(group, "gather", in, counts, out, stream);
      if (number % 10 == 9) {
        stream.synchronize();
      }
    });
  });
}

INSTANTIATE_TEST_SUITE_P(Groups,
                         GpuProcesses,
                         ::testing::Values(GpuRanks{"peer", 1, 1},
                                           GpuRanks{"peer", 2, 1},
                                           GpuRanks{"peer", 2, 1, 1},
                                           GpuRanks{"peer", 4, 1},
                                           GpuRanks{"peer", 2, 2},
                                           GpuRanks{"nccl", 1, 1},
                                           GpuRanks{"nccl", 2, 2},
                                           GpuRanks{"nccl", 2, 2, 1},
                                           GpuRanks{"nccl", 4, 4},
                                           GpuRanks{"nccl", 4, 4, 2},
                                           GpuRanks{"nccl", 8, 8}),
                         gpu_ranks_name);

}  // namespace
}  // namespace moebius::testing
