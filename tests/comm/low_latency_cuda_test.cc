// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// LowLatency on GPUs against LowLatency on the CPU, bit for bit.  Ranks that share a GPU use small
// grids, so that the kernels of all ranks fit on it at once.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "comm/cuda/low_latency.h"
#include "core/cuda/runtime.h"
#include "moebius/low_latency.h"
#include "tests/comm/dispatch_cases.h"
#include "tests/comm/gpu_ranks.h"

namespace moebius::testing {
namespace {

using std::chrono::milliseconds;

constexpr auto kNone = LowLatencyCast::kNone;

struct Problem {
  DispatchProblem routing;
  int64_t max_tokens = 64;
  DType dtype = DType::kBF16;
  int num_sms = 12;
  LowLatencySum sum = LowLatencySum::kSelections;
  int ranks_per_node = 0;

  LowLatencyOptions options() const {
    return {max_tokens, routing.hidden, routing.topk, dtype, num_sms, sum};
  }
  int64_t max_rows() const { return max_tokens * routing.num_ranks; }
  int64_t num_local(int rank) const { return routing.placement().num_local(rank); }
};

struct Input {
  Tensor x;
  Tensor ids;
  Tensor weights;
  Tensor tags;
};

Tensor to_dtype(const Tensor& x, DType dtype) {
  const Tensor out = Tensor::empty(x.shape(), dtype);
  for (int64_t i = 0; i < x.numel(); ++i) {
    set_float(out, i, get_float(x, i));
  }
  return out;
}

// Ranks of odd number give no tags.
Input make_input(const Problem& p, int rank, uint64_t seed) {
  DispatchProblem routing = p.routing;
  routing.seed = seed;
  const RankInput in = make_input(routing, rank);
  Input input{p.dtype == DType::kBF16 ? in.x : to_dtype(in.x, p.dtype), in.ids, in.weights, {}};
  if (rank % 2 == 0) {
    input.tags = Tensor::empty({in.ids.dim(0)}, DType::kI32);
    for (int64_t t = 0; t < in.ids.dim(0); ++t) {
      input.tags.data<int32_t>()[t] = static_cast<int32_t>(1000 * rank + t);
    }
  }
  return input;
}

// The rows of a batched tensor that are not garbage, expert after expert: [N, ...].
Tensor pack_rows(const Tensor& batched, const Tensor& counts) {
  int64_t n = 0;
  for (int64_t l = 0; l < counts.numel(); ++l) {
    n += counts.data<int32_t>()[l];
  }
  const int64_t row_bytes =
      batched.nbytes() / std::max<int64_t>(1, batched.dim(0) * batched.dim(1));
  const Tensor packed = Tensor::empty({n, row_bytes}, DType::kU8);
  std::byte* to = packed.bytes();
  for (int64_t l = 0; l < counts.numel(); ++l) {
    const int64_t bytes = counts.data<int32_t>()[l] * row_bytes;
    if (batched.device().is_cuda() && bytes > 0) {
      cuda::copy_now(to, batched[l].raw(), bytes, batched.device().index);
    } else if (bytes > 0) {
      std::memcpy(to, batched[l].raw(), static_cast<size_t>(bytes));
    }
    to += bytes;
  }
  return packed;
}

// What an expert makes of its rows does not matter: any will do, as long as they differ.
Tensor random_rows(int64_t rows, int64_t hidden, DType dtype, uint64_t seed) {
  const Tensor y = Tensor::empty({rows, hidden}, dtype);
  uint64_t state = (seed + 1) * 0x9e3779b97f4a7c15u;
  for (int64_t i = 0; i < y.numel(); ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    const float value = static_cast<float>(static_cast<int32_t>(state >> 40) - (1 << 23)) /
                        static_cast<float>(1 << 21);
    switch (dtype) {
      case DType::kBF16:
        y.data<BFloat16>()[i] = BFloat16(value);
        break;
      case DType::kF16:
        y.data<Float16>()[i] = Float16(value);
        break;
      default:
        y.data<float>()[i] = value;
    }
  }
  return y;
}

// One call of one rank, as it is on the CPU.
struct Call {
  LowLatencyCast cast = kNone;
  Input in;
  Tensor counts;
  Tensor x, scales, tags;  // packed
  Tensor y;                // packed [N, H] of in_dtype; kNone only
  Tensor out;
  TransportStatistics sent;  // this call and those before
};

// By rank, then by call.  Ranks in `dead` are given up by all others before the first call.
using Reference = std::vector<std::vector<Call>>;

Reference run_on_cpu(const Problem& p,
                     const std::vector<LowLatencyCast>& casts,
                     int calls_per_cast,
                     int dead = -1) {
  Reference reference(static_cast<size_t>(p.routing.num_ranks));
  ThreadGroupOptions options;
  options.num_ranks = p.routing.num_ranks;
  options.ranks_per_node = p.ranks_per_node;
  run_thread_ranks(options, [&](Group& group) {
    const int rank = group.rank();
    const Stream stream = Stream::cpu(1);
    LowLatency cpu(group, p.routing.placement(), p.options());
    group.barrier("made");
    if (rank == dead) {
      return;
    }
    if (dead >= 0) {
      cpu.set_dead(dead, true);
    }
    for (const LowLatencyCast cast : casts) {
      for (int i = 0; i < calls_per_cast; ++i) {
        Call call;
        call.cast = cast;
        const auto seed = static_cast<uint64_t>(i + 1);
        call.in = make_input(p, rank, seed);
        const auto result = cpu.dispatch(call.in.x, call.in.ids, cast, stream, call.in.tags);
        call.counts = result.expert_num_tokens.clone();
        call.x = pack_rows(result.x, call.counts);
        call.tags = pack_rows(result.row_tags, call.counts);
        if (cast != kNone) {
          call.scales = pack_rows(result.x_scale, call.counts);
        } else {
          call.y = random_rows(call.x.dim(0), p.routing.hidden, p.dtype,
                               seed * 100 + static_cast<uint64_t>(rank));
          const Tensor y =
              Tensor::zeros({p.num_local(rank), p.max_rows(), p.routing.hidden}, p.dtype);
          int64_t n = 0;
          for (int64_t l = 0; l < call.counts.numel(); ++l) {
            const int64_t count = call.counts.data<int32_t>()[l];
            if (count > 0) {
              const Tensor rows = call.y.slice(n, n + count);
              std::memcpy(y[l].raw(), rows.raw(), static_cast<size_t>(rows.nbytes()));
            }
            n += count;
          }
          call.out = Tensor::empty(call.in.x.shape(), p.dtype);
          cpu.combine(y, call.in.ids, call.in.weights, *result.handle, call.out, stream);
        }
        call.sent = cpu.statistics();
        reference[static_cast<size_t>(rank)].push_back(call);
      }
    }
  });
  return reference;
}

Tensor down(const Tensor& there) {
  const Tensor host = Tensor::empty(there.shape(), there.dtype());
  if (host.nbytes() > 0) {
    cuda::copy_now(host.raw(), there.raw(), host.nbytes(), there.device().index);
  }
  return host;
}

// A rank of a test on its GPU.
struct Rank {
  Rank(Group& g, const Problem& problem)
      : group(g),
        p(problem),
        device(g.device()),
        stream(Stream::cuda(device.index)),
        gpu(g, p.routing.placement(), p.options()) {}
  // Peers may still load from and store into this rank's window.
  ~Rank() { stream.synchronize(); }

