// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Low latency on CPUs: what it refuses, and how it goes on without a rank.
#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/comm/low_latency_calls.h"

namespace moebius::testing {
namespace {

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
      transport.dispatch({Tensor::zeros({tokens, hidden}, DType::kBF16), ids, kNoCast}, stream);
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
                      kNoCast, Tensor::zeros({3}, DType::kI32)},
                     stream),
                 InvalidArgument);
    EXPECT_THROW(transport.set_dead(0, true), InvalidArgument);
    EXPECT_THROW(LowLatency(group, ExpertPlacement::linear(4, 1), {0, 128, 2, DType::kBF16}),
                 InvalidArgument);
  });
}

// An operand that claims to be on a GPU is never read.
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
      return transport.dispatch({rows, slots, kNoCast, row_tags}, stream);
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

// A body that does not catch the error ends its rank, and the other ranks say why.
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
                     transport.dispatch({Tensor::zeros({3, 128}, DType::kBF16), ids, kNoCast},
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

// A rank with an expert and four tokens of zeros, which go to the first expert.
struct ZerosOfRank {
  ZerosOfRank(Group& group, int64_t hidden)
      : transport(group,
                  ExpertPlacement::linear(group.size(), group.size()),
                  {8, hidden, 1, DType::kBF16}),
        x(Tensor::zeros({4, hidden}, DType::kBF16)) {}

  LowLatency transport;
  Stream stream = Stream::cpu(1);
  Tensor x;
  Tensor ids = Tensor::zeros({4, 1}, DType::kI32);
};

TEST(LowLatencyErrors, EveryRankRefusesRowsAndRoomsThatDiffer) {
  run_thread_ranks({.num_ranks = 3}, [](Group& group) {
    ZerosOfRank rank(group, 64);
    auto& [transport, stream, x, ids] = rank;
    const bool differs = group.rank() == 1;
    const auto refuses = [&](const LowLatencyDispatchInput& input, const std::string& why) {
      try {
        transport.dispatch(input, stream);
        ADD_FAILURE() << "rank " << group.rank() << " has received rows of two kinds";
      } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
      }
    };
    refuses({.x = x, .topk_ids = ids, .max_tokens = differs ? 6 : 5},
            differs ? "rank 0 sends rows of 128 and 0 bytes with room for 5 tokens, rank 1 of 128 "
                      "and 0 bytes for 6"
                    : "rank 1 sends rows of 128 and 0 bytes with room for 6 tokens, rank");
    const Tensor codes = Tensor::zeros({4, 64}, DType::kI8);
    refuses(
        {.x = differs ? codes : x, .topk_ids = ids},
        differs ? "rank 0 sends rows of 128 and 0 bytes" : "rank 1 sends rows of 64 and 0 bytes");
    EXPECT_NO_THROW(transport.dispatch({.x = x, .topk_ids = ids}, stream));
  });
}

TEST(LowLatencyErrors, EveryRankRefusesRowsOfAnotherCoding) {
  run_thread_ranks({.num_ranks = 2}, [](Group& group) {
    ZerosOfRank rank(group, 128);
    auto& [transport, stream, x, ids] = rank;
    const Tensor weights = Tensor::zeros({4, 1}, DType::kF32);
    const auto received = transport.dispatch({.x = x, .topk_ids = ids}, stream);
    LowLatencyCombineInput back{received.x, ids, weights};
    back.coding = group.rank() == 0 ? LowLatencyCoding::kLogFmt10 : LowLatencyCoding::kNone;
    try {
      transport.combine(back, *received.handle, stream);
      ADD_FAILURE() << "rank " << group.rank() << " has summed rows of two codings";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("returns"), std::string::npos) << error.what();
    }
  });
  run_thread_ranks({}, [](Group& group) {
    const Stream stream = Stream::cpu(1);
    const Tensor ids = Tensor::zeros({1, 1}, DType::kI32);
    const Tensor weights = Tensor::zeros({1, 1}, DType::kF32);
    for (const int64_t hidden : {int64_t{64}, int64_t{128}}) {
      LowLatency transport(group, ExpertPlacement::linear(1, 1),
                           {8, hidden, 1, DType::kBF16, 0,
                            hidden == 128 ? LowLatencySum::kRanks : LowLatencySum::kSelections});
      const auto received = transport.dispatch(
          {.x = Tensor::zeros({1, hidden}, DType::kBF16), .topk_ids = ids}, stream);
      LowLatencyCombineInput back{received.x, ids, weights};
      back.coding = LowLatencyCoding::kLogFmt10;
      if (hidden == 128) {
        EXPECT_THROW(transport.combine(back, *received.handle, stream), Unsupported);
      } else {
        EXPECT_THROW(transport.combine(back, *received.handle, stream), InvalidArgument);
      }
    }
  });
}

