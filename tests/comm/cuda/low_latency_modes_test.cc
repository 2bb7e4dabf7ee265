// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Low latency on GPUs: halves in flight, many calls, events, graphs.
#include <cuda_runtime_api.h>

#include <thread>

#include "core/cuda/runtime.h"
#include "moebius/graph.h"
#include "tests/comm/cuda/low_latency_ranks.h"

namespace moebius::testing {
namespace {

using std::chrono::milliseconds;

// The send halves of two calls come before either receive half.  Every other time the second call
// is received first.
TEST_P(LowLatencyCuda, TwoCallsInFlightDoNotDisturbEachOther) {
  const Problem p = make_problem(9, 3, 1152);
  const Reference reference = run_on_cpu(p, {kNone}, 12);
  run_ranks(p, [&](Rank& r) {
    const std::vector<Call>& calls = reference[static_cast<size_t>(r.group.rank())];
    for (size_t i = 0; i + 1 < calls.size(); i += 2) {
      const DeviceInput a = put(r, calls[i].in);
      const DeviceInput b = put(r, calls[i + 1].in);
      auto pending_a = r.gpu.dispatch_async({a.x, a.ids, kNone, a.tags}, r.stream);
      auto pending_b = r.gpu.dispatch_async({b.x, b.ids, kNone, b.tags}, r.stream);
      EXPECT_THROW(r.gpu.dispatch_async({a.x, a.ids, kNone}, r.stream), InvalidArgument);
      const bool is_swapped = i % 4 == 2;
      (is_swapped ? pending_b : pending_a).hook();
      (is_swapped ? pending_a : pending_b).hook();
      const auto got_a = pending_a.receive();
      const auto got_b = pending_b.receive();
      pending_a = {};
      pending_b = {};
      r.finish();
      expect_dispatched(got_a, calls[i]);
      expect_dispatched(got_b, calls[i + 1]);
      const Tensor y_a = r.up_batched(calls[i].y, calls[i].counts);
      const Tensor y_b = r.up_batched(calls[i + 1].y, calls[i + 1].counts);
      auto back_a = r.gpu.combine_async({y_a, a.ids, a.weights}, *got_a.handle, r.stream, a.out);
      auto back_b = r.gpu.combine_async({y_b, b.ids, b.weights}, *got_b.handle, r.stream, b.out);
      (is_swapped ? back_a : back_b).finish();
      (is_swapped ? back_b : back_a).finish();
      r.finish();
      expect_combined(a.out, calls[i]);
      expect_combined(b.out, calls[i + 1]);
    }
  });
}

// Hosts do not synchronise for many calls, while one rank after the other falls behind.
TEST_P(LowLatencyCuda, TenThousandCallsInARow) {
  constexpr int kCalls = 10'000;
  const Problem p = make_problem(8, 4, 1024);
  const Reference reference = run_on_cpu(p, {kNone}, 1);
  run_ranks(p, [&](Rank& r) {
    const Call& expected = reference[static_cast<size_t>(r.group.rank())][0];
    const DeviceInput in = put(r, expected.in);
    const Tensor y = r.up_batched(expected.y, expected.counts);
    for (int call = 0; call < kCalls; ++call) {
      if (call % 197 == 0 && call / 197 % r.group.size() == r.group.rank()) {
        std::this_thread::sleep_for(milliseconds(3));
      }
      const auto got = r.gpu.dispatch({in.x, in.ids, kNone, in.tags, {}, true}, r.stream);
      r.gpu.combine({y, in.ids, in.weights}, *got.handle, r.stream, in.out);
      if (call % 1000 == 999) {
        r.finish();
        expect_dispatched(got, expected);
        expect_combined(in.out, expected);
      }
    }
    const Tensor statistics = r.gpu.expert_statistics();
    for (int64_t l = 0; l < statistics.numel(); ++l) {
      EXPECT_EQ(statistics.data<int64_t>()[l],
                int64_t{kCalls} * expected.counts.data<int32_t>()[l]);
    }
    expect_sent(r.gpu.statistics(), expected.sent, kCalls);
    r.gpu.reset_statistics();
    expect_sent(r.gpu.statistics(), {}, 1);
  });
}

// `previous` is awaited before anything is read, and `event` says when the outputs are complete, in
// both forms of a call.  What a call reads comes late, from another stream.
TEST_P(LowLatencyCuda, EventsOrderCallsOnSeveralStreams) {
  const Problem p = make_problem(8, 4, 1024);
  const Reference reference = run_on_cpu(p, {kNone}, 2);
  run_ranks(p, [&](Rank& r) {
    const Stream other = Stream::cuda(r.device.index);
    for (const bool is_async : {false, true}) {
      const Call& call = reference[static_cast<size_t>(r.group.rank())][is_async ? 1 : 0];
      const DeviceInput right = put(r, call.in);
      const DeviceInput late = put(r, make_input(p, r.group.rank(), 77));  // wrong at first
      const Tensor y = r.up_batched(call.y, call.counts);
      const Tensor late_y = Tensor::zeros(y.shape(), y.dtype(), r.device);
      const auto put_late = [&](const Tensor& from, const Tensor& to) {
        const auto sleep = [](void*) { std::this_thread::sleep_for(milliseconds(20)); };
        cudaLaunchHostFunc(static_cast<cudaStream_t>(other.native_handle()), sleep, nullptr);
        copy(from, to, other);
        return other.record();
      };
      copy(right.ids, late.ids, other);
      const LowLatencyDispatchInput tokens{.x = late.x,
                                           .topk_ids = late.ids,
                                           .cast = kNone,
                                           .row_tags = right.tags,
                                           .previous = put_late(right.x, late.x),
                                           .records_event = true};
      const auto got = is_async ? r.gpu.dispatch_async(tokens, r.stream).finish()
                                : r.gpu.dispatch(tokens, r.stream);
      got.event.synchronize();
      expect_dispatched(got, call);
      const LowLatencyCombineInput rows{.x = late_y,
                                        .topk_ids = right.ids,
                                        .topk_weights = right.weights,
                                        .previous = put_late(y, late_y),
                                        .records_event = true};
      const auto sums = is_async
                            ? r.gpu.combine_async(rows, *got.handle, r.stream, right.out).finish()
                            : r.gpu.combine(rows, *got.handle, r.stream, right.out);
      sums.event.synchronize();
      expect_combined(sums.x, call);
      r.finish();
    }
  });
}

// One dispatch, and one combine that waits for its event: the bank changes with every replay, the
// tensors do not.
TEST_P(LowLatencyCudaOneNode, GraphsMayBeReplayed) {
  const Problem p = make_problem(8, 4, 2048);
  const Reference reference = run_on_cpu(p, {kNone}, 7);
  run_ranks(p, [&](Rank& r) {
    const std::vector<Call>& calls = reference[static_cast<size_t>(r.group.rank())];
    const DeviceInput in = put(r, calls[0].in);
    // Both results have their tensors before anything is captured.
    r.gpu.dispatch({in.x, in.ids, kNone}, r.stream);
    r.gpu.dispatch({in.x, in.ids, kNone}, r.stream);
    const Tensor y = r.up_batched(calls[0].y, calls[0].counts);
    r.finish();
    LowLatencyDispatchOutput got;
    const Graph graph(r.stream, [&] {
      got = r.gpu.dispatch({in.x, in.ids, kNone, in.tags, {}, true}, r.stream);
      r.gpu.combine({y, in.ids, in.weights, got.event}, *got.handle, r.stream, in.out);
    });
    r.group.barrier("captured");
    for (const Call& call : calls) {
      for (const auto& [from, to] : {std::pair{call.in.x, in.x}, std::pair{call.in.ids, in.ids},
                                     std::pair{call.in.weights, in.weights}}) {
        cuda::copy_now(to.raw(), from.raw(), from.nbytes(), r.device.index);
      }
      fill_batched(y, call.y, call.counts);
      graph.launch();
      r.finish();
      expect_dispatched(got, call);
      expect_combined(in.out, call);
    }
  });
}

// A rank's dispatch of the first call, and what its experts give.
struct FirstDispatch {
  FirstDispatch(Rank& r, const Reference& reference)
      : call(reference[static_cast<size_t>(r.group.rank())][0]),
        in(put(r, call.in)),
        got(r.gpu.dispatch({in.x, in.ids, kNone, in.tags}, r.stream)),
        y(r.up_batched(call.y, call.counts)) {}