  Tensor up(const Tensor& host) const {
    if (!host) {
      return {};
    }
    const Tensor there = Tensor::empty(host.shape(), host.dtype(), device);
    if (host.nbytes() > 0) {
      cuda::copy_now(there.raw(), host.raw(), host.nbytes(), device.index);
    }
    return there;
  }
  // Packed rows into the batched format; the others are NaN.
  Tensor up_batched(const Tensor& packed, const Tensor& counts) const {
    const Tensor there =
        Tensor::empty({counts.numel(), p.max_rows(), p.routing.hidden}, p.dtype, device);
    if (there.nbytes() > 0) {
      cudaMemsetAsync(there.raw(), 0xff, static_cast<size_t>(there.nbytes()),
                      static_cast<cudaStream_t>(stream.native_handle()));
    }
    stream.synchronize();
    fill_batched(there, packed, counts);
    return there;
  }
  void fill_batched(const Tensor& there, const Tensor& packed, const Tensor& counts) const {
    int64_t n = 0;
    for (int64_t l = 0; l < counts.numel(); ++l) {
      const int64_t count = counts.data<int32_t>()[l];
      if (count > 0) {
        const Tensor rows = packed.slice(n, n + count);
        cuda::copy_now(there[l].raw(), rows.raw(), rows.nbytes(), device.index);
      }
      n += count;
    }
  }
  void finish() {
    stream.synchronize();
    gpu.check();
  }

