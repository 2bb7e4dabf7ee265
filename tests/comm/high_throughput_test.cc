// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// High throughput on CPUs: every row of every rank is compared with what the whole problem says it
// must be, on every shape of group.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "moebius/dispatch.h"
#include "problems/dispatch_problem.h"
#include "tests/comm/dispatch_runs.h"
#include "tests/comm/group_runner.h"

namespace moebius::testing {
namespace {

HighThroughput make_transport(Group& group, const ExpertPlacement& placement) {
  return HighThroughput(group, placement, DispatchConfig::for_dispatch(group.size()),
                        DispatchConfig::for_combine(group.size()));
}

// The copies that `rank` must receive, as (source, token) in order.
std::vector<std::pair<int, int64_t>> expected_copies(const DispatchProblem& p,
                                                     const std::vector<RankInput>& inputs,
                                                     int rank) {
  const ExpertPlacement placement = p.placement();
  std::vector<std::pair<int, int64_t>> copies;
  for (int s = 0; s < p.num_ranks; ++s) {
    const auto* ids = inputs[static_cast<size_t>(s)].ids.data<int32_t>();
    for (int64_t t = 0; t < p.num_tokens(s); ++t) {
      if (std::any_of(ids + t * p.topk, ids + (t + 1) * p.topk,
                      [&](int32_t id) { return id >= 0 && placement.rank_of(id) == rank; })) {
        copies.emplace_back(s, t);
      }
    }
  }
  return copies;
}

void expect_rank_prefix(const DispatchProblem& p,
                        const std::vector<RankInput>& inputs,
                        const Tensor& prefix) {
  ASSERT_EQ(prefix.shape(), Shape({p.num_ranks, p.num_ranks}));
  for (int d = 0; d < p.num_ranks; ++d) {
    const auto copies = expected_copies(p, inputs, d);
    for (int s = 0; s < p.num_ranks; ++s) {
      ASSERT_EQ(prefix.data<int32_t>()[s * p.num_ranks + d],
                std::count_if(copies.begin(), copies.end(),
                              [&](const auto& copy) { return copy.first <= s; }))
          << "copies from ranks up to " << s << " to rank " << d;
    }
  }
}

void expect_dispatched(const DispatchProblem& p,
                       const std::vector<RankInput>& inputs,
                       int rank,
                       const DispatchOutput& output) {
  const ExpertPlacement placement = p.placement();
  const auto copies = expected_copies(p, inputs, rank);
  ASSERT_EQ(output.handle->num_rows(), static_cast<int64_t>(copies.size()));
  ASSERT_EQ(output.payloads.size(), 2u);
  std::vector<int32_t> counts(static_cast<size_t>(placement.num_local(rank)), 0);
  for (size_t row = 0; row < copies.size(); ++row) {
    const auto [s, t] = copies[row];
    const auto i = static_cast<int64_t>(row);
    const RankInput& in = inputs[static_cast<size_t>(s)];
    ASSERT_EQ(output.payloads[1].data<int32_t>()[2 * i], s) << "source of row " << row;
    ASSERT_EQ(output.payloads[1].data<int32_t>()[2 * i + 1], t) << "token of row " << row;
    ASSERT_EQ(output.handle->source_rank().data<int32_t>()[i], s);
    ASSERT_EQ(output.handle->source_token().data<int32_t>()[i], t);
    ASSERT_TRUE(same_bytes(output.payloads[0][i], in.x[t])) << "row " << row;
    for (int64_t k = 0; k < p.topk; ++k) {
      const int32_t id = in.ids.data<int32_t>()[t * p.topk + k];
      const bool is_here = id >= 0 && placement.rank_of(id) == rank;
      ASSERT_EQ(output.topk_ids.data<int32_t>()[i * p.topk + k],
                is_here ? placement.local_index(id) : -1);
      ASSERT_EQ(output.topk_weights.data<float>()[i * p.topk + k],
                is_here ? in.weights.data<float>()[t * p.topk + k] : 0.0f);
      if (is_here) {
        ++counts[static_cast<size_t>(placement.local_index(id))];
      }
    }
  }
  ASSERT_EQ(output.expert_counts.size(), counts.size());
  for (size_t l = 0; l < counts.size(); ++l) {
    EXPECT_EQ(output.expert_num_tokens.data<int32_t>()[l], (counts[l] + 7) / 8 * 8);
    EXPECT_EQ(output.expert_counts[l], (counts[l] + 7) / 8 * 8);
  }
  expect_rank_prefix(p, inputs, output.handle->rank_prefix());
}

// What the experts of the rank make of a received row; it differs from rank to rank.
Tensor contribution(const Tensor& rows, int rank) {
  const Tensor out = rows.clone();
  for (int64_t i = 0; i < out.numel(); ++i) {
    out.data<BFloat16>()[i] = BFloat16(get_float(rows, i) * static_cast<float>(rank + 1));
  }
  return out;
}

// The sum over copies as the header defines it, plus the bias.
Tensor expected_combined(const DispatchProblem& p,
                         const Topology& topology,
                         const RankInput& in,
                         int rank,
                         const Tensor& bias) {
  const ExpertPlacement placement = p.placement();
  const Tensor out = Tensor::empty(in.x.shape(), DType::kBF16);
  for (int64_t t = 0; t < p.num_tokens(rank); ++t) {
    std::set<int> destinations;
    for (int64_t k = 0; k < p.topk; ++k) {
      const int32_t id = in.ids.data<int32_t>()[t * p.topk + k];
      if (id >= 0) {
        destinations.insert(placement.rank_of(id));
      }
    }
    for (int64_t h = 0; h < p.hidden; ++h) {
      const float x = get_float(in.x, t * p.hidden + h);
      float total = 0.0f;
      for (int n = 0; n < topology.num_nodes(); ++n) {
        float node_sum = 0.0f;
        for (const int d : destinations) {
          if (topology.node_of(d) == n) {
            node_sum += static_cast<float>(BFloat16(x * static_cast<float>(d + 1)));
          }
        }
        total += topology.num_nodes() > 1 ? static_cast<float>(BFloat16(node_sum)) : node_sum;
      }
      total += get_float(bias, t * p.hidden + h);
      out.data<BFloat16>()[t * p.hidden + h] = BFloat16(total);
    }
  }
  return out;
}

void check_problem(const DispatchProblem& p, const std::vector<RankInput>& inputs, Group& group) {
  const int rank = group.rank();
  const RankInput& in = inputs[static_cast<size_t>(rank)];
  const Stream stream = Stream::cpu(1);
  HighThroughput transport = make_transport(group, p.placement());
  const DispatchInput request{{in.x, in.code}, in.ids, in.weights, 8, {}};
  const DispatchOutput first = transport.dispatch(request, stream);
  expect_dispatched(p, inputs, rank, first);

  // A second result is made while the first lives, then a cached one along the route of the first.
  // They are combined in the opposite order.
  const DispatchOutput second = transport.dispatch(request, stream);
  const DispatchOutput cached = transport.dispatch_cached({{in.code, in.x}}, *first.handle, stream);
  expect_dispatched(p, inputs, rank, first);
  expect_dispatched(p, inputs, rank, second);
  EXPECT_TRUE(same_bytes(cached.payloads[0], first.payloads[1]));
  EXPECT_TRUE(same_bytes(cached.payloads[1], first.payloads[0]));

  CombineInput back{
      contribution(second.payloads[0], rank), second.topk_weights, {in.x, Tensor()}, {}};
  const auto combined = transport.combine(back, *second.handle, stream);
  const Tensor expected = expected_combined(p, group.topology(), in, rank, in.x);
  EXPECT_TRUE(same_bytes(combined.x, expected));
  for (int64_t i = 0; i < in.ids.numel(); ++i) {  // each selection was weighted in one place
    const float weight = in.ids.data<int32_t>()[i] >= 0 ? in.weights.data<float>()[i] : 0.0f;
    EXPECT_EQ(combined.topk_weights.data<float>()[i], weight);
  }
  back.x = contribution(first.payloads[0], rank);
  back.topk_weights = Tensor();
  const Tensor out = Tensor::empty(in.x.shape(), DType::kBF16);
  auto pending = transport.combine_async(back, *first.handle, stream, out);
  pending.hook();
  EXPECT_EQ(pending.receive().x.raw(), out.raw());
  EXPECT_TRUE(same_bytes(out, expected));

  const Tensor wide = Tensor::empty(in.x.shape(), DType::kBF16);
  int64_t begin = 0;
  for (const int64_t end : {p.hidden / 3, p.hidden}) {  // some columns, then the others
    CombineInput part;
    part.x = columns_of(back.x, begin, end);
    part.bias[0] = columns_of(in.x, begin, end);
    part.first_column = begin;
    transport.combine(part, *first.handle, stream, wide);
    begin = end;
  }
  EXPECT_TRUE(same_bytes(wide, expected));
  back.addend = in.x;
  EXPECT_THROW(transport.combine(back, *first.handle, stream, wide), Unsupported);
  back.addend = {};
  back.first_column = 1;
  EXPECT_THROW(transport.combine(back, *first.handle, stream, wide), InvalidArgument);
}

class HighThroughputTest : public ::testing::TestWithParam<GroupShape> {};

TEST_P(HighThroughputTest, EveryRowIsWhereItMustBe) {
  for (const DispatchProblem& p : dispatch_problems(GetParam().num_ranks)) {
    SCOPED_TRACE(p.seed);
    const std::vector<RankInput> inputs = make_inputs(p);
    run_ranks(GetParam(), [&](Group& group) {
      SCOPED_TRACE("rank " + std::to_string(group.rank()));
      check_problem(p, inputs, group);
    });
  }
}

// A layout says where tokens go, with the ids or without them.
TEST_P(HighThroughputTest, LayoutsStandForTheCountsAndForTheIds) {
  for (const DispatchProblem& p : dispatch_problems(GetParam().num_ranks)) {
    SCOPED_TRACE(p.seed);
    const std::vector<RankInput> inputs = make_inputs(p);
    run_ranks(GetParam(), [&](Group& group) {
      const RankInput& in = inputs[static_cast<size_t>(group.rank())];
      const Stream stream = Stream::cpu(1);
      HighThroughput transport = make_transport(group, p.placement());
      DispatchInput request{{in.x, in.code}, in.ids, in.weights, 8, {}};
      request.layout = transport.layout(in.ids, stream);
      const DispatchOutput rows = transport.dispatch(request, stream);
      expect_dispatched(p, inputs, group.rank(), rows);
      const TransportStatistics once = transport.statistics();
      const TransportStatistics expected = expected_sent(p, in, group.topology());
      EXPECT_EQ(once.selections, expected.selections);
      EXPECT_EQ(once.copies, expected.copies);

      request.topk_ids = request.topk_weights = {};
      const DispatchOutput bare = transport.dispatch(request, stream);
      EXPECT_FALSE(bare.topk_ids.defined());
      EXPECT_FALSE(bare.topk_weights.defined());
      EXPECT_TRUE(same_bytes(bare.payloads[0], rows.payloads[0]));
      EXPECT_TRUE(same_bytes(bare.payloads[1], rows.payloads[1]));
      EXPECT_TRUE(same_bytes(bare.expert_num_tokens, rows.expert_num_tokens));
      EXPECT_EQ(bare.expert_counts, rows.expert_counts);
      EXPECT_TRUE(same_bytes(bare.handle->source_rank(), rows.handle->source_rank()));
      EXPECT_TRUE(same_bytes(bare.handle->source_token(), rows.handle->source_token()));
      EXPECT_TRUE(same_bytes(bare.handle->rank_prefix(), rows.handle->rank_prefix()));
      EXPECT_EQ(transport.statistics().selections, 2 * expected.selections);
      EXPECT_EQ(transport.statistics().copies, 2 * expected.copies);

      // Weights of any number travel along the route, and are summed beside rows.
      const Tensor scores = columns_of(convert(in.x, DType::kF32), 0, 3);
      const auto cached = transport.dispatch_cached({{in.x, scores}}, *bare.handle, stream);
      EXPECT_TRUE(same_bytes(cached.payloads[0], rows.payloads[0]));
      const CombineInput back{
          contribution(cached.payloads[0], group.rank()), cached.payloads[1], {in.x, Tensor()}, {}};
      const auto combined = transport.combine(back, *bare.handle, stream);
      EXPECT_TRUE(
          same_bytes(combined.x, expected_combined(p, group.topology(), in, group.rank(), in.x)));
      for (int64_t t = 0; t < in.x.dim(0); ++t) {
        int64_t num_copies = 0;
        for (int r = 0; r < group.size(); ++r) {
          num_copies += request.layout.is_token_in_rank.data<bool>()[t * group.size() + r] ? 1 : 0;
        }
        for (int64_t k = 0; k < 3; ++k) {
          float sum = 0.0f;
          for (int64_t copy = 0; copy < num_copies; ++copy) {
            sum += scores.data<float>()[3 * t + k];
          }
          EXPECT_NEAR(combined.topk_weights.data<float>()[3 * t + k], sum, 1e-5f * std::abs(sum));
        }
      }
    });
  }
}

// The halves of a cached dispatch have other calls between them, and wait for `previous`.
TEST_P(HighThroughputTest, CachedRoutesAreAsynchronousToo) {
  const DispatchProblem p = dispatch_problems(GetParam().num_ranks)[0];
  run_ranks(GetParam(), [&](Group& group) {
    const RankInput in = make_input(p, group.rank());
    const Stream stream = Stream::cpu(1);
    HighThroughput transport = make_transport(group, p.placement());
    const auto rows = transport.dispatch({{in.x, in.code}, in.ids, in.weights, 8, {}}, stream);
    auto first = transport.dispatch_cached_async({{in.x}, stream.record()}, *rows.handle, stream);
    auto second = transport.dispatch_cached_async({{in.code}}, *rows.handle, stream);
    first.hook();
    second.hook();
    const DispatchOutput codes = second.receive();
    const DispatchOutput xs = first.receive();
    EXPECT_TRUE(xs.event.is_complete());
    EXPECT_TRUE(same_bytes(xs.payloads[0], rows.payloads[0]));
    EXPECT_TRUE(same_bytes(codes.payloads[0], rows.payloads[1]));
    DispatchConfig odd;
    odd.num_sms = 3;
    EXPECT_THROW(transport.set_configs({}, odd), InvalidArgument);
    DispatchConfig few;
    few.num_sms = 2;
    transport.set_configs(few, few);  // CPUs ignore it
    EXPECT_EQ(transport.dispatch_config(), few);
    EXPECT_EQ(transport.combine_config(), few);
    EXPECT_TRUE(same_bytes(transport.dispatch_cached({{in.x}}, *rows.handle, stream).payloads[0],
                           rows.payloads[0]));
  });
}

TEST_P(HighThroughputTest, IdsOf64BitsGiveTheSameRows) {
  run_problems(GetParam(), [&](const DispatchProblem& p, Group& group, const RankInput& in) {
    const Tensor wide = convert(in.ids, DType::kI64);
    const Stream stream = Stream::cpu(1);
    HighThroughput transport = make_transport(group, p.placement());
    const DispatchLayout layout = transport.layout(in.ids, stream);
    const DispatchLayout same = transport.layout(wide, stream);
    EXPECT_TRUE(same_bytes(layout.tokens_per_rank, same.tokens_per_rank));
    EXPECT_TRUE(same_bytes(layout.tokens_per_node, same.tokens_per_node));
    EXPECT_TRUE(same_bytes(layout.tokens_per_expert, same.tokens_per_expert));
    EXPECT_TRUE(same_bytes(layout.is_token_in_rank, same.is_token_in_rank));
    const auto narrow = transport.dispatch({{in.x}, in.ids, in.weights, 8, {}}, stream);
    const auto rows = transport.dispatch({{in.x}, wide, in.weights, 8, {}}, stream);
    EXPECT_TRUE(same_bytes(rows.payloads[0], narrow.payloads[0]));
    EXPECT_TRUE(same_bytes(rows.topk_ids, convert(narrow.topk_ids, DType::kI64)));
    EXPECT_TRUE(same_bytes(rows.topk_weights, narrow.topk_weights));
    EXPECT_TRUE(same_bytes(rows.expert_num_tokens, narrow.expert_num_tokens));
    EXPECT_TRUE(same_bytes(rows.handle->source_token(), narrow.handle->source_token()));
    const ExpertOrder order = transport.expert_order(rows, 16, stream);
    EXPECT_TRUE(same_bytes(order.copy_row, transport.expert_order(narrow, 16, stream).copy_row));
  });
}

TEST_P(HighThroughputTest, ALayoutGoesToMemoryOfTheCallers) {
  run_problems(GetParam(), [&](const DispatchProblem& p, Group& group, const RankInput& in) {
    const Stream stream = Stream::cpu(1);
    HighThroughput transport = make_transport(group, p.placement());
    const DispatchLayout layout = transport.layout(in.ids, stream);
    const auto room_for = [](const Tensor& t) {
      const Tensor room = Tensor::empty(t.shape(), t.dtype());
      std::memset(room.raw(), 0xff, static_cast<size_t>(room.nbytes()));
      return room;
    };
    DispatchLayout into = {.tokens_per_rank = room_for(layout.tokens_per_rank),
                           .tokens_per_node = room_for(layout.tokens_per_node),
                           .tokens_per_expert = room_for(layout.tokens_per_expert),
                           .is_token_in_rank = room_for(layout.is_token_in_rank)};
    transport.layout(in.ids, stream, into);
    EXPECT_TRUE(same_bytes(layout.tokens_per_rank, into.tokens_per_rank));
    EXPECT_TRUE(same_bytes(layout.tokens_per_node, into.tokens_per_node));
    EXPECT_TRUE(same_bytes(layout.tokens_per_expert, into.tokens_per_expert));
    EXPECT_TRUE(same_bytes(layout.is_token_in_rank, into.is_token_in_rank));
    into.tokens_per_expert = Tensor::empty({p.placement().num_experts() + 1}, DType::kI32);
    EXPECT_THROW(transport.layout(in.ids, stream, into), InvalidArgument);
  });
}

// Copies are counted once per (token, rank), crossings once per (token, other node).
TEST_P(HighThroughputTest, BytesBetweenNodesAreOneCopyPerTokenAndNode) {
  DispatchProblem p = dispatch_problems(GetParam().num_ranks)[1];
  run_ranks(GetParam(), [&](Group& group) {
    const RankInput in = make_input(p, group.rank());
    HighThroughput transport = make_transport(group, p.placement());
    const Stream stream = Stream::cpu(1);
    const DispatchLayout layout = transport.layout(in.ids, stream);
    int64_t node_copies = 0;
    for (int n = 0; n < group.topology().num_nodes(); ++n) {
      if (n != group.topology().node()) {
        node_copies += layout.tokens_per_node.data<int32_t>()[n];
      }
    }
    const DispatchOutput output = transport.dispatch({{in.x}, in.ids, {}, 1, {}}, stream);
    transport.dispatch_cached({{in.x}}, *output.handle, stream);  // its bank
    const Traffic before = group.traffic();
    transport.dispatch_cached({{in.x}}, *output.handle, stream);
    const int64_t crossed = group.traffic().inter_node_bytes - before.inter_node_bytes;
    const TransportStatistics sent = expected_sent(p, in, group.topology());
    EXPECT_EQ(transport.statistics().selections, sent.selections);
    EXPECT_EQ(transport.statistics().copies, sent.copies);
    EXPECT_EQ(transport.statistics().node_copies, node_copies);
    // Beside the rows a message is padded to 256 bytes, and the call has its notices.
    const int64_t rows = node_copies * p.hidden * 2;
    const int64_t messages = group.topology().num_nodes() - 1;
    const int64_t notices =
        (group.size() - group.topology().node_size(group.topology().node())) * 24;
    EXPECT_GE(crossed, rows);
    EXPECT_LE(crossed, rows + messages * 255 + notices);
  });
}

TEST_P(HighThroughputTest, ExpertOrderGroupsSelectionsBySourceThenToken) {
  const DispatchProblem p = dispatch_problems(GetParam().num_ranks)[0];
  run_ranks(GetParam(), [&](Group& group) {
    const RankInput in = make_input(p, group.rank());
    HighThroughput transport = make_transport(group, p.placement());
    const Stream stream = Stream::cpu(1);
    const DispatchOutput output = transport.dispatch({{in.code}, in.ids, {}, 1, {}}, stream);
    const ExpertOrder order = transport.expert_order(output, 16, stream);
    const int64_t num_local = p.placement().num_local(group.rank());
    const auto* offsets = order.expert_offsets.data<int32_t>();
    int64_t used = 0;
    for (int64_t l = 0; l < num_local; ++l) {
      EXPECT_EQ(offsets[l] % 16, 0);
      std::pair<int, int> previous{-1, -1};
      for (int32_t row = offsets[l]; row < offsets[l + 1]; ++row) {
        const int32_t copy = order.copy_row.data<int32_t>()[row];
        const auto* code = order.payloads[0].data<int32_t>() + 2 * row;
        if (copy < 0) {
          EXPECT_EQ(code[0], 0);
          EXPECT_EQ(code[1], 0);
          continue;
        }
        ++used;
        const int32_t slot = order.slot.data<int32_t>()[row];
        EXPECT_EQ(output.topk_ids.data<int32_t>()[copy * p.topk + slot], l);
        const std::pair<int, int> here{code[0], code[1]};
        EXPECT_LT(previous, here);
        previous = here;
      }
    }
    const auto* ids = output.topk_ids.data<int32_t>();
    EXPECT_EQ(used, std::count_if(ids, ids + output.topk_ids.numel(),
                                  [](int32_t id) { return id >= 0; }));
  });
}

TEST_P(HighThroughputTest, ManyCallsReuseTheirBanks) {
  DispatchProblem p = dispatch_problems(GetParam().num_ranks)[1];
  run_ranks(GetParam(), [&](Group& group) {
    HighThroughput transport = make_transport(group, p.placement());
    const Stream stream = Stream::cpu(1);
    std::set<void*> blocks;
    const uint64_t num_calls = group.size() > 16 ? 10 : 100;
    for (uint64_t call = 0; call < num_calls; ++call) {
      DispatchProblem q = p;
      q.seed = call;
      const RankInput in = make_input(q, group.rank());
      const auto output = transport.dispatch({{in.x, in.code}, in.ids, in.weights, 8, {}}, stream);
      if (call + 1 == num_calls) {
        expect_dispatched(q, make_inputs(q), group.rank(), output);
      }
      if (output.handle->num_rows() > 0) {
        blocks.insert(output.payloads[0].raw());
      }
      transport.combine({output.payloads[0], {}, {}, {}}, *output.handle, stream);
    }
    // There are two banks, since peers may still read one when the next call begins.  Each may have
    // been replaced once by a larger one: sizes vary a little, and banks have room to spare.
    EXPECT_LE(blocks.size(), 4u);
  });
}

INSTANTIATE_TEST_SUITE_P(Groups, HighThroughputTest, on_group_shapes(), shape_name);

}  // namespace
}  // namespace moebius::testing