  const Call& call;
  DeviceInput in;
  LowLatencyDispatchOutput got;
  Tensor y;
};

TEST_P(LowLatencyCuda, EachDispatchIsCombinedOnce) {
  const Problem p = make_problem(8, 4, 1024);
  const Reference reference = run_on_cpu(p, {kNone}, 1);
  run_ranks(p, [&](Rank& r) {
    const auto& [call, in, got, y] = FirstDispatch(r, reference);
    r.gpu.combine({y, in.ids, in.weights}, *got.handle, r.stream, in.out);
    r.finish();
    expect_combined(in.out, call);
    try {
      r.gpu.combine({y, in.ids, in.weights}, *got.handle, r.stream, in.out);
      ADD_FAILURE() << "a second combine is made";
    } catch (const InvalidArgument& error) {
      expect_contains(error.what(), "this dispatch was combined before");
    }
  });
}

// A graph with a combine alone can be launched once.
TEST_P(LowLatencyCudaOneNode, ASecondReplayOfACombineIsAnError) {
  const Problem p = make_problem(8, 4, 1024);
  const Reference reference = run_on_cpu(p, {kNone}, 1);
  run_ranks(p, [&](Rank& r) {
    const auto& [call, in, got, y] = FirstDispatch(r, reference);
    r.finish();
    const Graph graph(r.stream, [&] {
      r.gpu.combine({y, in.ids, in.weights}, *got.handle, r.stream, in.out);
    });
    r.group.barrier("captured");
    graph.launch();
    r.finish();
    expect_combined(in.out, call);
    r.group.barrier("combined");
    graph.launch();
    expect_contains(comm_error_of([&] { r.finish(); }), "combines a dispatch again");
  });
}

}  // namespace
}  // namespace moebius::testing
