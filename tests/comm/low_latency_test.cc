// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Low latency on CPUs: every row and every sum is compared with what the whole problem says it must
// be.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "tests/comm/low_latency_calls.h"
#include "tests/error_text.h"

namespace moebius::testing {
namespace {

constexpr int kRounds = 6;  // every round uses each bank again

TEST_P(LowLatencyTest, EveryRowIsWhereItMustBeAndComesBackWeighted) {
  for (const DispatchProblem& p : low_latency_problems(GetParam().num_ranks)) {
    run(p, make_inputs(p), [&](LowLatencyRank& r) {
      for (const LowLatencyCast cast :
           {LowLatencyCast::kNone, LowLatencyCast::kFp8, LowLatencyCast::kFp8Ue8m0}) {
        if (cast != kNoCast && p.hidden % 128 != 0) {
          EXPECT_THROW(r.dispatch(cast), InvalidArgument);
          continue;
        }
        const auto received = r.dispatch(cast);
        expect_dispatched(p, r.inputs, r.rank, received, cast);
        if (cast == kNoCast) {
          EXPECT_TRUE(same_bytes(r.combine(received, r.in.weights), expected_combined(p, r.in)));
        }
      }
    });
  }
}

TEST_P(LowLatencyTest, SumsOfRanksAreRoundedAndSummedInOrderOfRank) {
  if (GetParam().ranks_per_node != 0) {
    const DispatchProblem p = low_latency_problems(GetParam().num_ranks)[0];
    run_ranks(GetParam(), [&](Group& group) {
      const LowLatencyOptions options = options_for(p, LowLatencySum::kRanks);
      if (group.topology().num_nodes() > 1) {
        EXPECT_THROW(LowLatency(group, p.placement(), options), Unsupported);
      }
    });
    return;
  }
  for (const DispatchProblem& p : low_latency_problems(GetParam().num_ranks)) {
    const auto body = [&](LowLatencyRank& r) {
      for (int call = 0; call < kRounds; ++call) {
        const Tensor weights = r.in.weights.clone();
        for (int64_t i = 0; i < weights.numel(); ++i) {
          weights.data<float>()[i] *= static_cast<float>(call + 1);
        }
        EXPECT_TRUE(
            same_bytes(r.combine(r.dispatch(), weights),
                       expected_combined(p, {r.in.x, r.in.code, r.in.ids, weights}, {}, r.sum)));
      }
    };
    run(p, make_inputs(p), body, LowLatencySum::kRanks);
  }
}

// Both forms of a call wait for `previous` and say when their outputs are complete; on CPUs that is
// when the call returns.
TEST_P(LowLatencyTest, EventsOrderTheCalls) {
  const DispatchProblem p = low_latency_problems(GetParam().num_ranks)[0];
  run(p, make_inputs(p), [&](LowLatencyRank& r) {
    for (const bool is_async : {false, true}) {
      const LowLatencyDispatchInput tokens{
          .x = r.in.x, .topk_ids = r.in.ids, .previous = r.stream.record(), .records_event = true};
      const auto received = is_async ? r.transport.dispatch_async(tokens, r.stream).finish()
                                     : r.transport.dispatch(tokens, r.stream);
      EXPECT_TRUE(received.event.is_complete());
      expect_dispatched(p, r.inputs, r.rank, received);
      const LowLatencyCombineInput rows{.x = run_experts(p, r.rank, received),
                                        .topk_ids = r.in.ids,
                                        .topk_weights = r.in.weights,
                                        .previous = received.event,
                                        .records_event = true};
      const auto sums = is_async
                            ? r.transport.combine_async(rows, *received.handle, r.stream).finish()
                            : r.transport.combine(rows, *received.handle, r.stream);
      EXPECT_TRUE(sums.event.is_complete());
      EXPECT_TRUE(same_bytes(sums.x, expected_combined(p, r.in)));
    }
  });
}

// The send halves of two calls come before either receive half, for combines, too.  In every other
// round the second call is combined first.
TEST_P(LowLatencyTest, TwoCallsInFlightDoNotDisturbEachOther) {
  const DispatchProblem p = low_latency_problems(GetParam().num_ranks)[0];
  DispatchProblem q = p;
  q.seed = 99;
  const auto first_inputs = make_inputs(p);
  const auto second_inputs = make_inputs(q);
  run(p, first_inputs, [&](LowLatencyRank& r) {
    const RankInput& a = r.in;
    const RankInput& b = second_inputs[static_cast<size_t>(r.rank)];
    const auto dispatch = [&](const RankInput& in) {
      return r.transport.dispatch_async({in.x, in.ids, kNoCast}, r.stream);
    };
    for (int round = 0; round < kRounds; ++round) {
      auto pending_a = dispatch(a);
      auto pending_b = dispatch(b);
      EXPECT_THROW(dispatch(a), InvalidArgument);
      pending_a.hook();
      pending_b.hook();
      const auto from_a = pending_a.receive();
      const auto from_b = pending_b.receive();
      pending_a = {};
      pending_b = {};
      expect_dispatched(p, first_inputs, r.rank, from_a);
      expect_dispatched(q, second_inputs, r.rank, from_b);
      const auto combine = [&](const RankInput& in, const LowLatencyDispatchOutput& received) {
        return r.transport.combine_async({run_experts(p, r.rank, received), in.ids, in.weights},
                                         *received.handle, r.stream);
      };
      const bool is_swapped = round % 2 == 1;
      auto first = is_swapped ? combine(b, from_b) : combine(a, from_a);
      auto second = is_swapped ? combine(a, from_a) : combine(b, from_b);
      const Tensor first_sums = first.finish().x;
      const Tensor second_sums = second.finish().x;
      EXPECT_TRUE(same_bytes(is_swapped ? second_sums : first_sums, expected_combined(p, a)));
      EXPECT_TRUE(same_bytes(is_swapped ? first_sums : second_sums, expected_combined(q, b)));
    }
    int64_t expected = 0;
    for (const auto* inputs : {&first_inputs, &second_inputs}) {
      for_each_row(p, *inputs, r.rank, [&](int, int64_t, int64_t, int64_t) { ++expected; });
    }
    int64_t counted = 0;
    const Tensor statistics = r.transport.expert_statistics();
    for (int64_t l = 0; l < statistics.numel(); ++l) {
      counted += statistics.data<int64_t>()[l];
    }
    EXPECT_EQ(counted, kRounds * expected);
    const TransportStatistics sent_a = expected_sent(p, a, r.group.topology());
    const TransportStatistics sent_b = expected_sent(q, b, r.group.topology());
    const TransportStatistics sent = r.transport.statistics();
    EXPECT_EQ(sent.selections, kRounds * (sent_a.selections + sent_b.selections));
    EXPECT_EQ(sent.copies, kRounds * (sent_a.copies + sent_b.copies));
    EXPECT_EQ(sent.node_copies, kRounds * (sent_a.node_copies + sent_b.node_copies));
    r.transport.reset_statistics();
    EXPECT_EQ(get_float(r.transport.expert_statistics(), 0), 0.0f);
    EXPECT_EQ(r.transport.statistics().selections, 0);
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
    const auto body = [&](LowLatencyRank& r) {
      for (int call = 0; call < num_calls(); ++call) {
        const auto received = r.dispatch();
        expect_dispatched(p, inputs, r.rank, received);
        EXPECT_TRUE(
            same_bytes(r.combine(received, r.in.weights), expected_combined(p, r.in, {}, sum)));
      }
    };
    run(p, inputs, body, sum);
  }
}

// All tokens of all ranks go to one expert, with as many rows as it has room for.  The rank that
// would send one row more refuses it before its peers hear anything.
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
  run(p, inputs, [&](LowLatencyRank& r) {
    const Tensor too_many = r.in.ids.clone();
    too_many.data<int32_t>()[kMaxTokens] = last;
    for (int call = 0; call < num_calls(); ++call) {
      if (r.rank == p.num_ranks - 1) {
        try {
          r.transport.dispatch({r.in.x, too_many, kNoCast}, r.stream);
          ADD_FAILURE() << "took 65 rows for an expert with room for 64 of a rank";
        } catch (const InvalidArgument& error) {
          EXPECT_EQ(std::string(error.what()), "tokens of rank " + std::to_string(r.rank) +
                                                   " name expert " + std::to_string(last) +
                                                   " 65 times, expected at most 64 (max_tokens)");
        }
      }
      expect_dispatched(p, inputs, r.rank, r.dispatch());
    }
  });
}

TEST_P(LowLatencyTest, IdsOf64BitsGiveTheSameRowsAndSums) {
  const DispatchProblem p = low_latency_problems(GetParam().num_ranks)[0];
  run(p, make_inputs(p), [&](LowLatencyRank& r) {
    const Tensor wide = convert(r.in.ids, DType::kI64);
    const auto received = r.transport.dispatch({r.in.x, wide, kNoCast}, r.stream);
    expect_dispatched(p, r.inputs, r.rank, received);
    const auto sums = r.transport.combine({run_experts(p, r.rank, received), wide, r.in.weights},
                                          *received.handle, r.stream);
    EXPECT_TRUE(same_bytes(sums.x, expected_combined(p, r.in)));
  });
}

// A call may have less room than the object, down to the tokens that there are.
TEST_P(LowLatencyTest, ACallMayHaveLessRoom) {
  const DispatchProblem p = low_latency_problems(GetParam().num_ranks)[0];
  run(p, make_inputs(p), [&](LowLatencyRank& r) {
    for (const int64_t room : {int64_t{40}, kMaxTokens, int64_t{33}}) {
      const auto received =
          r.transport.dispatch({.x = r.in.x, .topk_ids = r.in.ids, .max_tokens = room}, r.stream);
      expect_dispatched(p, r.inputs, r.rank, received, kNoCast, room);
      EXPECT_TRUE(same_bytes(r.combine(received, r.in.weights), expected_combined(p, r.in)));
    }
    for (const int64_t room : {int64_t{32}, kMaxTokens + 1, int64_t{-1}}) {
      EXPECT_THROW(
          r.transport.dispatch({.x = r.in.x, .topk_ids = r.in.ids, .max_tokens = room}, r.stream),
          InvalidArgument);
    }
  });
}

// Keeps what calls of a rank add to its tensor of waits.
class AddedWaits {
 public:
  AddedWaits(int num_ranks, int late) : us_(Tensor::zeros({num_ranks}, DType::kI64)), late_(late) {}