// The last of four ranks leaves, or does nothing any more, before the third call or between a
// dispatch and its combine.  The others go on without an error, with the sums of the live ranks.
TEST(LowLatencyWithoutMissingRanks, CallsGoOnByThemselves) {
  if (runs_on_mpi()) {
    GTEST_SKIP() << "one rank leaves the job";
  }
  DispatchProblem p = low_latency_problems(4)[0];
  const auto inputs = make_inputs(p);
  for (const LowLatencySum sum : {LowLatencySum::kSelections, LowLatencySum::kRanks}) {
    for (const bool leaves : {true, false}) {
      for (const bool after_dispatch : {true, false}) {
        SCOPED_TRACE(std::string(leaves ? "leaves" : "is silent") +
                     (after_dispatch ? " before combine" : " before dispatch"));
        const auto body = [&](Group& group) {
          LowLatencyOptions options = options_for(p, sum);
          options.excludes_missing = true;
          LowLatency transport(group, p.placement(), options);
          const Stream stream = Stream::cpu(1);
          const RankInput& in = inputs[static_cast<size_t>(group.rank())];
          std::set<int> dead;
          for (int call = 0; call < 6; ++call) {
            const bool ends = group.rank() == 3 && call == 2;
            const auto end = [&] {
              if (!leaves) {  // much longer than the others wait
                std::this_thread::sleep_for(std::chrono::seconds(3));
              }
            };
            if (ends && !after_dispatch) {
              return end();
            }
            const auto received = transport.dispatch({.x = in.x, .topk_ids = in.ids}, stream);
            if (ends) {
              return end();
            }
            if (call == 2) {
              dead.insert(3);
            }
            const Tensor y = run_experts(p, group.rank(), received);
            const Tensor sums =
                transport.combine({y, in.ids, in.weights}, *received.handle, stream).x;
            EXPECT_TRUE(same_bytes(sums, expected_combined(p, in, dead, sum))) << "call " << call;
            EXPECT_EQ(transport.dead_ranks()[3], call >= 2) << "call " << call;
          }
          EXPECT_EQ(transport.dead_ranks(), (std::vector<bool>{false, false, false, true}));
        };
        run_thread_ranks({.num_ranks = 4, .timeout = std::chrono::milliseconds(1000)}, body);
      }
    }
  }
}

TEST(LowLatencyWithoutMissingRanks, IsForOneNode) {
  run_thread_ranks({.num_ranks = 2, .ranks_per_node = 1}, [](Group& group) {
    LowLatencyOptions options{4, 128, 2, DType::kBF16};
    options.excludes_missing = true;
    EXPECT_THROW(LowLatency(group, ExpertPlacement::linear(4, 2), options), Unsupported);
  });
}

// Runs `body` on 4 ranks, of which the last leaves early.  It returns how many rounds were right.
void run_without_last(const DispatchProblem& p,
                      const std::function<int(LowLatencyRank& rank)>& body,
                      const std::vector<int>& expected_rounds) {
  if (runs_on_mpi()) {
    GTEST_SKIP() << "one rank leaves the job";
  }
  const auto inputs = make_inputs(p);
  std::vector<int> rounds(4, 0);
  run_thread_ranks({.num_ranks = 4}, [&](Group& group) {
    LowLatencyRank rank(group, p, inputs);
    rounds[static_cast<size_t>(group.rank())] = body(rank);
  });
  EXPECT_EQ(rounds, expected_rounds);
}

int count_right_sums(LowLatencyRank& r, int calls) {
  int num_right = 0;
  for (int call = 0; call < calls; ++call) {
    num_right += r.sums_rightly({3}) ? 1 : 0;
  }
  return num_right;
}

// The last rank makes one call and then no more.  The others are told which rank is missing,
// exclude it and go on; its experts add nothing.
TEST(LowLatencyMask, GoesOnWithoutADeadRank) {
  const DispatchProblem p = low_latency_problems(4)[0];
  const auto body = [&](LowLatencyRank& r) {
    r.dispatch();
    if (r.rank == 3) {
      return 0;
    }
    try {
      r.dispatch();
      ADD_FAILURE() << "rank " << r.rank << " did not miss rank 3";
    } catch (const CommError& error) {
      EXPECT_EQ(error.peer(), 3) << error.what();
    }
    r.transport.set_dead(3, true);
    r.transport.reset_statistics();
    const int num_right = count_right_sums(r, 5);
    const TransportStatistics sent = expected_sent(p, r.in, r.group.topology(), {3});
    EXPECT_EQ(r.transport.statistics().selections, 5 * sent.selections);
    EXPECT_EQ(r.transport.statistics().copies, 5 * sent.copies);
    return num_right;
  };
  run_without_last(p, body, {5, 5, 5, 0});
}

// The ranks that go on have failed in different calls, so they must agree on the number of the
// call.
TEST(LowLatencyMask, GoesOnFromDifferentCalls) {
  const auto body = [](LowLatencyRank& r) {
    if (r.rank == 3) {
      return 0;
    }
    if (r.rank == 0) {  // it misses the last rank in a barrier, and tells the others
      EXPECT_THROW(r.group.barrier("step"), CommError);
    }
    const int failed_calls = r.rank;
    for (int call = 0; call < failed_calls; ++call) {
      EXPECT_THROW(r.dispatch(), CommError);
    }
    r.transport.set_dead(3, true);
    return count_right_sums(r, 5);
  };
  run_without_last(low_latency_problems(4)[0], body, {5, 5, 5, 0});
}

}  // namespace
}  // namespace moebius::testing