  Group& group;
  Problem p;
  Device device;
  Stream stream;
  LowLatency gpu;
};

struct DeviceInput {
  Tensor x, ids, weights, tags, out;
};

DeviceInput put(const Rank& r, const Input& host) {
  DeviceInput in{r.up(host.x), r.up(host.ids), r.up(host.weights), r.up(host.tags), {}};
  in.out = Tensor::zeros(host.x.shape(), host.x.dtype(), r.device);
  return in;
}

// Where two tensors of packed rows differ first.
void expect_same_rows(const Tensor& got, const Tensor& expected, const std::string& what) {
  ASSERT_EQ(got.shape(), expected.shape()) << what;
  if (same_bytes(got, expected)) {
    return;
  }
  int64_t wrong_rows = 0;
  int64_t first = -1;
  for (int64_t row = 0; row < got.dim(0); ++row) {
    if (!same_bytes(got.slice(row, row + 1), expected.slice(row, row + 1))) {
      ++wrong_rows;
      first = first < 0 ? row : first;
    }
  }
  int64_t byte = first * got.dim(1);
  while (got.bytes()[byte] == expected.bytes()[byte]) {
    ++byte;
  }
  FAIL() << what << ": " << wrong_rows << " of " << got.dim(0) << " rows differ, first row "
         << first << " at byte " << byte - first * got.dim(1) << " of " << got.dim(1) << ": got "
         << static_cast<int>(got.bytes()[byte]) << ", expected "
         << static_cast<int>(expected.bytes()[byte]);
}

void expect_dispatched(const LowLatencyDispatchOutput& got, const Call& expected) {
  const Tensor counts = down(got.expert_num_tokens);
  ASSERT_TRUE(same_bytes(counts, expected.counts)) << "rows per expert";
  expect_same_rows(pack_rows(got.row_tags, counts), expected.tags, "tags");
  expect_same_rows(pack_rows(got.x, counts), expected.x, "x");
  ASSERT_EQ(got.x_scale.defined(), expected.scales.defined());
  if (got.x_scale) {
    expect_same_rows(pack_rows(got.x_scale, counts), expected.scales, "scales");
  }
}

void expect_combined(const Tensor& got, const Call& expected) {
  const Tensor host = down(got);
  if (host.numel() > 0) {
    const Shape rows = {host.dim(0), host.nbytes() / host.dim(0)};
    expect_same_rows(host.reinterpret(DType::kU8, rows), expected.out.reinterpret(DType::kU8, rows),
                     "out");
  }
}

void expect_sent(const TransportStatistics& got, const TransportStatistics& expected, int times) {
  EXPECT_EQ(got.selections, times * expected.selections);
  EXPECT_EQ(got.copies, times * expected.copies);
  EXPECT_EQ(got.node_copies, times * expected.node_copies);
}

void check_call(Rank& r, const Call& call) {
  const DeviceInput in = put(r, call.in);
  const auto got = r.gpu.dispatch(in.x, in.ids, call.cast, r.stream, in.tags);
  r.finish();
  expect_dispatched(got, call);
  if (call.cast == kNone) {
    const Tensor y = r.up_batched(call.y, call.counts);
    r.gpu.combine(y, in.ids, in.weights, *got.handle, in.out, r.stream);
    r.finish();
    expect_combined(in.out, call);
  }
  expect_sent(r.gpu.statistics(), call.sent, 1);
}

std::vector<LowLatencyCast> casts_of(const Problem& p) {
  if (p.routing.hidden % 128 != 0) {
    return {kNone};
  }
  return {kNone, LowLatencyCast::kFp8, LowLatencyCast::kFp8Ue8m0};
}

class LowLatencyCuda : public GpuRanksTest {
 protected:
  int num_ranks() const { return GetParam().num_ranks; }
  bool is_one_node() const { return GetParam().ranks_per_node == 0; }

