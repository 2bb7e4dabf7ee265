// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/cuda/low_latency_ranks.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "core/cuda/runtime.h"

namespace moebius::testing {

namespace {

// `device`: where one of both is, if it is a GPU.
void copy_bytes(void* to, const void* from, int64_t bytes, Device device) {
  if (device.is_cuda() && bytes > 0) {
    cuda::copy_now(to, from, bytes, device.index);
  } else if (bytes > 0) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
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
    copy_bytes(to, batched[l].raw(), bytes, batched.device());
    to += bytes;
  }
  return packed;
}

// Rows that stand for what an expert makes of its rows.  Any will do, as long as they differ.
Tensor random_rows(int64_t rows, int64_t hidden, DType dtype, uint64_t seed) {
  const Tensor y = Tensor::empty({rows, hidden}, dtype);
  uint64_t state = (seed + 1) * 0x9e3779b97f4a7c15u;
  for (int64_t i = 0; i < y.numel(); ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    set_float(y, i,
              static_cast<float>(static_cast<int32_t>(state >> 40) - (1 << 23)) /
                  static_cast<float>(1 << 21));
  }
  return y;
}

Tensor down(const Tensor& there) {
  const Tensor host = Tensor::empty(there.shape(), there.dtype());
  copy_bytes(host.raw(), there.raw(), host.nbytes(), there.device());
  return host;
}

// Says where two tensors of packed rows differ first, if they do.
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

std::vector<LowLatencyCast> casts_of(const Problem& p) {
  if (p.routing.hidden % 128 != 0) {
    return {kNone};
  }
  return {kNone, LowLatencyCast::kFp8, LowLatencyCast::kFp8Ue8m0};
}

}  // namespace

Input make_input(const Problem& p, int rank, uint64_t seed) {
  DispatchProblem routing = p.routing;
  routing.seed = seed;
  const RankInput in = make_input(routing, rank);
  Input input{p.dtype == DType::kBF16 ? in.x : convert(in.x, p.dtype), in.ids, in.weights, {}};
  if (rank % 2 == 0) {
    input.tags = Tensor::empty({in.ids.dim(0)}, DType::kI32);
    for (int64_t t = 0; t < in.ids.dim(0); ++t) {
      input.tags.data<int32_t>()[t] = static_cast<int32_t>(1000 * rank + t);
    }
  }
  return input;
}

void fill_batched(const Tensor& batched, const Tensor& packed, const Tensor& counts) {
  int64_t n = 0;
  for (int64_t l = 0; l < counts.numel(); ++l) {
    const int64_t count = counts.data<int32_t>()[l];
    if (count > 0) {
      const Tensor rows = packed.slice(n, n + count);
      copy_bytes(batched[l].raw(), rows.raw(), rows.nbytes(), batched.device());
    }
    n += count;
  }
}

Reference run_on_cpu(const Problem& p,
                     const std::vector<LowLatencyCast>& casts,
                     int calls_per_cast,
                     int dead) {
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
        const auto result = cpu.dispatch({call.in.x, call.in.ids, cast, call.in.tags}, stream);
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
          fill_batched(y, call.y, call.counts);
          call.out = Tensor::empty(call.in.x.shape(), p.dtype);
          cpu.combine({y, call.in.ids, call.in.weights}, *result.handle, stream, call.out);
        }
        call.sent = cpu.statistics();
        reference[static_cast<size_t>(rank)].push_back(call);
      }
    }
  });
  return reference;
}

Tensor Rank::up(const Tensor& host) const {
  if (!host) {
    return {};
  }
  const Tensor there = Tensor::empty(host.shape(), host.dtype(), device);
  copy_bytes(there.raw(), host.raw(), host.nbytes(), device);
  return there;
}

Tensor Rank::up_batched(const Tensor& packed, const Tensor& counts) const {
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

DeviceInput put(const Rank& r, const Input& host) {
  DeviceInput in{r.up(host.x), r.up(host.ids), r.up(host.weights), r.up(host.tags), {}};
  in.out = Tensor::zeros(host.x.shape(), host.x.dtype(), r.device);
  return in;
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
  const auto got = r.gpu.dispatch({in.x, in.ids, call.cast, in.tags}, r.stream);
  r.finish();
  expect_dispatched(got, call);
  if (call.cast == kNone) {
    const Tensor y = r.up_batched(call.y, call.counts);
    r.gpu.combine({y, in.ids, in.weights}, *got.handle, r.stream, in.out);
    r.finish();
    expect_combined(in.out, call);
  }
  expect_sent(r.gpu.statistics(), call.sent, 1);
}

void LowLatencyCuda::run_ranks(const Problem& p,
                               const std::function<void(Rank&)>& body,
                               std::chrono::milliseconds timeout) const {
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

void LowLatencyCuda::check_all(std::vector<Problem> problems, int calls) const {
  std::vector<Reference> references;
  for (Problem& p : problems) {
    p.ranks_per_node = GetParam().ranks_per_node;
    references.push_back(run_on_cpu(p, casts_of(p), calls));
  }
  run_gpu_ranks(GetParam(), [&](Group& group) {
    SCOPED_TRACE("rank " + std::to_string(group.rank()));
    for (size_t i = 0; i < problems.size() && !HasFatalFailure(); ++i) {
      SCOPED_TRACE("problem " + std::to_string(i));
      if (group.rank() == 0) {
        combine_tuning = problems[i].tuning;
      }
      group.barrier("tuned");
      Rank rank(group, problems[i]);
      for (const Call& call : references[i][static_cast<size_t>(group.rank())]) {
        SCOPED_TRACE("cast " + std::to_string(static_cast<int>(call.cast)));
        check_call(rank, call);
      }
      rank.stream.synchronize();
      if (!HasFatalFailure()) {
        group.barrier("end of a problem");
      }
    }
  });
  combine_tuning = {};
}

INSTANTIATE_TEST_SUITE_P(All, LowLatencyCuda, on_gpu_ranks_and_nodes(), gpu_ranks_name);
INSTANTIATE_TEST_SUITE_P(All, LowLatencyCudaOneNode, on_gpu_ranks(), gpu_ranks_name);

}  // namespace moebius::testing
