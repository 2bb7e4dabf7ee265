// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// High throughput on GPUs: capacities, graphs, the tables of a rank, counters and failures.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "moebius/graph.h"
#include "tests/comm/cuda/sides.h"

namespace moebius::testing {
namespace {

// Returns when the kernels of a dispatch have ended; throws what they have found.
void dispatch_and_check(Sides& sides, const DispatchInput& input) {
  sides.cuda.dispatch(input, sides.stream);
  sides.stream.synchronize();
  sides.cuda.check();
}

void check_tables(const DispatchInput& request, Group& host, Sides& sides) {
  DispatchInput request_up = sides.up(request);
  const DispatchLayout layout = sides.cuda.layout(request_up.topk_ids, sides.stream);
  const DispatchLayout expected = sides.cpu.layout(request.topk_ids, sides.cpu_stream);
  expect_same(sides, layout.tokens_per_rank, expected.tokens_per_rank, "tokens_per_rank");
  expect_same(sides, layout.tokens_per_node, expected.tokens_per_node, "tokens_per_node");
  expect_same(sides, layout.tokens_per_expert, expected.tokens_per_expert, "tokens_per_expert");
  expect_same(sides, layout.is_token_in_rank, expected.is_token_in_rank, "is_token_in_rank");
  const auto room_for = [](const Tensor& t) {
    return Tensor::zeros(t.shape(), t.dtype(), t.device());
  };
  const DispatchLayout into = {.tokens_per_rank = room_for(layout.tokens_per_rank),
                               .tokens_per_node = room_for(layout.tokens_per_node),
                               .tokens_per_expert = room_for(layout.tokens_per_expert),
                               .is_token_in_rank = room_for(layout.is_token_in_rank)};
  sides.cuda.layout(request_up.topk_ids, sides.stream, into);
  expect_same(sides, into.tokens_per_rank, expected.tokens_per_rank, "tokens_per_rank");
  expect_same(sides, into.tokens_per_node, expected.tokens_per_node, "tokens_per_node");
  expect_same(sides, into.tokens_per_expert, expected.tokens_per_expert, "tokens_per_expert");
  expect_same(sides, into.is_token_in_rank, expected.is_token_in_rank, "is_token_in_rank");
  const DispatchOutput on_cpu = sides.cpu.dispatch(request, sides.cpu_stream);
  const DispatchOutput on_gpu = sides.cuda.dispatch(request_up, sides.stream);
  for (const int64_t alignment : {1, 8}) {
    const ExpertOrder order = sides.cpu.expert_order(on_cpu, alignment, sides.cpu_stream);
    expect_same(sides, sides.cuda.expert_order(on_gpu, alignment, sides.stream), order);
  }
  if (host.topology().num_nodes() > 1) {
    return;
  }
  // Rows beyond those that have arrived belong to no expert.
  const int64_t rows = on_cpu.handle->num_rows();
  request_up.capacity = all_reduce_max(host, "most rows", rows) + 50;
  DispatchOutput roomy = sides.cuda.dispatch(request_up, sides.stream);
  expect_same(sides, sides.cuda.expert_order(roomy, 8, sides.stream),
              sides.cpu.expert_order(on_cpu, 8, sides.cpu_stream));
}

// A block alone makes the layout of up to 1024 tokens.
TEST_P(HighThroughputCuda, LayoutsOfAnyNumberOfTokensAreRight) {
  run([&](Group& gpu, Group& host) {
    for (const int64_t num_tokens : {0, 1, 255, 256, 257, 1023, 1024, 1025, 2600}) {
      SCOPED_TRACE("T " + std::to_string(num_tokens));
      const DispatchProblem p = with_tokens({}, num_ranks(), num_tokens);
      Sides sides(gpu, host, p.placement());
      const Tensor ids = make_input(p, host.rank()).ids;
      const DispatchLayout expected = sides.cpu.layout(ids, sides.cpu_stream);
      // The second finds what the first has left.
      const DispatchLayout first = sides.cuda.layout(sides.up(ids), sides.stream);
      const DispatchLayout layout = sides.cuda.layout(sides.up(ids), sides.stream, first);
      expect_same(sides, layout.tokens_per_rank, expected.tokens_per_rank, "tokens_per_rank");
      expect_same(sides, layout.tokens_per_node, expected.tokens_per_node, "tokens_per_node");
      expect_same(sides, layout.tokens_per_expert, expected.tokens_per_expert, "tokens_per_expert");
      expect_same(sides, layout.is_token_in_rank, expected.is_token_in_rank, "is_token_in_rank");
    }
  });
}

TEST_P(HighThroughputCuda, ACapacityIsRefusedOverSeveralNodes) {
  if (is_one_node()) {
    GTEST_SKIP() << "skipped: needs nodes";
  }
  const DispatchProblem p = with_tokens({}, num_ranks(), 20);
  run_sides(p, [&](Sides& sides, Group& host) {
    const RankInput in = make_input(p, host.rank());
    DispatchInput request = sides.up({{in.x}, in.ids, in.weights, 1, {}});
    request.capacity = 1000;
    EXPECT_THROW(sides.cuda.dispatch(request, sides.stream), Unsupported);
  });
}

TEST_P(HighThroughputCuda, ACapacityKeepsCountsOnTheDevice) {
  if (!is_one_node()) {
    GTEST_SKIP() << "skipped: needs one node";
  }
  run_problems([&](const DispatchProblem& p, Sides& sides, Group& host) {
    const RankInput in = make_input(p, host.rank());
    DispatchInput request{{in.x, in.code}, in.ids, in.weights, 8, {}};
    const DispatchOutput expected = sides.cpu.dispatch(request, sides.cpu_stream);
    const int64_t rows = expected.handle->num_rows();
    DispatchInput request_up = sides.up(request);
    request_up.capacity = all_reduce_max(host, "most rows", rows) + 3;
    for (int call = 0; call < 3; ++call) {
      DispatchOutput output = sides.cuda.dispatch(request_up, sides.stream);
      ASSERT_EQ(output.handle->num_rows(), request_up.capacity);
      ASSERT_EQ(sides.down(output.num_rows).data<int32_t>()[0], rows);
      const Tensor ids = sides.down(output.topk_ids);
      for (int64_t i = rows * p.topk; i < ids.numel(); ++i) {
        ASSERT_EQ(ids.data<int32_t>()[i], -1);
      }
      for (Tensor& payload : output.payloads) {
        payload = payload.slice(0, rows);
      }
      expect_same(sides, output.topk_ids.slice(0, rows), expected.topk_ids, "topk_ids");
      expect_same(sides, output.topk_weights.slice(0, rows), expected.topk_weights, "topk_weights");
      expect_same(sides, output.payloads[0], expected.payloads[0], "payload 0");
      expect_same(sides, output.payloads[1], expected.payloads[1], "payload 1");
      expect_same(sides, output.expert_num_tokens, expected.expert_num_tokens, "counts");
    }
    // Now the rank that gets most has room for one row too few.
    if (request_up.capacity > 4) {
      request_up.capacity -= 4;
      expect_contains(comm_error_of([&] { dispatch_and_check(sides, request_up); }),
                      " has no room for all its rows: " + std::to_string(request_up.capacity + 1) +
                          ", expected at most " + std::to_string(request_up.capacity));
    }
  });
}

// One host learns of it at once and leaves the call.  The others do not know yet, and must finish
// the call without waiting for that host.
TEST_P(HighThroughputCuda, HostsHearTogetherOfRowsWithoutRoom) {
  if (!is_one_node() || num_ranks() == 1) {
    GTEST_SKIP() << "skipped: needs one node and a second rank";
  }
  const DispatchProblem p = with_tokens({}, num_ranks(), 20);
  for (const int first : {0, num_ranks() - 1}) {
    run([&](Group& gpu, Group& host) {
      Sides sides(gpu, host, p.placement());
      const RankInput in = make_input(p, host.rank());
      DispatchInput request = sides.up({{in.x}, in.ids, in.weights, 1, {}});
      request.capacity = 5;
      request.combine_row_bytes = row_bytes(in.x.dtype(), in.x.dim(1));
      const DispatchOutput output = sides.cuda.dispatch(request, sides.stream);
      if (host.rank() == first) {
        sides.stream.synchronize();
        EXPECT_THROW(sides.cuda.check(), CommError);
      } else {
        sides.cuda.combine(rows_of(output), *output.handle, sides.stream);
      }
      const std::string reason = ", expected at most 5";
      expect_contains(comm_error_of([&] { sides.cuda.dispatch(request, sides.stream); }), reason);
      expect_contains(comm_error_of([&] {
                        sides.cuda.dispatch_cached({request.payloads}, *output.handle,
                                                   sides.stream);
                      }),
                      reason);
      gpu.barrier("all have seen it");
    });
  }
}

TEST_P(HighThroughputCuda, ARankThatNeverComesIsNamed) {
  if (num_ranks() == 1) {
    GTEST_SKIP() << "skipped: needs a second rank";
  }
  if (GetParam().provider == "nccl") {
    GTEST_SKIP() << "skipped: NCCL needs more time than this group has";
  }
  const DispatchProblem p = with_tokens({}, num_ranks(), 20);
  const int missing = num_ranks() - 1;
  constexpr std::chrono::milliseconds kShort{400};
  run(
      [&](Group& gpu, Group& host) {
        Sides sides(gpu, host, p.placement());
        const RankInput in = make_input(p, host.rank());
        const DispatchInput request = sides.up({{in.x}, in.ids, in.weights, 1, {}});
        sides.cuda.dispatch(request, sides.stream);
        sides.stream.synchronize();
        host.barrier("all dispatched once");
        if (host.rank() == missing) {
          std::this_thread::sleep_for(3 * kShort);
          // The call of the missing rank finds what the others have told.
          EXPECT_THROW(sides.cuda.dispatch(request, sides.stream), CommError);
          return;
        }
        const auto start = std::chrono::steady_clock::now();
        for (int attempt = 0; attempt < 2; ++attempt) {
          expect_contains(
              comm_error_of([&] { sides.cuda.dispatch(request, sides.stream); }, missing),
              "did not come within 400 ms, expected at ");
        }
        EXPECT_LT(std::chrono::steady_clock::now() - start, 2 * kShort);
        std::this_thread::sleep_for(3 * kShort);  // a rank that leaves would be another failure
      },
      kShort);
}

TEST_P(HighThroughputCuda, AnIdThatIsNoExpertEndsTheCallEverywhere) {
  const DispatchProblem p = with_tokens({}, num_ranks(), 20);
  const int guilty = num_ranks() - 1;
  run_sides(p, [&](Sides& sides, Group& host) {
    const RankInput in = make_input(p, host.rank());
    if (host.rank() == guilty) {
      in.ids.data<int32_t>()[7 * p.topk + 1] = static_cast<int32_t>(p.num_experts);
    }
    const DispatchInput request = sides.up({{in.x}, in.ids, in.weights, 1, {}});
    if (is_one_node()) {
      const std::string message =
          comm_error_of([&] { dispatch_and_check(sides, request); }, guilty);
      expect_contains(message, "has an expert id that is none");
      if (host.rank() == guilty) {
        expect_contains(message, ": 8 of token 7");
      }
    } else if (host.rank() == guilty) {  // it is found before others are told, as on the CPU
      EXPECT_THROW(sides.cuda.dispatch(request, sides.stream), InvalidArgument);
    }
    host.barrier("all have seen it");
  });
}

TEST_P(HighThroughputCuda, GraphsReplayDispatchAndCombine) {
  if (!is_one_node()) {
    GTEST_SKIP() << "skipped: needs one node";
  }
  const DispatchProblem p =
      with_tokens({.num_experts = 32, .topk = 6, .hidden = 1024}, num_ranks(), 150);
  run_sides(p, [&](Sides& sides, Group& host) {
    const RankInput in = make_wide_input(p, host.rank());
    DispatchInput input = sides.up({{in.x}, in.ids, in.weights, 4, {}});
    input.capacity = 150 * num_ranks();
    DispatchOutput output;
    CombineOutput combined;
    const auto call = [&] {
      output = sides.cuda.dispatch(input, sides.stream);
      combined = sides.cuda.combine(rows_of(output), *output.handle, sides.stream);
    };
    call();
    sides.stream.synchronize();
    output = {};  // its bank is free for the call that is recorded
    combined = {};
    const Graph graph(sides.stream, call);
    host.barrier("captured");
    for (int replay = 0; replay < 20; ++replay) {
      DispatchProblem q = p;
      q.seed = static_cast<uint64_t>(50 + replay);
      const RankInput fresh = make_wide_input(q, host.rank());
      copy(fresh.x, input.payloads[0], sides.stream);
      copy(fresh.ids, input.topk_ids, sides.stream);
      copy(fresh.weights, input.topk_weights, sides.stream);
      graph.launch();
      const DispatchOutput expected =
          sides.cpu.dispatch({{fresh.x}, fresh.ids, fresh.weights, 4, {}}, sides.cpu_stream);
      const auto sum = sides.cpu.combine(rows_of(expected), *expected.handle, sides.cpu_stream);
      const int64_t rows = expected.handle->num_rows();
      expect_same(sides, output.payloads[0].slice(0, rows), expected.payloads[0], "rows");
      expect_same(sides, output.topk_ids.slice(0, rows), expected.topk_ids, "ids");
      expect_same(sides, output.expert_num_tokens, expected.expert_num_tokens, "counts");
      expect_same(sides, combined.x, sum.x, "sum");
      expect_same(sides, combined.topk_weights, sum.topk_weights, "weights");
    }
    sides.cuda.check();
    host.barrier("all done");
  });
}

TEST_P(HighThroughputCuda, LayoutAndExpertOrderAreThoseOfTheCpu) {
  std::vector<DispatchProblem> problems = dispatch_problems(num_ranks());
  // This one has several parts of ids, and more experts than a block has threads.
  DispatchProblem& many = problems.emplace_back();
  many.num_ranks = num_ranks();
  many.num_experts = 300 * num_ranks();
  many.topk = 6;
  many.hidden = 24;
  many.tokens.assign(static_cast<size_t>(num_ranks()), 3001);
  run([&](Group& gpu, Group& host) {
    for (const DispatchProblem& p : problems) {
      SCOPED_TRACE("problem " + std::to_string(p.seed));
      Sides sides(gpu, host, p.placement());
      const RankInput in =
          p.hidden == many.hidden ? make_wide_input(p, host.rank()) : make_input(p, host.rank());
      check_tables({{in.x, in.code}, in.ids, in.weights, 1, {}}, host, sides);
      if (in.ids.numel() > 0) {
        in.ids.data<int32_t>()[in.ids.numel() - 1] = -2;
        in.ids.data<int32_t>()[in.ids.numel() / 2] = static_cast<int32_t>(p.num_experts);
        const auto message = [](const auto& call) -> std::string {
          try {
            call();
          } catch (const InvalidArgument& error) {
            return error.what();
          }
          return "none";
        };
        const std::string expected = message([&] { sides.cpu.layout(in.ids, sides.cpu_stream); });
        sides.cuda.layout(sides.up(in.ids), sides.stream);
        sides.stream.synchronize();
        EXPECT_EQ(message([&] { sides.cuda.check(); }), expected);
        EXPECT_EQ(message([&] { sides.cuda.check(); }), "none");  // it is told once
      }
    }
  });
}

TEST_P(HighThroughputCuda, BytesBetweenNodesAreOneCopyPerTokenAndNode) {
  const DispatchProblem p = dispatch_problems(num_ranks())[1];
  run([&](Group& gpu, Group& host) {
    Sides sides(gpu, host, p.placement());
    const RankInput in = make_input(p, host.rank());
    const DispatchInput request = sides.up({{in.x}, in.ids, {}, 1, {}});
    const DispatchOutput output = sides.cuda.dispatch(request, sides.stream);
    sides.cuda.dispatch_cached({request.payloads}, *output.handle, sides.stream);
    const Traffic before = gpu.traffic();
    sides.cuda.dispatch_cached({request.payloads}, *output.handle, sides.stream);
    const Traffic after = gpu.traffic();
    const TransportStatistics sent = expected_sent(p, in, gpu.topology());
    const TransportStatistics counted = sides.cuda.statistics();
    EXPECT_EQ(counted.selections, sent.selections);
    EXPECT_EQ(counted.copies, sent.copies);
    const Tensor per_node = sides.cpu.layout(in.ids, sides.cpu_stream).tokens_per_node;
    int64_t node_copies = 0;
    for (int n = 0; n < gpu.topology().num_nodes(); ++n) {
      node_copies += n == gpu.topology().node() ? 0 : per_node.data<int32_t>()[n];
    }
    EXPECT_EQ(counted.node_copies, node_copies);
    // Beside the rows a message is padded to 256 bytes, and hosts exchange notices.
    const int64_t rows = node_copies * p.hidden * 2;
    const int64_t crossed = after.inter_node_bytes - before.inter_node_bytes;
    EXPECT_GE(crossed, rows);
    EXPECT_LE(crossed,
              rows + (gpu.topology().num_nodes() - 1) * 255 + (num_ranks() - 1) * (24 + 16 + 8));
  });
}

TEST_P(HighThroughputCuda, CountsWhatItSends) {
  if (!is_one_node()) {
    GTEST_SKIP() << "skipped: needs one node";
  }
  const DispatchProblem p =
      with_tokens({.num_experts = 4 * num_ranks(), .topk = 3}, num_ranks(), 20, 3);
  run([&](Group& gpu, Group& host) {
    Sides sides(gpu, host, p.placement());
    const int rank = gpu.rank();
    const RankInput in = make_input(p, rank);
    const DispatchInput request = sides.up({{in.x, in.code}, in.ids, in.weights, 1, {}});
    const DispatchOutput output = sides.cuda.dispatch(request, sides.stream);
    const CombineInput rows = rows_of(output);
    sides.cuda.combine(rows, *output.handle, sides.stream);

    // Count the copies that others hold of this rank's tokens, and that this rank holds of theirs.
    int64_t away = 0;
    const Tensor is_in = sides.cpu.layout(in.ids, sides.cpu_stream).is_token_in_rank;
    for (int64_t i = 0; i < is_in.numel(); ++i) {
      away += is_in.data<bool>()[i] && i % p.num_ranks != rank ? 1 : 0;
    }
    const Tensor sources = sides.down(output.handle->source_rank());
    const int64_t foreign =
        sources.numel() -
        std::count(sources.data<int32_t>(), sources.data<int32_t>() + sources.numel(), rank);
    // The next result may need another bank, so only the one after it is measured.
    const auto sent = [&] { return gpu.traffic().intra_node_bytes; };
    sides.cuda.dispatch(request, sides.stream);
    int64_t before = sent();
    sides.cuda.dispatch(request, sides.stream);
    const int64_t row_bytes = p.hidden * 2 + 8 + 8 * p.topk + 4;
    EXPECT_EQ(sent() - before, away * row_bytes);
    before = sent();
    sides.cuda.dispatch_cached({request.payloads}, *output.handle, sides.stream);
    EXPECT_EQ(sent() - before, away * (p.hidden * 2 + 8));
    before = sent();
    sides.cuda.combine(rows, *output.handle, sides.stream);
    EXPECT_EQ(sent() - before, foreign * (p.hidden * 2 + 4 * p.topk));
    const TransportStatistics statistics = sides.cuda.statistics();
    const TransportStatistics expected = expected_sent(p, in, gpu.topology());
    EXPECT_EQ(statistics.selections, 3 * expected.selections);
    EXPECT_EQ(statistics.copies, 3 * expected.copies);
  });
}

}  // namespace
}  // namespace moebius::testing
