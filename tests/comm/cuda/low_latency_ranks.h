// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests of low latency on GPUs: what the ranks of a test do on their GPUs.  Results must be bit for
// bit those of LowLatency on the CPU.  Ranks that share a GPU use small grids, so that the kernels
// of all ranks fit on it at once.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <vector>

#include "comm/low_latency/cuda/make_transport.h"
#include "moebius/low_latency.h"
#include "problems/dispatch_problem.h"
#include "tests/comm/gpu_ranks.h"

namespace moebius::testing {

inline constexpr auto kNone = LowLatencyCast::kNone;

struct Problem {
  DispatchProblem routing;
  int64_t max_tokens = 64;
  DType dtype = DType::kBF16;
  int num_sms = 12;
  LowLatencySum sum = LowLatencySum::kSelections;
  int ranks_per_node = 0;
  CombineTuning tuning;

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

// Ranks with an odd number give no tags.
Input make_input(const Problem& p, int rank, uint64_t seed);

// One call of one rank, as it is on the CPU.
struct Call {
  LowLatencyCast cast = kNone;
  Input in;
  Tensor counts;
  Tensor x, scales, tags;  // packed
  Tensor y;                // packed [N, H] of in_dtype; kNone only
  Tensor out;
  TransportStatistics sent;  // by this call and those before
};

// Brings packed rows into the batched format, on either device.
void fill_batched(const Tensor& batched, const Tensor& packed, const Tensor& counts);

// All calls, by rank and then in order.
using Reference = std::vector<std::vector<Call>>;

// All others exclude the rank `dead`, if there is one, before the first call.
Reference run_on_cpu(const Problem& p,
                     const std::vector<LowLatencyCast>& casts,
                     int calls_per_cast,
                     int dead = -1);

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

  Tensor up(const Tensor& host) const;
  // The same on the rank's GPU; the other rows are NaN.
  Tensor up_batched(const Tensor& packed, const Tensor& counts) const;
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

// Puts the input onto the GPU of the rank; `out` is zero.
DeviceInput put(const Rank& r, const Input& host);

void expect_dispatched(const LowLatencyDispatchOutput& got, const Call& expected);
void expect_combined(const Tensor& got, const Call& expected);
void expect_sent(const TransportStatistics& got, const TransportStatistics& expected, int times);
// Makes the rank's next call, and checks its results.
void check_call(Rank& r, const Call& call);

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
                 std::chrono::milliseconds timeout = std::chrono::milliseconds(4000)) const;
  // Checks so many calls of every cast that the hidden size allows, for one problem after the
  // other.  All use one group, since a group of NCCL takes half a second to come together.
  void check_all(std::vector<Problem> problems, int calls) const;
};

// What nodes do not have.
class LowLatencyCudaOneNode : public LowLatencyCuda {};

}  // namespace moebius::testing
