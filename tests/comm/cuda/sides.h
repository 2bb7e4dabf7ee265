// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests of high throughput on GPUs: one rank of a test makes the same calls on both sides, and what
// it gets on its GPU must be bit for bit what it gets on the CPU.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>

#include "moebius/dispatch.h"
#include "problems/dispatch_problem.h"
#include "tests/comm/cuda/beside_cpu.h"
#include "tests/comm/gpu_ranks.h"

namespace moebius::testing {

inline constexpr int kBlocks = 6;  // so few that the blocks of all ranks of a GPU are resident

inline DispatchConfig small_config(int num_sms = kBlocks) {
  DispatchConfig config = DispatchConfig::for_dispatch(1);
  config.num_sms = num_sms;
  return config;
}

// One rank of a test.
struct Sides {
  Sides(Group& gpu, Group& host, const ExpertPlacement& placement, int num_sms = kBlocks)
      : cpu(host, placement, small_config(), small_config()),
        cuda(gpu, placement, small_config(num_sms), small_config(num_sms)),
        group(gpu),
        device(gpu.device()),
        stream(Stream::cuda(device.index)) {}

  // Tests may drop the tensors that these give while the stream still reads them.
  Tensor up(const Tensor& t) const {
    Tensor there = t ? to_device(t, device, stream) : Tensor();
    if (there) {
      there.record_stream(stream);
    }
    return there;
  }
  DispatchInput up(const DispatchInput& input) const {
    DispatchInput result = input;
    for (Tensor& payload : result.payloads) {
      payload = up(payload);
    }
    result.topk_ids = up(input.topk_ids);
    result.topk_weights = up(input.topk_weights);
    result.layout.is_token_in_rank = up(input.layout.is_token_in_rank);
    result.layout.tokens_per_expert = up(input.layout.tokens_per_expert);
    return result;
  }
  Tensor down(const Tensor& t) const { return t ? to_device(t, Device::cpu(), stream) : Tensor(); }

  HighThroughput cpu;
  HighThroughput cuda;
  Group& group;
  Device device;
  Stream stream;
  Stream cpu_stream = Stream::cpu(1);
};

void expect_same(const Sides& sides,
                 const Tensor& actual,
                 const Tensor& expected,
                 const std::string& what);
void expect_same(const Sides& sides, const DispatchOutput& actual, const DispatchOutput& expected);
void expect_same(const Sides& sides, const ExpertOrder& actual, const ExpertOrder& expected);

// The problem for so many ranks.  The first has `tokens`, and each has `more` than the one before.
inline DispatchProblem with_tokens(DispatchProblem p,
                                   int num_ranks,
                                   int64_t tokens,
                                   int64_t more = 0) {
  p.num_ranks = num_ranks;
  for (int r = 0; r < num_ranks; ++r) {
    p.tokens.push_back(tokens + more * r);
  }
  return p;
}

// A combine in which rows go back as they came.
inline CombineInput rows_of(const DispatchOutput& output) {
  return {output.payloads[0], output.topk_weights, {}, {}};
}

// Does what make_input() does, for wider problems: it does not shuffle all experts for each token.
RankInput make_wide_input(const DispatchProblem& p, int rank);

class HighThroughputCuda : public GpuRanksTest {
 protected:
  int num_ranks() const { return GetParam().num_ranks; }
  bool is_one_node() const { return GetParam().ranks_per_node == 0; }
  void run(const std::function<void(Group& gpu, Group& host)>& body,
           std::chrono::milliseconds timeout = std::chrono::seconds(10)) const {
    run_beside_cpu(thread_options(GetParam(), timeout), [&](Group& gpu, Group& host) {
      SCOPED_TRACE("rank " + std::to_string(host.rank()));
      body(gpu, host);
    });
  }
  // Runs the body on every rank with the transports of a problem.
  void run_sides(const DispatchProblem& p,
                 const std::function<void(Sides& sides, Group& host)>& body) const {
    run([&](Group& gpu, Group& host) {
      Sides sides(gpu, host, p.placement());
      body(sides, host);
    });
  }
  // The same with each of dispatch_problems(), one after the other.
  void run_problems(
      const std::function<void(const DispatchProblem& p, Sides& sides, Group& host)>& body) const {
    run([&](Group& gpu, Group& host) {
      for (const DispatchProblem& p : dispatch_problems(num_ranks())) {
        SCOPED_TRACE("problem " + std::to_string(p.seed));
        Sides sides(gpu, host, p.placement());
        body(p, sides, host);
      }
    });
  }
};

}  // namespace moebius::testing