  const Tensor& us() const { return us_; }
  // Returns the most that a call has added for the rank that is late.
  int64_t longest_us() const { return longest_us_; }
  // Runs a call, and expects that it adds no more than it took.
  void run(const std::function<void()>& call) {
    const Tensor before = us_.clone();
    const auto begin = std::chrono::steady_clock::now();
    call();
    const auto took = std::chrono::steady_clock::now() - begin;
    for (int64_t r = 0; r < us_.numel(); ++r) {
      const std::chrono::microseconds added(us_.data<int64_t>()[r] - before.data<int64_t>()[r]);
      EXPECT_GE(added.count(), 0) << "for rank " << r;
      EXPECT_LE(added, took) << "for rank " << r;
      if (r == late_) {
        longest_us_ = std::max<int64_t>(longest_us_, added.count());
      }
    }
  }

 private:
  Tensor us_;
  int late_;
  int64_t longest_us_ = 0;
};

// The last rank comes 50 ms late in every call but the final one.  Load can make another rank just
// as late, so the longest of five waits for the last rank is what counts.
TEST_P(LowLatencyTest, StatisticsAreAddedToTheCallersTensors) {
  if (GetParam().num_ranks > 8) {
    GTEST_SKIP() << "skipped: many ranks share few CPUs, so all are late";
  }
  constexpr int kCalls = 6;
  const DispatchProblem p = low_latency_problems(GetParam().num_ranks)[0];
  run(p, make_inputs(p), [&](LowLatencyRank& r) {
    const int late = r.group.size() - 1;
    const Tensor received = Tensor::zeros({p.placement().num_local(r.rank)}, DType::kI32);
    AddedWaits dispatch_waits(r.group.size(), late);
    AddedWaits combine_waits(r.group.size(), late);
    const auto come = [&](int call) {
      r.group.barrier("together");
      if (r.rank == late && call < kCalls) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    };
    for (int call = 1; call <= kCalls; ++call) {
      LowLatencyDispatchOutput rows;
      come(call);
      dispatch_waits.run([&] {
        rows = r.transport.dispatch({.x = r.in.x,
                                     .topk_ids = r.in.ids,
                                     .received = received,
                                     .wait_us = dispatch_waits.us()},
                                    r.stream);
      });
      for (int64_t l = 0; l < received.numel(); ++l) {
        EXPECT_EQ(received.data<int32_t>()[l], call * rows.expert_num_tokens.data<int32_t>()[l]);
      }
      const Tensor y = run_experts(p, r.rank, rows);
      come(call);
      combine_waits.run([&] {
        r.transport.combine({.x = y,
                             .topk_ids = r.in.ids,
                             .topk_weights = r.in.weights,
                             .wait_us = combine_waits.us()},
                            *rows.handle, r.stream);
      });
    }
    if (r.rank != late && r.group.topology().same_node(late)) {
      EXPECT_GE(dispatch_waits.longest_us(), 30'000) << "rank " << r.rank;
      EXPECT_GE(combine_waits.longest_us(), 30'000) << "rank " << r.rank;
    }
  });
}

TEST_P(LowLatencyTest, ExpertsMayWriteIntoTheBufferOfTheCombine) {
  const DispatchProblem p = low_latency_problems(GetParam().num_ranks)[0];
  run(p, make_inputs(p), [&](LowLatencyRank& r) {
    std::set<void*> buffers;
    for (int call = 0; call < 4; ++call) {
      const auto received = r.dispatch();
      const Tensor y = run_experts(p, r.rank, received);
      const Tensor buffer = r.transport.combine_buffer(*received.handle);
      ASSERT_EQ(buffer.shape(), y.shape());
      copy(y, buffer, r.stream);
      buffers.insert(buffer.raw());
      const auto sums =
          r.transport.combine({buffer, r.in.ids, r.in.weights}, *received.handle, r.stream);
      EXPECT_TRUE(same_bytes(sums.x, expected_combined(p, r.in)));
    }
    EXPECT_LE(buffers.size(), 2u);
  });
}

TEST_P(LowLatencyTest, EachDispatchIsCombinedOnce) {
  const DispatchProblem p = low_latency_problems(GetParam().num_ranks)[0];
  run(p, make_inputs(p), [&](LowLatencyRank& r) {
    const auto received = r.dispatch();
    LowLatencyCombineInput back{run_experts(p, r.rank, received), r.in.ids, r.in.weights};
    back.topk_weights = Tensor();  // what is refused for another reason is no combine
    EXPECT_THROW(r.transport.combine(back, *received.handle, r.stream), InvalidArgument);
    back.topk_weights = r.in.weights;
    const Tensor sums = r.transport.combine(back, *received.handle, r.stream).x;
    EXPECT_TRUE(same_bytes(sums, expected_combined(p, r.in)));
    expect_mentions(
        message_of<InvalidArgument>([&] { r.transport.combine(back, *received.handle, r.stream); }),
        "this dispatch was combined before");
  });
}

int32_t tag_of(int rank, int64_t token) {
  return static_cast<int32_t>(1000 * rank + token);
}

// Ranks with an odd number give no tags.
TEST_P(LowLatencyTest, TagsTravelWithTheirTokens) {
  for (const DispatchProblem& p : low_latency_problems(GetParam().num_ranks)) {
    run(p, make_inputs(p), [&](LowLatencyRank& r) {
      Tensor tags;
      if (r.rank % 2 == 0) {
        tags = Tensor::empty({r.in.x.dim(0)}, DType::kI32);
        for (int64_t t = 0; t < tags.numel(); ++t) {
          tags.data<int32_t>()[t] = tag_of(r.rank, t);
        }
      }
      for (int call = 0; call < 3; ++call) {  // uses both banks, and one of them again
        const auto received = r.transport.dispatch({r.in.x, r.in.ids, kNoCast, tags}, r.stream);
        ASSERT_EQ(received.row_tags.shape(),
                  Shape({p.placement().num_local(r.rank), kMaxTokens * p.num_ranks}));
        for_each_row(p, r.inputs, r.rank,
                     [&](int source, int64_t selection, int64_t local, int64_t row) {
                       ASSERT_EQ(received.row_tags[local].data<int32_t>()[row],
                                 source % 2 == 0 ? tag_of(source, selection / p.topk) : -1)
                           << "expert " << local << " row " << row;
                     });
        expect_dispatched(p, r.inputs, r.rank, received);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, LowLatencyTest, on_group_shapes(), shape_name);

TEST(LowLatencyResults, MayOutliveTheObject) {
  run_thread_ranks({}, [](Group& group) {
    std::optional<LowLatency> transport;
    transport.emplace(group, ExpertPlacement::linear(1, 1),
                      LowLatencyOptions{64, 1024, 1, DType::kF32});
    const Tensor x = Tensor::zeros({64, 1024}, DType::kF32);
    std::fill_n(x.data<float>(), x.numel(), 2.0f);
    const auto received =
        transport->dispatch({x, Tensor::zeros({64, 1}, DType::kI32), kNoCast}, Stream::cpu(1));
    transport.reset();
    std::vector<Tensor> others;  // these would overwrite the result if its memory were free
    for (int i = 0; i < 16; ++i) {
      others.push_back(Tensor::zeros(received.x.shape(), DType::kF32));
      others.push_back(Tensor::zeros(received.row_tags.shape(), DType::kI32));
    }
    EXPECT_TRUE(same_bytes(received.x[0], x));
    EXPECT_EQ(received.row_tags.data<int32_t>()[63], -1);
  });
}

TEST(LowLatencySize, HintIsWhatIsMapped) {
  LowLatencyOptions options{128, 7168, 8, DType::kBF16};
  // There are two banks of 8 mailboxes and 128 x 8 rows.  A mailbox has 128 messages of 48 bytes
  // for token, tag and ids and 14336 for the row.
  const int64_t mailbox = 64 + 128 * (48 + 14336);
  const int64_t bank = (8 * mailbox + 128 * 8 * 14336 + 255) / 256 * 256;
  const int64_t signals = 8 * 5 * 2 * 8;
  EXPECT_EQ(LowLatency::size_hint(options, 8, 256), 2 * bank + signals);
  options.sum = LowLatencySum::kRanks;  // adds the weights of 8 ranks
  EXPECT_EQ(LowLatency::size_hint(options, 8, 256), 2 * (bank + 8 * 4 * 128 * 8) + signals);
}

// Their products do not fit into an int64_t: once a window came out small, and was written past.
TEST(LowLatencySize, RefusesWhatOverflows) {
  constexpr int64_t kMost = 2147483647;
  const LowLatencyOptions good{128, 7168, 8, DType::kBF16};
  const auto refusal = [](const LowLatencyOptions& options, int num_ranks, int64_t num_experts) {
    const auto on = [&](Device device) {
      return message_of<InvalidArgument>(
          [&] { LowLatency::size_hint(options, num_ranks, num_experts, device); });
    };
    EXPECT_EQ(on(Device::cpu()), on(Device::cuda(0)));
    return on(Device::cpu());
  };
  for (int shift = 31; shift < 63; ++shift) {
    const int64_t large = int64_t{1} << shift;
    const std::string text = fmt::format(" is {}, expected at most {}", large, kMost);
    const auto with = [&](int64_t LowLatencyOptions::*size) {
      LowLatencyOptions options = good;
      options.*size = large;
      return refusal(options, 8, 256);
    };
    expect_mentions(with(&LowLatencyOptions::max_tokens), "max_tokens" + text);
    expect_mentions(with(&LowLatencyOptions::hidden), "hidden" + text);
    expect_mentions(with(&LowLatencyOptions::topk), "topk" + text);
    expect_mentions(refusal(good, 8, large), "num_experts" + text);
  }
  expect_mentions(refusal(good, 0, 256), "num_ranks is 0, expected at least 1");
  expect_mentions(refusal(good, 8, 0), "num_experts is 0, expected at least 1");
  expect_mentions(refusal({kMost, 1, 1}, 2, 256),
                  "max_tokens * num_ranks is 4294967294, expected at most 2147483647");
  expect_mentions(refusal({kMost, kMost, kMost}, 1, 256),
                  "a low-latency window of 1 ranks needs about 4.95e+29 bytes, expected at most "
                  "4611686018427387904");
}

TEST(LowLatencySize, HintIsWhatLargeOptionsTake) {
  const LowLatencyOptions options{10'000'000, int64_t{1} << 30, 1, DType::kBF16};
  EXPECT_EQ(LowLatency::size_hint(options, 1, 8),
            2 * (256 + options.max_tokens * (16 + 4 * options.hidden)) + 80);
}

}  // namespace
}  // namespace moebius::testing
