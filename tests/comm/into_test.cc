// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Dispatches on CPUs that write into tensors of the caller's.
#include <gtest/gtest.h>

#include "moebius/dispatch.h"
#include "tests/comm/dispatch_runs.h"
#include "tests/comm/low_latency_calls.h"
#include "tests/error_text.h"

namespace moebius::testing {
namespace {

class IntoTest : public ::testing::TestWithParam<GroupShape> {};

// Room for the rows of any rank: the tokens of all.
int64_t most_rows(const DispatchProblem& p) {
  int64_t rows = 0;
  for (int r = 0; r < p.num_ranks; ++r) {
    rows += p.num_tokens(r);
  }
  return rows;
}

DispatchInto make_room(const DispatchProblem& p, int64_t rows) {
  return {{Tensor::zeros({rows, p.hidden}, DType::kBF16), Tensor::zeros({rows, 2}, DType::kI32)},
          Tensor::zeros({rows, p.topk}, DType::kI32),
          Tensor::zeros({rows, p.topk}, DType::kF32)};
}

TEST_P(IntoTest, HighThroughputGivesTheSameRowsInTheCallersTensors) {
  run_problems(GetParam(), [&](const DispatchProblem& p, Group& group, const RankInput& in) {
    const Stream stream = Stream::cpu(2);
    HighThroughput transport(group, p.placement(), {}, {});
    DispatchInput request{{in.x, in.code}, in.ids, in.weights, 8, {}};
    const DispatchOutput expected = transport.dispatch(request, stream);
    request.into = make_room(p, most_rows(p));
    const DispatchOutput output = transport.dispatch(request, stream);
    for (size_t i = 0; i < expected.payloads.size(); ++i) {
      EXPECT_TRUE(same_bytes(output.payloads[i], expected.payloads[i]));
      EXPECT_EQ(output.payloads[i].raw(), request.into.payloads[i].raw());
    }
    EXPECT_TRUE(same_bytes(output.topk_ids, expected.topk_ids));
    EXPECT_EQ(output.topk_ids.raw(), request.into.topk_ids.raw());
    EXPECT_TRUE(same_bytes(output.topk_weights, expected.topk_weights));
    EXPECT_EQ(output.topk_weights.raw(), request.into.topk_weights.raw());

    CombineInput back{output.payloads[0], output.topk_weights, {}, {}};
    const CombineOutput sums = transport.combine(back, *output.handle, stream);
    back.topk_weights_into = Tensor::zeros({in.ids.dim(0), p.topk}, DType::kF32);
    const CombineOutput again = transport.combine(back, *output.handle, stream);
    EXPECT_EQ(again.topk_weights.raw(), back.topk_weights_into.raw());
    EXPECT_TRUE(same_bytes(again.topk_weights, sums.topk_weights));
    back.topk_weights_into = Tensor::zeros({in.ids.dim(0), p.topk + 1}, DType::kF32);
    EXPECT_THROW(transport.combine(back, *output.handle, stream), InvalidArgument);
    back.topk_weights_into = {};
    back.x = expected.payloads[0];
    EXPECT_TRUE(same_bytes(sums.x, transport.combine(back, *expected.handle, stream).x));

    // Only one payload is the caller's.
    request.into = {{Tensor(), request.into.payloads[1]}, {}, {}};
    const DispatchOutput one = transport.dispatch(request, stream);
    EXPECT_TRUE(same_bytes(one.payloads[0], expected.payloads[0]));
    EXPECT_EQ(one.payloads[1].raw(), request.into.payloads[1].raw());

    // Along a known route.
    const CachedDispatchInput along{
        {in.code, in.x}, {}, {Tensor::zeros({most_rows(p), 2}, DType::kI32), Tensor()}};
    const DispatchOutput again_sent = transport.dispatch_cached(along, *expected.handle, stream);
    EXPECT_TRUE(same_bytes(again_sent.payloads[0], expected.payloads[1]));
    EXPECT_EQ(again_sent.payloads[0].raw(), along.into[0].raw());
    EXPECT_TRUE(same_bytes(again_sent.payloads[1], expected.payloads[0]));
    EXPECT_TRUE(again_sent.event.is_complete());
  });
}

TEST_P(IntoTest, ATrimmedTransportGoesOn) {
  const DispatchProblem p = dispatch_problems(GetParam().num_ranks)[0];
  run_ranks(GetParam(), [&](Group& group) {
    const RankInput in = make_input(p, group.rank());
    const Stream stream = Stream::cpu(1);
    HighThroughput transport(group, p.placement(), {}, {});
    const DispatchInput request{{in.x}, in.ids, in.weights, 1, {}};
    const DispatchOutput first = transport.dispatch(request, stream);
    const CombineInput back{first.payloads[0], first.topk_weights, {}, {}};
    const Tensor sums = transport.combine(back, *first.handle, stream).x;
    transport.trim();  // what is held stays
    EXPECT_TRUE(same_bytes(transport.combine(back, *first.handle, stream).x, sums));
  });
}

TEST_P(IntoTest, TooLittleRoomIsRefusedByEveryRank) {
  DispatchProblem p = dispatch_problems(GetParam().num_ranks)[0];
  p.skew = Skew::kOneRank;  // the others would have room
  run_ranks(GetParam(), [&](Group& group) {
    const RankInput in = make_input(p, group.rank());
    const Stream stream = Stream::cpu(1);
    HighThroughput transport(group, p.placement(), {}, {});
    DispatchInput request{{in.x, in.code}, in.ids, in.weights, 1, {}};
    request.into = make_room(p, 3);
    expect_mentions(message_of([&] { transport.dispatch(request, stream); }),
                    {"most rows of a rank", "3"});
    request.into.payloads[1] = Tensor::zeros({4, 2}, DType::kI32);
    expect_mentions(message_of([&] { transport.dispatch(request, stream); }),
                    {"payload 1 of into", "[4, 2]", "[3, 2]"});
    request.into = {};
    request.into.topk_ids = Tensor::zeros({3, p.topk}, DType::kF32);
    expect_mentions(message_of([&] { transport.dispatch(request, stream); }),
                    {"topk_ids of into", "f32", "i32"});
    request.into = {};
    const DispatchOutput sent = transport.dispatch(request, stream);  // the object goes on
    CachedDispatchInput along{{in.code}, {}, {Tensor::zeros({3, 2}, DType::kI32)}};
    expect_mentions(message_of([&] { transport.dispatch_cached(along, *sent.handle, stream); }),
                    {"most rows of a rank", "3"});
    along.into = {Tensor::zeros({3, 2}, DType::kF32)};
    expect_mentions(message_of([&] { transport.dispatch_cached(along, *sent.handle, stream); }),
                    {"payload 0 of into", "f32", "i32"});
    along.into = {};
    EXPECT_TRUE(same_bytes(transport.dispatch_cached(along, *sent.handle, stream).payloads[0],
                           sent.payloads[1]));
  });
}

TEST_P(IntoTest, LowLatencyGivesTheSameRowsInTheCallersTensors) {
  for (const DispatchProblem& p : low_latency_problems(GetParam().num_ranks)) {
    SCOPED_TRACE(p.seed);
    const std::vector<RankInput> inputs = make_inputs(p);
    run_ranks(GetParam(), [&](Group& group) {
      LowLatencyRank rank(group, p, inputs);
      const int64_t num_local = p.placement().num_local(group.rank());
      const int64_t rows = kMaxTokens * p.num_ranks;
      for (const LowLatencyCast cast : {kNoCast, LowLatencyCast::kFp8}) {
        const bool is_cast = cast != kNoCast;
        if (is_cast && p.hidden % 128 != 0) {
          continue;
        }
        LowLatencyDispatchInput request{rank.in.x, rank.in.ids, cast};
        const DType dtype = is_cast ? DType::kF8E4M3 : DType::kBF16;
        request.into.x = Tensor::zeros({num_local, rows, p.hidden}, dtype);
        request.into.expert_num_tokens = Tensor::zeros({num_local}, DType::kI32);
        request.into.row_tags = Tensor::zeros({num_local, rows}, DType::kI32);
        if (is_cast) {
          request.into.x_scale = Tensor::zeros({num_local, rows, p.hidden / 128}, DType::kF32);
        }
        const LowLatencyDispatchOutput output = rank.transport.dispatch(request, rank.stream);
        EXPECT_EQ(output.x.raw(), request.into.x.raw());
        EXPECT_EQ(output.expert_num_tokens.raw(), request.into.expert_num_tokens.raw());
        EXPECT_EQ(output.row_tags.raw(), request.into.row_tags.raw());
        EXPECT_EQ(output.x_scale.raw(), request.into.x_scale.raw());
        expect_dispatched(p, inputs, group.rank(), output, cast);
        if (!is_cast) {
          EXPECT_TRUE(
              same_bytes(rank.combine(output, rank.in.weights), expected_combined(p, rank.in)));
        }
        // A dispatch without these tensors is not changed by them.
        expect_dispatched(p, inputs, group.rank(), rank.dispatch(cast), cast);
      }
    });
  }
}

// Quantized rows with scales of the caller's and less room: each output has the bytes that it has
// in the library's memory.
TEST_P(IntoTest, LowLatencyGivesQuantizedRowsAndTheirSourcesInTheCallersTensors) {
  constexpr int64_t kRoom = 40;
  constexpr int64_t kScales = 2;
  const DispatchProblem p = low_latency_problems(GetParam().num_ranks)[0];
  const std::vector<RankInput> inputs = make_inputs(p);
  run_ranks(GetParam(), [&](Group& group) {
    LowLatencyRank rank(group, p, inputs);
    const int64_t num_local = p.placement().num_local(group.rank());
    const int64_t rows = kRoom * p.num_ranks;
    const int64_t num_tokens = p.num_tokens(group.rank());
    const Tensor codes = Tensor::empty({num_tokens, p.hidden}, DType::kI8);
    for (int64_t i = 0; i < codes.numel(); ++i) {
      codes.data<int8_t>()[i] = static_cast<int8_t>(7 * i + group.rank());
    }
    const Tensor scales = Tensor::empty({num_tokens, kScales}, DType::kF32);
    for (int64_t i = 0; i < scales.numel(); ++i) {
      scales.data<float>()[i] = static_cast<float>(100 * group.rank() + i);
    }
    LowLatencyDispatchInput request{
        .x = codes, .topk_ids = rank.in.ids, .x_scale = scales, .max_tokens = kRoom};
    const LowLatencyDispatchOutput own = rank.transport.dispatch(request, rank.stream);
    const LowLatencyInto into{
        .x = Tensor::zeros({num_local, rows, p.hidden}, DType::kI8),
        .x_scale = Tensor::zeros({num_local, rows, kScales}, DType::kF32),
        .expert_num_tokens = Tensor::zeros({num_local}, DType::kI32),
        .row_tags = Tensor::zeros({num_local, rows}, DType::kI32),
        .source_token = Tensor::zeros({num_local, rows}, DType::kI32),
        .source_ranges = Tensor::zeros({num_local, group.size()}, DType::kI64)};
    request.into = into;
    const LowLatencyDispatchOutput output = rank.transport.dispatch(request, rank.stream);
    EXPECT_EQ(output.x.raw(), into.x.raw());
    EXPECT_EQ(output.x_scale.raw(), into.x_scale.raw());
    EXPECT_EQ(output.source_token.raw(), into.source_token.raw());
    EXPECT_EQ(output.source_ranges.raw(), into.source_ranges.raw());
    EXPECT_TRUE(same_bytes(output.expert_num_tokens, own.expert_num_tokens));
    EXPECT_TRUE(same_bytes(output.source_ranges, own.source_ranges));
    for (int64_t l = 0; l < num_local; ++l) {
      const int64_t count = own.expert_num_tokens.data<int32_t>()[l];
      for (const auto& [theirs, ours] : {std::pair(output.x, own.x),
                                         {output.x_scale, own.x_scale},
                                         {output.row_tags, own.row_tags},
                                         {output.source_token, own.source_token}}) {
        EXPECT_TRUE(same_bytes(theirs[l].slice(0, count), ours[l].slice(0, count)));
      }
    }
    request.into = {.x = Tensor::zeros({num_local, rows + 1, p.hidden}, DType::kI8)};
    expect_mentions(message_of([&] { rank.transport.dispatch(request, rank.stream); }),
                    {"shape of x of into"});
  });
}

TEST_P(IntoTest, LowLatencyRefusesTensorsThatDoNotFit) {
  const DispatchProblem p = low_latency_problems(GetParam().num_ranks)[0];
  const std::vector<RankInput> inputs = make_inputs(p);
  run_ranks(GetParam(), [&](Group& group) {
    LowLatencyRank rank(group, p, inputs);
    LowLatencyDispatchInput request{rank.in.x, rank.in.ids};
    request.into.x = Tensor::zeros({1, 2, 3}, DType::kBF16);
    expect_mentions(message_of([&] { rank.transport.dispatch(request, rank.stream); }),
                    {"shape of x of into", "[1, 2, 3]"});
    request.into = {};
    request.into.x_scale = Tensor::zeros({1}, DType::kF32);
    expect_mentions(message_of([&] { rank.transport.dispatch(request, rank.stream); }),
                    {"x_scale of into for rows without scales"});
    EXPECT_TRUE(rank.sums_rightly());
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, IntoTest, on_group_shapes(), shape_name);

}  // namespace
}  // namespace moebius::testing