  Problem make_problem(int64_t num_experts, int64_t topk, int64_t hidden) const {
    Problem p;
    p.ranks_per_node = GetParam().ranks_per_node;
    p.routing.num_ranks = num_ranks();
    p.routing.num_experts = num_experts;
    p.routing.topk = topk;
    p.routing.hidden = hidden;
    p.routing.tokens.assign(static_cast<size_t>(num_ranks()), 33);
    return p;
  }
  void run_ranks(const Problem& p,
                 const std::function<void(Rank&)>& body,
                 milliseconds timeout = milliseconds(4000)) const {
    run_gpu_ranks(
        GetParam(),
        [&](Group& group) {
          SCOPED_TRACE("rank " + std::to_string(group.rank()));
          Rank rank(group, p);
          body(rank);
          rank.stream.synchronize();
          if (!HasFatalFailure()) {
            group.barrier("end");
          }
        },
        timeout);
  }
  void check_all(Problem p, int calls) const {
    p.ranks_per_node = GetParam().ranks_per_node;
    const Reference reference = run_on_cpu(p, casts_of(p), calls);
    run_ranks(p, [&](Rank& r) {
      for (const Call& call : reference[static_cast<size_t>(r.group.rank())]) {
        SCOPED_TRACE("cast " + std::to_string(static_cast<int>(call.cast)));
        check_call(r, call);
      }
    });
  }
};

TEST_P(LowLatencyCuda, SmallProblemsAreAsOnTheCpu) {
  for (const DispatchProblem& routing : dispatch_problems(num_ranks())) {
    SCOPED_TRACE(routing.seed);
    Problem p;
    p.routing = routing;
    p.routing.hidden = routing.hidden == 45 ? 45 : 256;
    check_all(p, 3);
  }
}

TEST_P(LowLatencyCuda, HiddenSizesOfModels) {
  for (const int64_t hidden : {2048, 2880, 7168}) {
    SCOPED_TRACE(hidden);
    Problem p = make_problem(16, 8, hidden);
    p.max_tokens = 128;
    p.routing.tokens.assign(p.routing.tokens.size(), 128);
    p.routing.tokens[0] = 7;
    check_all(p, 2);
  }
}

TEST_P(LowLatencyCuda, OddHiddenSizes) {
  for (const int64_t hidden : {1, 45, 1022, 1023, 1025, 2881}) {
    SCOPED_TRACE(hidden);
    check_all(make_problem(7, 3, hidden), 1);
  }
}

TEST_P(LowLatencyCuda, OtherTypes) {
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    for (const int64_t hidden : {640, 1537}) {
      SCOPED_TRACE(hidden);
      Problem p = make_problem(8, 4, hidden);
      p.dtype = dtype;
      check_all(p, 1);
    }
  }
}

TEST_P(LowLatencyCuda, TopkFromOneToThirtyTwo) {
  for (const int64_t topk : {1, 2, 5, 9, 16, 32}) {
    SCOPED_TRACE(topk);
    check_all(make_problem(40, topk, 512), 1);
  }
}

TEST_P(LowLatencyCuda, AnyGrid) {
  for (const int num_sms : {1, 2, 5, 32}) {
    SCOPED_TRACE(num_sms);
    Problem p = make_problem(24, 6, 3072);
    p.num_sms = num_sms;
    check_all(p, 1);
  }
}

TEST_P(LowLatencyCuda, AnyWayOfSendingBack) {
  for (const bool in_bulk : {true, false}) {
    for (const int unit_parts : {1, 2, 3, 100}) {
      SCOPED_TRACE(std::to_string(in_bulk) + ", " + std::to_string(unit_parts));
      combine_tuning = {in_bulk, unit_parts};
      check_all(make_problem(24, 6, 4608), 1);
    }
  }
  combine_tuning = {};
}

TEST_P(LowLatencyCuda, SumsOfRanksAreAsOnTheCpu) {
  if (!is_one_node()) {
    Problem p = make_problem(8, 4, 256);
    p.sum = LowLatencySum::kRanks;
    run_gpu_ranks(GetParam(), [&](Group& group) {
      EXPECT_THROW(LowLatency(group, p.routing.placement(), p.options()), Unsupported);
    });
    return;
  }
  for (DispatchProblem routing : dispatch_problems(num_ranks())) {
    SCOPED_TRACE(routing.seed);
    Problem p;
    p.routing = routing;
    p.sum = LowLatencySum::kRanks;
    check_all(p, 3);
  }
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const int64_t topk : {1, 8, 32}) {
      for (const int64_t hidden : {1025, 2880}) {
        SCOPED_TRACE(hidden);
        Problem p = make_problem(40, topk, hidden);
        p.dtype = dtype;
        p.sum = LowLatencySum::kRanks;
        check_all(p, 1);
      }
    }
  }
}

