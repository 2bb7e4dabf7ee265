// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// High throughput on GPUs: what callers may say of the routing, and what they are told of it.  All
// of it must be as on the CPU, which is tested against the whole problem.
#include "tests/comm/cuda/sides.h"

namespace moebius::testing {
namespace {

TEST_P(HighThroughputCuda, IdsOf64BitsAndLayoutsGiveTheRowsOfTheCpu) {
  run_problems([&](const DispatchProblem& p, Sides& sides, Group& host) {
    const RankInput in = make_input(p, host.rank());
    for (const bool is_wide : {false, true}) {
      DispatchInput request{{in.x, in.code}, in.ids, in.weights, 8, {}};
      request.topk_ids = is_wide ? convert(in.ids, DType::kI64) : in.ids;
      request.lists_counts = true;
      const DispatchLayout layout = sides.cpu.layout(request.topk_ids, sides.cpu_stream);
      const DispatchLayout there = sides.cuda.layout(sides.up(request.topk_ids), sides.stream);
      expect_same(sides, there.tokens_per_rank, layout.tokens_per_rank, "tokens_per_rank");
      expect_same(sides, there.tokens_per_node, layout.tokens_per_node, "tokens_per_node");
      expect_same(sides, there.tokens_per_expert, layout.tokens_per_expert, "tokens_per_expert");
      expect_same(sides, there.is_token_in_rank, layout.is_token_in_rank, "is_token_in_rank");
      const auto check = [&](const std::string& what) {
        SCOPED_TRACE(what);
        const auto expected = sides.cpu.dispatch(request, sides.cpu_stream);
        const auto actual = sides.cuda.dispatch(sides.up(request), sides.stream);
        expect_same(sides, actual, expected);
        EXPECT_EQ(actual.expert_counts, expected.expert_counts);
        if (expected.topk_ids) {
          expect_same(sides, sides.cuda.expert_order(actual, 16, sides.stream),
                      sides.cpu.expert_order(expected, 16, sides.cpu_stream));
        }
        CombineInput back{expected.payloads[0], {}, {}, {}};
        CombineInput back_up{actual.payloads[0], {}, {}, {}};
        if (!expected.topk_ids) {  // weights of any number are summed
          back.topk_weights = columns_of(convert(expected.payloads[0], DType::kF32), 0, 3);
          back_up.topk_weights = sides.up(back.topk_weights);
        }
        const auto sums = sides.cpu.combine(back, *expected.handle, sides.cpu_stream);
        const auto sums_there = sides.cuda.combine(back_up, *actual.handle, sides.stream);
        expect_same(sides, sums_there.x, sums.x, "sums");
        expect_same(sides, sums_there.topk_weights, sums.topk_weights, "sums of weights");
      };
      check("counted");
      request.layout = layout;
      check("with a layout");
      request.topk_ids = request.topk_weights = {};
      check("without ids");
    }
  });
}

TEST_P(HighThroughputCuda, ACapacityGoesWithIdsOf64BitsAndWithNone) {
  if (!is_one_node()) {
    GTEST_SKIP() << "skipped: needs one node";
  }
  const DispatchProblem p = dispatch_problems(num_ranks())[0];
  run_sides(p, [&](Sides& sides, Group& host) {
    const RankInput in = make_input(p, host.rank());
    DispatchInput request{{in.x, in.code}, convert(in.ids, DType::kI64), in.weights, 8, {}};
    request.layout = sides.cpu.layout(request.topk_ids, sides.cpu_stream);
    for (const bool has_ids : {true, false}) {
      if (!has_ids) {
        request.topk_ids = request.topk_weights = {};
      }
      const DispatchOutput expected = sides.cpu.dispatch(request, sides.cpu_stream);
      const int64_t rows = expected.handle->num_rows();
      DispatchInput request_up = sides.up(request);
      request_up.capacity = all_reduce_max(host, "most rows", rows) + 3;
      request_up.lists_counts = true;
      const DispatchOutput output = sides.cuda.dispatch(request_up, sides.stream);
      EXPECT_TRUE(output.expert_counts.empty());
      ASSERT_EQ(sides.down(output.num_rows).data<int32_t>()[0], rows);
      expect_same(sides, output.payloads[1].slice(0, rows), expected.payloads[1], "payload 1");
      expect_same(sides, output.expert_num_tokens, expected.expert_num_tokens, "counts");
      expect_same(sides, output.handle->rank_prefix(), expected.handle->rank_prefix(), "prefix");
      if (has_ids) {
        expect_same(sides, output.topk_ids.slice(0, rows), expected.topk_ids, "topk_ids");
        const Tensor ids = sides.down(output.topk_ids);
        for (int64_t i = rows * p.topk; i < ids.numel(); ++i) {
          ASSERT_EQ(ids.data<int64_t>()[i], -1);
        }
      }
    }
  });
}

// A rank's dispatch of the first problem, and what it gives on the CPU.
struct FirstDispatch {
  FirstDispatch(Group& gpu, Group& host)
      : p(dispatch_problems(host.size())[0]),
        sides(gpu, host, p.placement()),
        in(make_input(p, host.rank())) {}

