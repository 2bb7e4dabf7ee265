// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/low_latency.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "problems/dispatch_problem.h"
#include "tests/comm/group_runner.h"

namespace moebius::testing {
namespace {

constexpr int64_t kMaxTokens = 64;
constexpr int kRounds = 6;  // each bank is used anew every round

LowLatencyOptions options_for(const DispatchProblem& p) {
  return {kMaxTokens, p.hidden, p.topk, DType::kBF16};
}

// As dispatch_problems, with no more tokens per rank than fit, and rows that can be cast.
std::vector<DispatchProblem> low_latency_problems(int num_ranks) {
  std::vector<DispatchProblem> problems = dispatch_problems(num_ranks);
  for (DispatchProblem& p : problems) {
    for (int64_t& tokens : p.tokens) {
      tokens = std::min(tokens, kMaxTokens);
    }
    p.hidden = p.hidden == 45 ? 45 : 256;
  }
  return problems;
}

// The cast as the header defines it, in plain words.
void expect_cast(const Tensor& row, const Tensor& values, const Tensor& scales, bool ue8m0) {
  for (int64_t g = 0; g < row.numel() / 128; ++g) {
    float amax = 1e-4f;
    for (int64_t i = 0; i < 128; ++i) {
      amax = std::max(amax, std::fabs(get_float(row, g * 128 + i)));
    }
    float scale = amax * (1.0f / 448.0f);
    float factor = 448.0f / amax;
    if (ue8m0) {
      scale = std::exp2(std::ceil(std::log2(static_cast<double>(scale))));
      factor = 1.0f / scale;
    }
    ASSERT_EQ(get_float(scales, g), scale);
    for (int64_t i = g * 128; i < (g + 1) * 128; ++i) {
      ASSERT_EQ(get_float(values, i), static_cast<float>(F8E4M3(get_float(row, i) * factor)));
    }
  }
}

void expect_dispatched(const DispatchProblem& p,
                       const std::vector<RankInput>& inputs,
                       int rank,
                       LowLatencyCast cast,
                       const LowLatencyDispatchOutput& output) {
  const ExpertPlacement placement = p.placement();
  std::vector<int64_t> next(static_cast<size_t>(placement.num_local(rank)), 0);
  ASSERT_EQ(output.x.shape(),
            Shape({placement.num_local(rank), kMaxTokens * p.num_ranks, p.hidden}));
  for (int s = 0; s < p.num_ranks; ++s) {
    const RankInput& in = inputs[static_cast<size_t>(s)];
    for (int64_t i = 0; i < in.ids.numel(); ++i) {
      const int32_t id = in.ids.data<int32_t>()[i];
      if (id < 0 || placement.rank_of(id) != rank) {
        continue;
      }
      const int64_t l = placement.local_index(id);
      const int64_t row = next[static_cast<size_t>(l)]++;
      const Tensor sent = in.x[i / p.topk];
      if (cast == LowLatencyCast::kNone) {
        ASSERT_TRUE(same_bytes(output.x[l][row], sent)) << "expert " << l << " row " << row;
      } else {
        expect_cast(sent, output.x[l][row], output.x_scale[l][row],
                    cast == LowLatencyCast::kFp8Ue8m0);
      }
    }
  }
  for (size_t l = 0; l < next.size(); ++l) {
    ASSERT_EQ(output.expert_num_tokens.data<int32_t>()[l], next[l]);
  }
}

// Expert e multiplies a row by (e + 1).
Tensor run_experts(const DispatchProblem& p, int rank, const LowLatencyDispatchOutput& received) {
  const Tensor y = Tensor::empty(received.x.shape(), DType::kBF16);
  const ExpertPlacement placement = p.placement();
  for (int64_t e = 0; e < p.num_experts; ++e) {
    if (placement.rank_of(e) != rank) {
      continue;
    }
    const int64_t l = placement.local_index(e);
    const int64_t count = received.expert_num_tokens.data<int32_t>()[l];
    const auto* x = received.x[l].data<BFloat16>();
    auto* to = y[l].data<BFloat16>();
    for (int64_t i = 0; i < count * p.hidden; ++i) {
      to[i] = BFloat16(static_cast<float>(x[i]) * static_cast<float>(e + 1));
    }
  }
  return y;
}

Tensor expected_combined(const DispatchProblem& p, const RankInput& in, const std::set<int>& dead) {
  const ExpertPlacement placement = p.placement();
  const Tensor out = Tensor::empty(in.x.shape(), DType::kBF16);
  for (int64_t t = 0; t < in.x.dim(0); ++t) {
    for (int64_t h = 0; h < p.hidden; ++h) {
      float sum = 0.0f;
      for (int64_t k = 0; k < p.topk; ++k) {
        const int32_t id = in.ids.data<int32_t>()[t * p.topk + k];
        if (id >= 0 && !dead.contains(placement.rank_of(id))) {
          const float y = get_float(in.x, t * p.hidden + h) * static_cast<float>(id + 1);
          sum += in.weights.data<float>()[t * p.topk + k] * static_cast<float>(BFloat16(y));
        }
      }
      set_float(out, t * p.hidden + h, sum);
    }
  }
  return out;
}

// With sums per rank, in plain words.
Tensor expected_sums_of_ranks(const DispatchProblem& p,
                              const RankInput& in,
                              const std::set<int>& dead) {
  const ExpertPlacement placement = p.placement();
  const Tensor out = Tensor::empty(in.x.shape(), DType::kBF16);
  for (int64_t t = 0; t < in.x.dim(0); ++t) {
    for (int64_t h = 0; h < p.hidden; ++h) {
      float total = 0.0f;
      for (int r = 0; r < p.num_ranks; ++r) {
        float sum = 0.0f;
        for (int64_t k = 0; k < p.topk && !dead.contains(r); ++k) {
          const int32_t id = in.ids.data<int32_t>()[t * p.topk + k];
          if (id >= 0 && placement.rank_of(id) == r) {
            const float y = get_float(in.x, t * p.hidden + h) * static_cast<float>(id + 1);
            sum += in.weights.data<float>()[t * p.topk + k] * static_cast<float>(BFloat16(y));
          }
        }
        total += static_cast<float>(BFloat16(sum));
      }
      set_float(out, t * p.hidden + h, total);
    }
  }
  return out;
}

class LowLatencyTest : public ::testing::TestWithParam<GroupShape> {
 protected:
  // Both banks, one of them again; many ranks share few CPUs.
  static int num_calls() { return GetParam().num_ranks > 8 ? 1 : 3; }
};

TEST_P(LowLatencyTest, EveryRowIsWhereItMustBeAndComesBackWeighted) {
  for (const DispatchProblem& p : low_latency_problems(GetParam().num_ranks)) {
    SCOPED_TRACE(p.seed);
    const std::vector<RankInput> inputs = make_inputs(p);
    run_ranks(GetParam(), [&](Group& group) {
      const int rank = group.rank();
      SCOPED_TRACE("rank " + std::to_string(rank));
      const RankInput& in = inputs[static_cast<size_t>(rank)];
      const Stream stream = Stream::cpu(1);
      LowLatency transport(group, p.placement(), options_for(p));
      for (const LowLatencyCast cast :
           {LowLatencyCast::kNone, LowLatencyCast::kFp8, LowLatencyCast::kFp8Ue8m0}) {
        if (cast != LowLatencyCast::kNone && p.hidden % 128 != 0) {
          EXPECT_THROW(transport.dispatch({in.x, in.ids, cast}, stream), InvalidArgument);
          continue;
        }
        const auto received = transport.dispatch({in.x, in.ids, cast}, stream);
        expect_dispatched(p, inputs, rank, cast, received);
        if (cast == LowLatencyCast::kNone) {
          const Tensor out = Tensor::empty(in.x.shape(), DType::kBF16);
          transport.combine({run_experts(p, rank, received), in.ids, in.weights}, *received.handle,
                            stream, out);
          EXPECT_TRUE(same_bytes(out, expected_combined(p, in, {})));
        }
      }
    });
  }
}

TEST_P(LowLatencyTest, SumsOfRanksAreRoundedAndSummedInOrderOfRank) {
  for (const DispatchProblem& p : low_latency_problems(GetParam().num_ranks)) {
    SCOPED_TRACE(p.seed);
    const std::vector<RankInput> inputs = make_inputs(p);
    run_ranks(GetParam(), [&](Group& group) {
      const int rank = group.rank();
      SCOPED_TRACE("rank " + std::to_string(rank));
      const RankInput& in = inputs[static_cast<size_t>(rank)];
      const Stream stream = Stream::cpu(1);
      LowLatencyOptions options = options_for(p);
      options.sum = LowLatencySum::kRanks;
      if (group.topology().num_nodes() > 1) {
        EXPECT_THROW(LowLatency(group, p.placement(), options), Unsupported);
        return;
      }
      LowLatency transport(group, p.placement(), options);
      for (int call = 0; call < kRounds; ++call) {
        const auto received = transport.dispatch({in.x, in.ids, LowLatencyCast::kNone}, stream);
        const Tensor weights = in.weights.clone();
        for (int64_t i = 0; i < weights.numel(); ++i) {
          weights.data<float>()[i] *= static_cast<float>(call + 1);
        }
        const Tensor out = Tensor::empty(in.x.shape(), DType::kBF16);
        transport.combine({run_experts(p, rank, received), in.ids, weights}, *received.handle,
                          stream, out);
        EXPECT_TRUE(
            same_bytes(out, expected_sums_of_ranks(p, {in.x, in.code, in.ids, weights}, {})));
      }
    });
  }
}

// Send halves of two calls before either receive half, combines in the same manner, many times
// over; every other time the second call comes back first.
TEST_P(LowLatencyTest, TwoCallsInFlightDoNotDisturbEachOther) {
  const DispatchProblem p = low_latency_problems(GetParam().num_ranks)[0];
  DispatchProblem q = p;
  q.seed = 99;
  const auto first_inputs = make_inputs(p);
  const auto second_inputs = make_inputs(q);
  run_ranks(GetParam(), [&](Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    const RankInput& a = first_inputs[rank];
    const RankInput& b = second_inputs[rank];
    const Stream stream = Stream::cpu(1);
    LowLatency transport(group, p.placement(), options_for(p));
    for (int round = 0; round < kRounds; ++round) {
      auto pending_a = transport.dispatch_async({a.x, a.ids, LowLatencyCast::kNone}, stream);
      auto pending_b = transport.dispatch_async({b.x, b.ids, LowLatencyCast::kNone}, stream);
      EXPECT_THROW(transport.dispatch_async({a.x, a.ids, LowLatencyCast::kNone}, stream),
                   InvalidArgument);
      pending_a.hook();
      pending_b.hook();
      const auto from_a = pending_a.receive();
      const auto from_b = pending_b.receive();
      pending_a = {};
      pending_b = {};
      expect_dispatched(p, first_inputs, group.rank(), LowLatencyCast::kNone, from_a);
      expect_dispatched(q, second_inputs, group.rank(), LowLatencyCast::kNone, from_b);
      const Tensor out_a = Tensor::empty(a.x.shape(), DType::kBF16);
      const Tensor out_b = Tensor::empty(b.x.shape(), DType::kBF16);
      const auto combine_a = [&] {
        return transport.combine_async({run_experts(p, group.rank(), from_a), a.ids, a.weights},
                                       *from_a.handle, stream, out_a);
      };
      const auto combine_b = [&] {
        return transport.combine_async({run_experts(q, group.rank(), from_b), b.ids, b.weights},
                                       *from_b.handle, stream, out_b);
      };
      const bool is_swapped = round % 2 == 1;
      auto first = is_swapped ? combine_b() : combine_a();
      auto second = is_swapped ? combine_a() : combine_b();
      first.finish();
      second.finish();
      EXPECT_TRUE(same_bytes(out_a, expected_combined(p, a, {})));
      EXPECT_TRUE(same_bytes(out_b, expected_combined(q, b, {})));
    }
    const ExpertPlacement placement = p.placement();
    int64_t expected = 0;
    for (int s = 0; s < p.num_ranks; ++s) {
      for (const auto* inputs : {&first_inputs, &second_inputs}) {
        const Tensor& ids = (*inputs)[static_cast<size_t>(s)].ids;
        for (int64_t i = 0; i < ids.numel(); ++i) {
          const int32_t id = ids.data<int32_t>()[i];
          expected += id >= 0 && placement.rank_of(id) == group.rank();
        }
      }
    }
    int64_t counted = 0;
    const Tensor statistics = transport.expert_statistics();
    for (int64_t l = 0; l < statistics.numel(); ++l) {
      counted += statistics.data<int64_t>()[l];
    }
    EXPECT_EQ(counted, kRounds * expected);
    const TransportStatistics sent_a = expected_sent(p, a, group.topology());
    const TransportStatistics sent_b = expected_sent(q, b, group.topology());
    const TransportStatistics sent = transport.statistics();
    EXPECT_EQ(sent.selections, kRounds * (sent_a.selections + sent_b.selections));
    EXPECT_EQ(sent.copies, kRounds * (sent_a.copies + sent_b.copies));
    EXPECT_EQ(sent.node_copies, kRounds * (sent_a.node_copies + sent_b.node_copies));
    transport.reset_statistics();
    EXPECT_EQ(get_float(transport.expert_statistics(), 0), 0.0f);
    EXPECT_EQ(transport.statistics().selections, 0);
  });
}

// Every token names its first expert in every other slot as well.
TEST_P(LowLatencyTest, AnExpertNamedTwiceByATokenHasTwoOfItsRows) {
  for (const LowLatencySum sum : {LowLatencySum::kSelections, LowLatencySum::kRanks}) {
    if (sum == LowLatencySum::kRanks && GetParam().ranks_per_node != 0) {
      continue;  // one node
    }
    DispatchProblem p = low_latency_problems(GetParam().num_ranks)[0];
    p.hidden = 16;
    std::vector<RankInput> inputs = make_inputs(p);
    for (RankInput& in : inputs) {
      auto* ids = in.ids.data<int32_t>();
      for (int64_t i = 0; i < in.ids.numel(); ++i) {
        ids[i] = i % 2 == 0 ? ids[i / p.topk * p.topk] : ids[i];
      }
    }
    run_ranks(GetParam(), [&](Group& group) {
      const RankInput& in = inputs[static_cast<size_t>(group.rank())];
      const Stream stream = Stream::cpu(1);
      LowLatencyOptions options = options_for(p);
      options.sum = sum;
      LowLatency transport(group, p.placement(), options);
      for (int call = 0; call < num_calls(); ++call) {
        const auto received = transport.dispatch({in.x, in.ids, LowLatencyCast::kNone}, stream);
        expect_dispatched(p, inputs, group.rank(), LowLatencyCast::kNone, received);
        const Tensor out = Tensor::empty(in.x.shape(), DType::kBF16);
        transport.combine({run_experts(p, group.rank(), received), in.ids, in.weights},
                          *received.handle, stream, out);
        EXPECT_TRUE(same_bytes(out, sum == LowLatencySum::kRanks ? expected_sums_of_ranks(p, in, {})
                                                                 : expected_combined(p, in, {})));
      }
    });
  }
}

// All tokens of all ranks to one expert: as many rows as it has room for.  A row more is refused by
// the rank that would send it, before its peers hear anything.
TEST_P(LowLatencyTest, AnExpertNamedTooOftenIsRefused) {
  DispatchProblem p;
  p.num_ranks = GetParam().num_ranks;
  p.tokens.assign(static_cast<size_t>(p.num_ranks), kMaxTokens / 2 + 1);
  p.num_experts = 2 * p.num_ranks;
  p.hidden = 16;
  p.masked = 0;
  std::vector<RankInput> inputs = make_inputs(p);
  const auto last = static_cast<int32_t>(p.num_experts - 1);
  for (RankInput& in : inputs) {
    std::fill_n(in.ids.data<int32_t>(), in.ids.numel(), last);
    std::fill_n(in.ids.data<int32_t>() + kMaxTokens, in.ids.numel() - kMaxTokens, -1);
  }
  run_ranks(GetParam(), [&](Group& group) {
    const int rank = group.rank();
    const RankInput& in = inputs[static_cast<size_t>(rank)];
    LowLatency transport(group, p.placement(), options_for(p));
    const Stream stream = Stream::cpu(1);
    const Tensor too_many = in.ids.clone();
    too_many.data<int32_t>()[kMaxTokens] = last;
    for (int call = 0; call < num_calls(); ++call) {
      if (rank == p.num_ranks - 1) {
        try {
          transport.dispatch({in.x, too_many, LowLatencyCast::kNone}, stream);
          ADD_FAILURE() << "took 65 rows for an expert with room for 64 of a rank";
        } catch (const InvalidArgument& error) {
          EXPECT_EQ(std::string(error.what()), "tokens of rank " + std::to_string(rank) +
                                                   " name expert " + std::to_string(last) +
                                                   " 65 times, expected at most 64 (max_tokens)");
        }
      }
      const auto received = transport.dispatch({in.x, in.ids, LowLatencyCast::kNone}, stream);
      expect_dispatched(p, inputs, rank, LowLatencyCast::kNone, received);
    }
  });
}

int32_t tag_of(int rank, int64_t token) {
  return static_cast<int32_t>(1000 * rank + token);
}

// Ranks of odd number give no tags.
TEST_P(LowLatencyTest, TagsTravelWithTheirTokens) {
  for (const DispatchProblem& p : low_latency_problems(GetParam().num_ranks)) {
    SCOPED_TRACE(p.seed);
    const std::vector<RankInput> inputs = make_inputs(p);
    run_ranks(GetParam(), [&](Group& group) {
      const int rank = group.rank();
      SCOPED_TRACE("rank " + std::to_string(rank));
      const RankInput& in = inputs[static_cast<size_t>(rank)];
      Tensor tags;
      if (rank % 2 == 0) {
        tags = Tensor::empty({in.x.dim(0)}, DType::kI32);
        for (int64_t t = 0; t < tags.numel(); ++t) {
          tags.data<int32_t>()[t] = tag_of(rank, t);
        }
      }
      LowLatency transport(group, p.placement(), options_for(p));
      for (int call = 0; call < 3; ++call) {  // both banks, one of them again
        const auto received =
            transport.dispatch({in.x, in.ids, LowLatencyCast::kNone, tags}, Stream::cpu(1));
        const ExpertPlacement placement = p.placement();
        ASSERT_EQ(received.row_tags.shape(),
                  Shape({placement.num_local(rank), kMaxTokens * p.num_ranks}));
        std::vector<int64_t> next(static_cast<size_t>(placement.num_local(rank)), 0);
        for (int s = 0; s < p.num_ranks; ++s) {
          const RankInput& from = inputs[static_cast<size_t>(s)];
          for (int64_t i = 0; i < from.ids.numel(); ++i) {
            const int32_t id = from.ids.data<int32_t>()[i];
            if (id >= 0 && placement.rank_of(id) == rank) {
              const int64_t l = placement.local_index(id);
              const int64_t row = next[static_cast<size_t>(l)]++;
              ASSERT_EQ(received.row_tags[l].data<int32_t>()[row],
                        s % 2 == 0 ? tag_of(s, i / p.topk) : -1)
                  << "expert " << l << " row " << row;
            }
          }
        }
        expect_dispatched(p, inputs, rank, LowLatencyCast::kNone, received);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Groups,
                         LowLatencyTest,
                         ::testing::ValuesIn(group_shapes()),
                         [](const auto& shape) { return to_string(shape.param); });

TEST(LowLatencyErrors, AreSaidBeforeAnythingIsSent) {
  run_thread_ranks({}, [](Group& group) {
    const LowLatencyOptions options{4, 128, 2, DType::kBF16};
    LowLatency transport(group, ExpertPlacement::linear(4, 1), options);
    const Stream stream = Stream::cpu(1);
    const auto dispatch = [&](int64_t tokens, int64_t hidden, int64_t topk) {
      const Tensor ids = Tensor::empty({tokens, topk}, DType::kI32);
      for (int64_t i = 0; i < ids.numel(); ++i) {
        ids.data<int32_t>()[i] = static_cast<int32_t>(i % topk);
      }
      transport.dispatch(
          {Tensor::zeros({tokens, hidden}, DType::kBF16), ids, LowLatencyCast::kNone}, stream);
    };
    try {
      dispatch(5, 128, 2);
      ADD_FAILURE() << "took 5 tokens of at most 4";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("is 5, expected at most 4"), std::string::npos)
          << error.what();
    }
    EXPECT_THROW(dispatch(4, 64, 2), InvalidArgument);
    EXPECT_THROW(dispatch(4, 128, 3), InvalidArgument);
    EXPECT_NO_THROW(dispatch(4, 128, 2));
    EXPECT_THROW(transport.dispatch(
                     {Tensor::zeros({4, 128}, DType::kBF16), Tensor::zeros({4, 2}, DType::kI32),
                      LowLatencyCast::kNone, Tensor::zeros({3}, DType::kI32)},
                     stream),
                 InvalidArgument);
    EXPECT_THROW(transport.set_dead(0, true), InvalidArgument);
    EXPECT_THROW(LowLatency(group, ExpertPlacement::linear(4, 1), {0, 128, 2, DType::kBF16}),
                 InvalidArgument);
  });
}

// Neither is the infinity clipped nor do its neighbours pass for what they are not.
TEST(LowLatencyCast, AnInfinityMakesTheScaleOfItsGroupInfinite) {
  run_thread_ranks({}, [](Group& group) {
    LowLatency transport(group, ExpertPlacement::linear(1, 1), {1, 256, 1, DType::kF32});
    const Tensor x = Tensor::zeros({1, 256}, DType::kF32);
    std::fill_n(x.data<float>(), x.numel(), 2.0f);
    x.data<float>()[0] = std::numeric_limits<float>::infinity();
    for (const LowLatencyCast cast : {LowLatencyCast::kFp8, LowLatencyCast::kFp8Ue8m0}) {
      const auto received =
          transport.dispatch({x, Tensor::zeros({1, 1}, DType::kI32), cast}, Stream::cpu(1));
      EXPECT_TRUE(std::isinf(get_float(received.x_scale, 0)));
      EXPECT_TRUE(std::isnan(get_float(received.x, 0)));
      EXPECT_EQ(get_float(received.x, 1), 0.0f);
      EXPECT_GT(get_float(received.x, 128), 0.0f);  // another group
      EXPECT_TRUE(std::isfinite(get_float(received.x_scale, 1)));
    }
  });
}

TEST(LowLatencyResults, MayOutliveTheObject) {
  run_thread_ranks({}, [](Group& group) {
    std::optional<LowLatency> transport;
    transport.emplace(group, ExpertPlacement::linear(1, 1),
                      LowLatencyOptions{64, 1024, 1, DType::kF32});
    const Tensor x = Tensor::zeros({64, 1024}, DType::kF32);
    std::fill_n(x.data<float>(), x.numel(), 2.0f);
    const auto received = transport->dispatch(
        {x, Tensor::zeros({64, 1}, DType::kI32), LowLatencyCast::kNone}, Stream::cpu(1));
    transport.reset();
    std::vector<Tensor> others;  // where the result lay, were its memory free
    for (int i = 0; i < 16; ++i) {
      others.push_back(Tensor::zeros(received.x.shape(), DType::kF32));
      others.push_back(Tensor::zeros(received.row_tags.shape(), DType::kI32));
    }
    EXPECT_TRUE(same_bytes(received.x[0], x));
    EXPECT_EQ(received.row_tags.data<int32_t>()[63], -1);
  });
}

// Nothing of what is said to be on a GPU is read.
TEST(LowLatencyErrors, OperandsElsewhereAreRefused) {
  run_thread_ranks({}, [](Group& group) {
    LowLatency transport(group, ExpertPlacement::linear(4, 1), {4, 128, 2, DType::kBF16});
    const Stream stream = Stream::cpu(1);
    const auto elsewhere = [](const Tensor& t) {
      return Tensor::borrow(t.raw(), t.shape(), t.dtype(), Device::cuda(0));
    };
    const Tensor x = Tensor::zeros({4, 128}, DType::kBF16);
    const Tensor ids = Tensor::zeros({4, 2}, DType::kI32);
    std::fill_n(ids.data<int32_t>(), ids.numel(), -1);
    const Tensor weights = Tensor::zeros(ids.shape(), DType::kF32);
    const Tensor tags = Tensor::zeros({4}, DType::kI32);
    const auto dispatch = [&](const Tensor& rows, const Tensor& slots, const Tensor& row_tags) {
      return transport.dispatch({rows, slots, LowLatencyCast::kNone, row_tags}, stream);
    };
    EXPECT_THROW(dispatch(elsewhere(x), ids, tags), InvalidArgument);
    EXPECT_THROW(dispatch(x, elsewhere(ids), tags), InvalidArgument);
    EXPECT_THROW(dispatch(x, ids, elsewhere(tags)), InvalidArgument);
    const auto received = dispatch(x, ids, tags);
    const auto combine = [&](const Tensor& rows, const Tensor& slots, const Tensor& w,
                             const Tensor& out) {
      transport.combine({rows, slots, w}, *received.handle, stream, out);
    };
    const Tensor out = x.clone();
    EXPECT_THROW(combine(elsewhere(received.x), ids, weights, out), InvalidArgument);
    EXPECT_THROW(combine(received.x, elsewhere(ids), weights, out), InvalidArgument);
    EXPECT_THROW(combine(received.x, ids, elsewhere(weights), out), InvalidArgument);
    EXPECT_THROW(combine(received.x, ids, weights, elsewhere(out)), InvalidArgument);
    EXPECT_NO_THROW(combine(received.x, ids, weights, out));
  });
}

// A body that lets the error pass ends its rank, and the others say why.
TEST(LowLatencyErrors, AnExpertNamedTooOftenIsToldToEveryRank) {
  std::vector<std::string> errors;
  EXPECT_THROW(run_thread_ranks(
                   {.num_ranks = 4},
                   [](Group& group) {
                     const LowLatencyOptions options{4, 128, 2, DType::kBF16};
                     LowLatency transport(group, ExpertPlacement::linear(4, 4), options);
                     const Tensor ids = Tensor::zeros({3, 2}, DType::kI32);  // 6 rows for expert 0
                     if (group.rank() != 2) {
                       std::fill_n(ids.data<int32_t>(), ids.numel(), -1);
                     }
                     transport.dispatch(
                         {Tensor::zeros({3, 128}, DType::kBF16), ids, LowLatencyCast::kNone},
                         Stream::cpu(1));
                     group.barrier("end");
                   },
                   &errors),
               InvalidArgument);
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("tokens of rank 2 name expert 0 6 times, expected at most 4"),
              std::string::npos)
        << error;
  }
}

// The last rank makes one call and then no more.  The others are told who is missing, give it up
// and go on: its experts contribute nothing.
TEST(LowLatencyMask, GoesOnWithoutADeadRank) {
  if (runs_on_mpi()) {
    GTEST_SKIP() << "one rank leaves the job";
  }
  DispatchProblem p = low_latency_problems(4)[0];
  const auto inputs = make_inputs(p);
  ThreadGroupOptions options;
  options.num_ranks = 4;
  std::vector<int> survivors(4, 0);
  run_thread_ranks(options, [&](Group& group) {
    const auto rank = static_cast<size_t>(group.rank());
    const RankInput& in = inputs[rank];
    const Stream stream = Stream::cpu(1);
    LowLatency transport(group, p.placement(), options_for(p));
    transport.dispatch({in.x, in.ids, LowLatencyCast::kNone}, stream);
    if (rank == 3) {
      return;
    }
    try {
      transport.dispatch({in.x, in.ids, LowLatencyCast::kNone}, stream);
      ADD_FAILURE() << "rank " << rank << " did not miss rank 3";
    } catch (const CommError& error) {
      EXPECT_EQ(error.peer(), 3) << error.what();
    }
    transport.set_dead(3, true);
    transport.reset_statistics();
    for (int call = 0; call < 5; ++call) {
      const auto received = transport.dispatch({in.x, in.ids, LowLatencyCast::kNone}, stream);
      const Tensor out = Tensor::empty(in.x.shape(), DType::kBF16);
      transport.combine({run_experts(p, group.rank(), received), in.ids, in.weights},
                        *received.handle, stream, out);
      EXPECT_TRUE(same_bytes(out, expected_combined(p, in, {3})));
    }
    const TransportStatistics sent = expected_sent(p, in, group.topology(), {3});
    EXPECT_EQ(transport.statistics().selections, 5 * sent.selections);
    EXPECT_EQ(transport.statistics().copies, 5 * sent.copies);
    survivors[rank] = 1;
  });
  EXPECT_EQ(survivors, (std::vector<int>{1, 1, 1, 0}));
}

// The ranks that go on have not failed in the same call: they agree on their numbers again.
TEST(LowLatencyMask, GoesOnFromDifferentCalls) {
  if (runs_on_mpi()) {
    GTEST_SKIP() << "one rank leaves the job";
  }
  const DispatchProblem p = low_latency_problems(4)[0];
  const auto inputs = make_inputs(p);
  ThreadGroupOptions options;
  options.num_ranks = 4;
  std::vector<int> rounds(4, 0);
  run_thread_ranks(options, [&](Group& group) {
    const int rank = group.rank();
    const RankInput& in = inputs[static_cast<size_t>(rank)];
    const Stream stream = Stream::cpu(1);
    LowLatency transport(group, p.placement(), options_for(p));
    if (rank == 3) {
      return;
    }
    if (rank == 0) {  // finds out elsewhere, and tells the others
      EXPECT_THROW(group.barrier("step"), CommError);
    }
    const int failed_calls = rank;
    for (int call = 0; call < failed_calls; ++call) {
      EXPECT_THROW(transport.dispatch({in.x, in.ids, LowLatencyCast::kNone}, stream), CommError);
    }
    transport.set_dead(3, true);
    for (int call = 0; call < 5; ++call) {
      const auto received = transport.dispatch({in.x, in.ids, LowLatencyCast::kNone}, stream);
      const Tensor out = Tensor::empty(in.x.shape(), DType::kBF16);
      transport.combine({run_experts(p, rank, received), in.ids, in.weights}, *received.handle,
                        stream, out);
      rounds[static_cast<size_t>(rank)] += same_bytes(out, expected_combined(p, in, {3})) ? 1 : 0;
    }
  });
  EXPECT_EQ(rounds, (std::vector<int>{5, 5, 5, 0}));
}

TEST(LowLatencySize, HintIsWhatIsMapped) {
  LowLatencyOptions options{128, 7168, 8, DType::kBF16};
  // Two banks of 8 mailboxes of 128 messages (48 bytes of token, tag and ids, 14336 of row) and 128
  // x 8 rows.
  const int64_t mailbox = 64 + 128 * (48 + 14336);
  const int64_t bank = (8 * mailbox + 128 * 8 * 14336 + 255) / 256 * 256;
  const int64_t signals = 8 * 5 * 2 * 8;
  EXPECT_EQ(LowLatency::size_hint(options, 8, 256), 2 * bank + signals);
  options.sum = LowLatencySum::kRanks;  // and 8 ranks' weights
  EXPECT_EQ(LowLatency::size_hint(options, 8, 256), 2 * (bank + 8 * 4 * 128 * 8) + signals);
}

}  // namespace
}  // namespace moebius::testing
