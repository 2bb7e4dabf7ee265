// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// High throughput on GPUs with rows in waves: the rows are the same, and some may be read earlier.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "tests/comm/cuda/sides.h"
#include "tests/comm/cuda/wave_reader.h"

namespace moebius::testing {
namespace {

class HighThroughputWaves : public HighThroughputCuda {};

// A stream that awaits wave 0 finds complete what it brings.  Rows are complete with their waves,
// and everything is complete with the event.
void expect_output(const Sides& sides,
                   const DispatchOutput& output,
                   const DispatchOutput& expected) {
  const Stream reader = Stream::cuda(sides.device.index);
  if (output.arrivals && output.payloads[0].dim(1) % 2 == 0) {
    const Tensor rows = read_by_waves(output, reader);
    expect_same(sides, to_device(rows, Device::cpu(), reader), expected.payloads[0],
                "rows of their waves");
  }
  if (output.arrivals) {
    output.arrivals.await_ids(reader);
  } else {
    reader.wait(output.event);
  }
  const Tensor ids = to_device(output.topk_ids, Device::cpu(), reader);
  const Tensor weights = to_device(output.topk_weights, Device::cpu(), reader);
  reader.synchronize();
  EXPECT_TRUE(same_bytes(ids, expected.topk_ids)) << "topk_ids of wave 0";
  EXPECT_TRUE(same_bytes(weights, expected.topk_weights)) << "topk_weights of wave 0";
  expect_same(sides, output, expected);
}

void expect_sums(Sides& sides, const DispatchOutput& output, const DispatchOutput& expected) {
  const auto sums = sides.cuda.combine(rows_of(output), *output.handle, sides.stream);
  const auto expected_sums =
      sides.cpu.combine(rows_of(expected), *expected.handle, sides.cpu_stream);
  expect_same(sides, sums.x, expected_sums.x, "combined");
}

void check_waves(const RankInput& in, Sides& sides) {
  DispatchInput request{{in.x, in.code}, in.ids, in.weights, 8, {}};
  const DispatchOutput expected = sides.cpu.dispatch(request, sides.cpu_stream);
  DispatchInput request_up = sides.up(request);
  const int64_t most = expected.handle->most_rows();
  // The threshold is what the rank with most rows gets, then one more.
  for (const int64_t early_rows : {std::max<int64_t>(most, 1), most + 1}) {
    request_up.early_rows = early_rows;
    const DispatchOutput output = sides.cuda.dispatch(request_up, sides.stream);
    EXPECT_EQ(static_cast<bool>(output.arrivals), early_rows == most);
    expect_output(sides, output, expected);
    // The route of a dispatch in waves may be used again.
    const DispatchOutput cached =
        sides.cuda.dispatch_cached({request_up.payloads}, *output.handle, sides.stream);
    expect_same(sides, cached.payloads[0], expected.payloads[0], "cached payload");
    expect_sums(sides, output, expected);
  }
}

TEST_P(HighThroughputWaves, TheSameRows) {
  run_problems([&](const DispatchProblem& p, Sides& sides, Group& host) {
    check_waves(make_input(p, host.rank()), sides);
  });
}

// Rows go by bulk copies, by plain stores and in several pieces, and there are more tokens than a
// warp looks at together.
TEST_P(HighThroughputWaves, TheSameWideRows) {
  struct Case {
    int64_t hidden, topk, tokens, num_experts;
  };
  run([&](Group& gpu, Group& host) {
    for (const Case& c : {Case{2048, 8, 300, 128}, Case{2880, 4, 257, 40}, Case{7168, 8, 500, 256},
                          Case{7000, 6, 129, 33}, Case{2047, 16, 64, 128}, Case{20000, 2, 40, 128},
                          Case{64, 8, 5000, 64}, Case{64, 32, 200, 64}, Case{128, 1, 400, 7}}) {
      SCOPED_TRACE("hidden " + std::to_string(c.hidden));
      const DispatchProblem p =
          with_tokens({.num_experts = c.num_experts, .topk = c.topk, .hidden = c.hidden},
                      num_ranks(), c.tokens, 13);
      Sides sides(gpu, host, p.placement());
      check_waves(make_wide_input(p, host.rank()), sides);
    }
  });
}

TEST_P(HighThroughputWaves, CallsWithDelaysAmongOthers) {
  const DispatchProblem p =
      with_tokens({.num_experts = 48, .topk = 4, .hidden = 512}, num_ranks(), 40, 5);
  run_sides(p, [&](Sides& sides, Group& host) {
    std::mt19937 random(static_cast<uint32_t>(7 + host.rank()));
    std::vector<DispatchInput> inputs_up;
    std::vector<DispatchOutput> expected;
    for (int i = 0; i < 3; ++i) {
      DispatchProblem q = p;
      q.seed = static_cast<uint64_t>(10 + i);
      const RankInput in = make_wide_input(q, host.rank());
      const DispatchInput input{{in.x, in.code}, in.ids, in.weights, 1, {}};
      inputs_up.push_back(sides.up(input));
      inputs_up.back().early_rows = i == 1 ? 0 : 1;
      expected.push_back(sides.cpu.dispatch(input, sides.cpu_stream));
    }
    for (int call = 0; call < 1500; ++call) {
      if (random() % 64 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
      }
      const auto i = static_cast<size_t>(call % 3);
      const DispatchOutput output = sides.cuda.dispatch(inputs_up[i], sides.stream);
      EXPECT_EQ(static_cast<bool>(output.arrivals), i != 1);
      if (call % 16 == 0) {
        expect_output(sides, output, expected[i]);
      }
      if (::testing::Test::HasFailure()) {
        throw Error("call " + std::to_string(call));
      }
    }
  });
}

TEST_P(HighThroughputWaves, RanksThatDoNotAgreeGetAllAtOnce) {
  const DispatchProblem p = with_tokens({}, num_ranks(), 30);
  run_sides(p, [&](Sides& sides, Group& host) {
    const RankInput in = make_input(p, host.rank());
    const DispatchInput request{{in.x, in.code}, in.ids, in.weights, 1, {}};
    const DispatchOutput expected = sides.cpu.dispatch(request, sides.cpu_stream);
    DispatchInput request_up = sides.up(request);
    for (const int64_t other : {0, 2}) {
      request_up.early_rows = host.rank() == num_ranks() - 1 ? other : 1;
      const DispatchOutput output = sides.cuda.dispatch(request_up, sides.stream);
      EXPECT_EQ(static_cast<bool>(output.arrivals), num_ranks() == 1 && other != 0);
      expect_output(sides, output, expected);
    }
    request_up.early_rows = 1;
    request_up.capacity = 1000;
    EXPECT_THROW(sides.cuda.dispatch(request_up, sides.stream), InvalidArgument);
    // The rank with most rows gets more than most_early_rows.
    request_up.capacity = 0;
    request_up.most_early_rows = expected.handle->most_rows() - 1;
    const DispatchOutput output = sides.cuda.dispatch(request_up, sides.stream);
    EXPECT_FALSE(output.arrivals);
    expect_output(sides, output, expected);
    request_up.early_rows = -1;
    EXPECT_THROW(sides.cuda.dispatch(request_up, sides.stream), InvalidArgument);
  });
}

INSTANTIATE_TEST_SUITE_P(All, HighThroughputWaves, on_gpu_ranks(), gpu_ranks_name);

}  // namespace
}  // namespace moebius::testing