TEST_P(LowLatencyCuda, OneTokenAndNone) {
  Problem p = make_problem(64, 8, 7168);
  p.max_tokens = 8;
  p.routing.tokens.assign(p.routing.tokens.size(), 1);
  check_all(p, 3);
  p.routing.tokens.back() = 0;
  check_all(p, 3);
}

// Send halves of two calls before either receive half; every other time the second comes first.
TEST_P(LowLatencyCuda, TwoCallsInFlightDoNotDisturbEachOther) {
  const Problem p = make_problem(9, 3, 1152);
  const Reference reference = run_on_cpu(p, {kNone}, 12);
  run_ranks(p, [&](Rank& r) {
    const std::vector<Call>& calls = reference[static_cast<size_t>(r.group.rank())];
    for (size_t i = 0; i + 1 < calls.size(); i += 2) {
      const DeviceInput a = put(r, calls[i].in);
      const DeviceInput b = put(r, calls[i + 1].in);
      auto pending_a = r.gpu.dispatch_async(a.x, a.ids, kNone, r.stream, a.tags);
      auto pending_b = r.gpu.dispatch_async(b.x, b.ids, kNone, r.stream, b.tags);
      EXPECT_THROW(r.gpu.dispatch_async(a.x, a.ids, kNone, r.stream), InvalidArgument);
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
      auto back_a = r.gpu.combine_async(y_a, a.ids, a.weights, *got_a.handle, a.out, r.stream);
      auto back_b = r.gpu.combine_async(y_b, b.ids, b.weights, *got_b.handle, b.out, r.stream);
      (is_swapped ? back_a : back_b).finish();
      (is_swapped ? back_b : back_a).finish();
      r.finish();
      expect_combined(a.out, calls[i]);
      expect_combined(b.out, calls[i + 1]);
    }
  });
}

// No host synchronisation for many calls, while ranks drift apart by turns.
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
      const auto got = r.gpu.dispatch(in.x, in.ids, kNone, r.stream, in.tags);
      r.gpu.combine(y, in.ids, in.weights, *got.handle, in.out, r.stream);
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