  DispatchProblem p;
  Sides sides;
  RankInput in;
  DispatchInput request{{in.x, in.code}, in.ids, in.weights, 8, {}};
  DispatchOutput expected = sides.cpu.dispatch(request, sides.cpu_stream);
};

// Calls use the SMs that were set last, also a call that is launched again because banks grow.
TEST_P(HighThroughputCuda, TheNumberOfSmsChangesBetweenCalls) {
  run([&](Group& gpu, Group& host) {
    FirstDispatch made(gpu, host);
    auto& [p, sides, in, request, expected] = made;
    const auto sums = sides.cpu.combine(rows_of(expected), *expected.handle, sides.cpu_stream);
    std::vector<DispatchOutput> alive;  // so that banks are added
    for (const int num_sms : {2, 6, 4, 2, 6}) {
      // Ranks need not agree.
      const int own = host.rank() % 2 == 0 ? num_sms : 8 - num_sms;
      sides.cuda.set_configs(small_config(own), small_config(num_sms));
      EXPECT_EQ(sides.cuda.dispatch_config(), small_config(own));
      EXPECT_EQ(sides.cuda.combine_config(), small_config(num_sms));
      for (int call = 0; call < 3; ++call) {
        const DispatchOutput output = sides.cuda.dispatch(sides.up(request), sides.stream);
        expect_same(sides, output, expected);
        const auto combined = sides.cuda.combine(rows_of(output), *output.handle, sides.stream);
        expect_same(sides, combined.x, sums.x, "sums");
        if (call == 0) {
          alive.push_back(output);
        }
      }
    }
    EXPECT_THROW(sides.cuda.set_configs(small_config(3), small_config()), InvalidArgument);
  });
}

TEST_P(HighThroughputCuda, CachedRoutesAreAsynchronousToo) {
  run([&](Group& gpu, Group& host) {
    FirstDispatch made(gpu, host);
    auto& [p, sides, in, request, expected] = made;
    const DispatchOutput rows = sides.cuda.dispatch(sides.up(request), sides.stream);
    const Stream other = Stream::cuda(sides.device.index);
    const Tensor late = Tensor::zeros(in.x.shape(), in.x.dtype(), sides.device);
    copy(in.x, late, other);
    auto first =
        sides.cuda.dispatch_cached_async({{late}, other.record()}, *rows.handle, sides.stream);
    auto second =
        sides.cuda.dispatch_cached_async({{sides.up(in.code)}}, *rows.handle, sides.stream);
    first.hook();
    second.hook();
    const DispatchOutput codes = second.receive();
    const DispatchOutput xs = first.receive();
    xs.event.synchronize();
    expect_same(sides, xs.payloads[0], expected.payloads[0], "cached payload");
    expect_same(sides, codes.payloads[0], expected.payloads[1], "cached codes");
  });
}

}  // namespace
}  // namespace moebius::testing