// One dispatch and one combine: the bank changes with every replay, the tensors do not.
TEST_P(LowLatencyCuda, GraphsMayBeReplayed) {
  if (!is_one_node()) {
    GTEST_SKIP() << "skipped: needs one node";
  }
  const Problem p = make_problem(8, 4, 2048);
  const Reference reference = run_on_cpu(p, {kNone}, 7);
  run_ranks(p, [&](Rank& r) {
    const std::vector<Call>& calls = reference[static_cast<size_t>(r.group.rank())];
    const DeviceInput in = put(r, calls[0].in);
    // Both results have their tensors before anything is captured.
    r.gpu.dispatch(in.x, in.ids, kNone, r.stream);
    r.gpu.dispatch(in.x, in.ids, kNone, r.stream);
    const Tensor y = r.up_batched(calls[0].y, calls[0].counts);
    r.finish();
    auto* const stream = static_cast<cudaStream_t>(r.stream.native_handle());
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    const auto got = r.gpu.dispatch(in.x, in.ids, kNone, r.stream, in.tags);
    r.gpu.combine(y, in.ids, in.weights, *got.handle, in.out, r.stream);
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    ASSERT_EQ(cudaGraphUpload(exec, stream), cudaSuccess);
    r.stream.synchronize();
    r.group.barrier("captured");
    for (const Call& call : calls) {
      for (const auto& [from, to] : {std::pair{call.in.x, in.x}, std::pair{call.in.ids, in.ids},
                                     std::pair{call.in.weights, in.weights}}) {
        cuda::copy_now(to.raw(), from.raw(), from.nbytes(), r.device.index);
      }
      r.fill_batched(y, call.y, call.counts);
      ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
      r.finish();
      expect_dispatched(got, call);
      expect_combined(in.out, call);
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  });
}

// The last rank never comes.  The others are told so within the deadline, and no kernel spins on.
TEST_P(LowLatencyCuda, NamesARankThatNeverComes) {
  if (num_ranks() == 1 || !is_one_node()) {
    GTEST_SKIP() << "nobody to miss on this node";
  }
  const Problem p = make_problem(8, 4, 1024);
  const milliseconds timeout(1500);
  run_ranks(
      p,
      [&](Rank& r) {
        const int missing = r.group.size() - 1;
        const DeviceInput in = put(r, make_input(p, r.group.rank(), 5));
        if (r.group.rank() == missing) {
          std::this_thread::sleep_for(timeout);  // the others need as long to find out
          return;
        }
        const auto start = std::chrono::steady_clock::now();
        try {
          r.gpu.dispatch(in.x, in.ids, kNone, r.stream, in.tags);
          r.stream.synchronize();
          r.gpu.check();
          ADD_FAILURE() << "did not miss rank " << missing;
        } catch (const CommError& error) {
          EXPECT_EQ(error.peer(), missing) << error.what();
          EXPECT_NE(std::string(error.what()).find("low latency dispatch, call 1"),
                    std::string::npos)
              << error.what();
        }
        EXPECT_LT(std::chrono::steady_clock::now() - start, 2 * timeout);
        EXPECT_THROW(r.gpu.dispatch(in.x, in.ids, kNone, r.stream), CommError);
      },
      timeout);
}

TEST_P(LowLatencyCuda, NamesARankThatNeverComesFromAnotherNode) {
  if (is_one_node()) {
    GTEST_SKIP() << "needs nodes";
  }
  const Problem p = make_problem(8, 4, 1024);
  const milliseconds timeout(1500);
  run_gpu_ranks(
      GetParam(),
      [&](Group& group) {
        Rank r(group, p);
        if (group.rank() == num_ranks() - 1) {
          std::this_thread::sleep_for(2 * timeout);
          return;
        }
        const DeviceInput in = put(r, make_input(p, group.rank(), 5));
        const auto start = std::chrono::steady_clock::now();
        try {
          r.gpu.dispatch(in.x, in.ids, kNone, r.stream, in.tags);
          ADD_FAILURE() << "did not miss rank " << num_ranks() - 1;
        } catch (const CommError& error) {
          EXPECT_EQ(error.peer(), num_ranks() - 1) << error.what();
          EXPECT_NE(std::string(error.what()).find("low latency dispatch"), std::string::npos)
              << error.what();
        }
        EXPECT_LT(std::chrono::steady_clock::now() - start, 2 * timeout);
      },
      timeout);
}

// Every rank is told, the one with the id also which.
TEST_P(LowLatencyCuda, NamesARankWithABadId) {
  const Problem p = make_problem(8, 4, 1024);
  run_ranks(p, [&](Rank& r) {
    const int bad = r.group.size() - 1;
    const Input host = make_input(p, r.group.rank(), 5);
    if (r.group.rank() == bad) {
      host.ids.data<int32_t>()[9 * p.routing.topk + 2] = 8;
    }
    const DeviceInput in = put(r, host);
    if (!is_one_node()) {  // found before anything is told, as on the CPU
      if (r.group.rank() == bad) {
        EXPECT_THROW(r.gpu.dispatch(in.x, in.ids, kNone, r.stream, in.tags), InvalidArgument);
      }
      return;
    }
    r.gpu.dispatch(in.x, in.ids, kNone, r.stream, in.tags);
    r.stream.synchronize();
    r.group.barrier("all know");
    try {
      r.gpu.dispatch(in.x, in.ids, kNone, r.stream, in.tags);  // may be the first to see it
      r.stream.synchronize();
      r.gpu.check();
      ADD_FAILURE() << "id 8 of 8 experts passed";
    } catch (const CommError& error) {
      EXPECT_EQ(error.peer(), bad) << error.what();
      EXPECT_NE(std::string(error.what()).find("expert id"), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find("8 of token 9") != std::string::npos,
                r.group.rank() == bad)
          << error.what();
    }
  });
}

// Given up from the start: nothing is sent to it, awaited from it, or summed of it.
TEST_P(LowLatencyCuda, GoesOnWithoutADeadRank) {
  if (num_ranks() == 1) {
    GTEST_SKIP() << "nobody to lose";
  }
  Problem p = make_problem(3 * num_ranks() + 1, 4, 1024);
  const int dead = num_ranks() - 1;
  if (!is_one_node()) {  // calls are collective
    run_ranks(p, [&](Rank& r) {
      if (r.group.rank() != dead) {
        const DeviceInput in = put(r, make_input(p, r.group.rank(), 5));
        r.gpu.set_dead(dead, true);
        EXPECT_THROW(r.gpu.dispatch(in.x, in.ids, kNone, r.stream), CommError);
        r.gpu.set_dead(dead, false);
      }
    });
    return;
  }
  for (const LowLatencySum sum : {LowLatencySum::kSelections, LowLatencySum::kRanks}) {
    p.sum = sum;
    const Reference reference = run_on_cpu(p, {kNone}, 5, dead);
    run_ranks(p, [&](Rank& r) {
      r.group.barrier("made");
      if (r.group.rank() != dead) {
        r.gpu.set_dead(dead, true);
        for (const Call& call : reference[static_cast<size_t>(r.group.rank())]) {
          check_call(r, call);
        }
        r.group.set_dead(dead, false);  // for the barrier at the end
      }
    });
  }
}

// The last rank stops coming.  The others find out in different calls, give it up, and go on.
TEST_P(LowLatencyCuda, GoesOnAfterAFailure) {
  if (num_ranks() == 1 || !is_one_node()) {
    GTEST_SKIP() << "nobody to lose on this node";
  }
  const Problem p = make_problem(3 * num_ranks() + 1, 4, 1024);
  const int dead = num_ranks() - 1;
  const milliseconds timeout(1500);
  const Reference before = run_on_cpu(p, {kNone}, 3);
  const Reference after = run_on_cpu(p, {kNone}, 5, dead);
  std::atomic<int> survivors{0};
  run_ranks(
      p,
      [&](Rank& r) {
        const int rank = r.group.rank();
        for (const Call& call : before[static_cast<size_t>(rank)]) {
          check_call(r, call);
        }
        r.group.barrier("so far");
        if (rank == dead) {
          for (int i = 0; i < 200 && survivors < dead; ++i) {
            std::this_thread::sleep_for(milliseconds(50));
          }
          return;
        }
        {
          const DeviceInput in = put(r, make_input(p, rank, 9));
          auto pending = r.gpu.dispatch_async(in.x, in.ids, kNone, r.stream, in.tags);
          Pending<LowLatencyDispatchOutput> next;
          if (rank == 0) {
            next = r.gpu.dispatch_async(in.x, in.ids, kNone, r.stream, in.tags);
          }
          pending.hook();
          r.stream.synchronize();
          try {
            r.gpu.check();
            ADD_FAILURE() << "did not miss rank " << dead;
          } catch (const CommError& error) {
            EXPECT_EQ(error.peer(), dead) << error.what();
          }
          EXPECT_THROW(r.gpu.dispatch(in.x, in.ids, kNone, r.stream), CommError);
        }
        r.gpu.set_dead(dead, true);
        r.gpu.reset_statistics();
        for (const Call& call : after[static_cast<size_t>(rank)]) {
          check_call(r, call);
        }
        r.group.set_dead(dead, false);  // for the barrier at the end
        ++survivors;
      },
      timeout);
}

INSTANTIATE_TEST_SUITE_P(All, LowLatencyCuda, ::testing::ValuesIn(gpu_ranks()), gpu_ranks_name);
INSTANTIATE_TEST_SUITE_P(Nodes, LowLatencyCuda, ::testing::ValuesIn(gpu_nodes()), gpu_ranks_name);

}  // namespace
}  // namespace moebius::testing
