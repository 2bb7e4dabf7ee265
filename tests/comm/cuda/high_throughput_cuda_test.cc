// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// High throughput on GPUs, bit for bit what rank threads on the CPU get from the same inputs. Ranks
// share one GPU; where there are several, the same again with a GPU each.
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>
#include <thread>

#include "core/cuda/check.h"
#include "core/cuda/runtime.h"
#include "moebius/dispatch.h"
#include "tests/comm/cuda/beside_cpu.h"
#include "tests/comm/dispatch_cases.h"
#include "tests/comm/gpu_ranks.h"

namespace moebius::testing {
namespace {

constexpr int kBlocks = 6;  // of a rank: all ranks of a GPU must be resident at once

DispatchConfig small_config(int num_sms = kBlocks) {
  DispatchConfig config = DispatchConfig::for_dispatch(1);
  config.num_sms = num_sms;
  return config;
}

// One rank of a test: the same calls on both sides.
struct Sides {
  Sides(Group& gpu, Group& host, const ExpertPlacement& placement, int num_sms = kBlocks)
      : cpu(host, placement, small_config(), small_config()),
        cuda(gpu, placement, small_config(num_sms), small_config(num_sms)),
        device(gpu.device()),
        stream(Stream::cuda(device.index)) {}

  Tensor up(const Tensor& t) const { return t ? to_device(t, device, stream) : Tensor(); }
  Tensor down(const Tensor& t) const { return t ? to_device(t, Device::cpu(), stream) : Tensor(); }
  DispatchInput up(const DispatchInput& input) const {
    DispatchInput result = input;
    for (Tensor& payload : result.payloads) {
      payload = up(payload);
    }
    result.topk_ids = up(input.topk_ids);
    result.topk_weights = up(input.topk_weights);
    return result;
  }

  HighThroughput cpu;
  HighThroughput cuda;
  Device device;
  Stream stream;
  Stream cpu_stream = Stream::cpu(1);
};

void expect_same(const Sides& sides,
                 const Tensor& actual,
                 const Tensor& expected,
                 const std::string& what) {
  ASSERT_EQ(actual.defined(), expected.defined()) << what;
  if (!actual) {
    return;
  }
  ASSERT_EQ(to_string(actual.shape()), to_string(expected.shape())) << what;
  const Tensor got = sides.down(actual);
  if (same_bytes(got, expected)) {
    return;
  }
  const auto* a = got.bytes();
  const auto* b = expected.bytes();
  const int64_t row = got.nbytes() / got.dim(0);
  int64_t wrong_rows = 0;
  int64_t first = -1;
  for (int64_t r = 0; r < got.dim(0); ++r) {
    if (std::memcmp(a + r * row, b + r * row, static_cast<size_t>(row)) != 0) {
      first = first < 0 ? r : first;
      ++wrong_rows;
    }
  }
  ADD_FAILURE() << what << ": " << wrong_rows << " of " << got.dim(0) << " rows differ, first "
                << first << ": i32 " << reinterpret_cast<const int32_t*>(a + first * row)[0]
                << ", expected " << reinterpret_cast<const int32_t*>(b + first * row)[0];
}

void expect_same(const Sides& sides, const DispatchOutput& actual, const DispatchOutput& expected) {
  ASSERT_EQ(actual.payloads.size(), expected.payloads.size());
  for (size_t i = 0; i < actual.payloads.size(); ++i) {
    expect_same(sides, actual.payloads[i], expected.payloads[i], "payload " + std::to_string(i));
  }
  expect_same(sides, actual.topk_ids, expected.topk_ids, "topk_ids");
  expect_same(sides, actual.topk_weights, expected.topk_weights, "topk_weights");
  expect_same(sides, actual.expert_num_tokens, expected.expert_num_tokens, "expert_num_tokens");
  if (expected.handle) {
    ASSERT_EQ(actual.handle->num_rows(), expected.handle->num_rows());
    expect_same(sides, actual.handle->source_token(), expected.handle->source_token(),
                "source_token");
    expect_same(sides, actual.handle->source_rank(), expected.handle->source_rank(), "source_rank");
  }
}

void run_gpu_ranks(int num_ranks,
                   bool gpu_each,
                   std::chrono::milliseconds timeout,
                   const std::function<void(Group& gpu, Group& host)>& body) {
  const GpuRanks ranks{"peer", num_ranks, gpu_each ? num_ranks : 1};
  run_beside_cpu(thread_options(ranks, timeout), [&](Group& gpu, Group& host) {
    SCOPED_TRACE("rank " + std::to_string(host.rank()));
    body(gpu, host);
  });
}

constexpr std::chrono::milliseconds kTimeout{4000};

// Input for the wider problems: no shuffle of all experts per token.
RankInput make_wide_input(const DispatchProblem& p, int rank) {
  std::mt19937 random(static_cast<uint32_t>(p.seed * 1000) + static_cast<uint32_t>(rank));
  const int64_t n = p.num_tokens(rank);
  RankInput in{Tensor::empty({n, p.hidden}, DType::kBF16), Tensor::empty({n, 2}, DType::kI32),
               Tensor::empty({n, p.topk}, DType::kI32), Tensor::empty({n, p.topk}, DType::kF32)};
  for (int64_t i = 0; i < in.x.numel(); ++i) {
    in.x.data<BFloat16>()[i] = BFloat16(static_cast<float>(random() % 2001) / 1000.0f - 1.0f);
  }
  for (int64_t t = 0; t < n; ++t) {
    in.code.data<int32_t>()[2 * t] = rank;
    in.code.data<int32_t>()[2 * t + 1] = static_cast<int32_t>(t);
    const auto first = static_cast<int64_t>(random());
    for (int64_t k = 0; k < p.topk; ++k) {
      // Distinct: a stride that is prime to the number of experts.
      const auto id = (first + k * 7) % p.num_experts;
      const bool masked = random() % 10 == 0;
      in.ids.data<int32_t>()[t * p.topk + k] = masked ? -1 : static_cast<int32_t>(id);
      in.weights.data<float>()[t * p.topk + k] = static_cast<float>(1 + random() % 100) / 64.0f;
    }
  }
  return in;
}

Tensor random_rows(const Shape& shape, DType dtype, uint32_t seed) {
  std::mt19937 random(seed);
  const Tensor t = Tensor::empty(shape, dtype);
  for (int64_t i = 0; i < t.numel(); ++i) {
    set_float(t, i, static_cast<float>(static_cast<int32_t>(random())) / 1e9f);
  }
  return t;
}

// What the ranks' experts have made of the rows of a dispatch, on its way back.
void check_combine(const DispatchProblem& p,
                   Sides& sides,
                   const DispatchOutput& on_gpu,
                   const DispatchOutput& on_cpu,
                   DType dtype,
                   int rank,
                   bool with_extras) {
  const int64_t rows = on_cpu.handle->num_rows();
  const int64_t tokens = on_cpu.handle->num_tokens();
  const auto seed = static_cast<uint32_t>(p.seed * 100 + static_cast<uint64_t>(rank));
  HighThroughput::CombineInput input;
  input.x = random_rows({rows, p.hidden}, dtype, seed);
  if (with_extras) {
    input.topk_weights = random_rows({rows, p.topk}, DType::kF32, seed + 1);
    input.bias = {random_rows({tokens, p.hidden}, dtype, seed + 2),
                  random_rows({tokens, p.hidden}, dtype, seed + 3)};
  }
  HighThroughput::CombineInput input_up = input;
  input_up.x = sides.up(input.x);
  input_up.topk_weights = sides.up(input.topk_weights);
  input_up.bias = {sides.up(input.bias[0]), sides.up(input.bias[1])};
  const auto expected = sides.cpu.combine(input, *on_cpu.handle, sides.cpu_stream);
  const Tensor out = with_extras ? Tensor() : sides.up(random_rows({tokens, p.hidden}, dtype, 5));
  const auto actual = sides.cuda.combine(input_up, *on_gpu.handle, sides.stream, out);
  const std::string what = "combined " + std::string(name(dtype));
  expect_same(sides, actual.x, expected.x, what);
  expect_same(sides, actual.topk_weights, expected.topk_weights, what + " weights");
}

void check_problem(const DispatchProblem& p, const RankInput& in, Sides& sides) {
  const DispatchInput request{{in.x, in.code}, in.ids, in.weights, 8, {}};
  const DispatchInput request_up = sides.up(request);
  const DispatchOutput expected = sides.cpu.dispatch(request, sides.cpu_stream);
  const DispatchOutput first = sides.cuda.dispatch(request_up, sides.stream);
  expect_same(sides, first, expected);
  // A second result while the first lives, then payloads along the first's route, in another order.
  const DispatchOutput second = sides.cuda.dispatch(request_up, sides.stream);
  const std::vector<Tensor> payloads = {request_up.payloads[1], request_up.payloads[0]};
  const DispatchOutput cached = sides.cuda.dispatch_cached(payloads, *first.handle, sides.stream);
  expect_same(sides, second, expected);
  expect_same(sides, cached.payloads[0], expected.payloads[1], "cached payload 0");
  expect_same(sides, cached.payloads[1], expected.payloads[0], "cached payload 1");
  expect_same(sides, first, expected);
  const int rank = first.handle->num_tokens() == 0 ? 99 : in.code.data<int32_t>()[0];
  check_combine(p, sides, second, expected, DType::kBF16, rank, true);
  check_combine(p, sides, first, expected, DType::kF32, rank, false);
  check_combine(p, sides, first, expected, DType::kF16, rank, true);
  check_combine(p, sides, second, expected, DType::kBF16, rank, false);
}

class HighThroughputCuda : public GpuTest, public ::testing::WithParamInterface<int> {
 protected:
  // On one GPU, then on one each where there are as many.
  void on_gpus(const std::function<void(bool gpu_each)>& body) {
    body(false);
    if (GetParam() > 1 && cuda_device_count() >= GetParam()) {
      body(true);
    }
  }
};

TEST_P(HighThroughputCuda, DispatchGivesTheRowsOfTheCpu) {
  on_gpus([&](bool gpu_each) {
    for (const DispatchProblem& p : dispatch_problems(GetParam())) {
      SCOPED_TRACE("problem " + std::to_string(p.seed));
      run_gpu_ranks(GetParam(), gpu_each, kTimeout, [&](Group& gpu, Group& host) {
        Sides sides(gpu, host, p.placement());
        check_problem(p, make_input(p, host.rank()), sides);
      });
    }
  });
}

TEST_P(HighThroughputCuda, DispatchOfWideRows) {
  struct Case {
    int64_t hidden, topk, tokens;
  };
  for (const Case& c : {Case{2048, 8, 300}, Case{2880, 4, 257}, Case{7168, 8, 500},
                        Case{7000, 6, 129}, Case{2047, 16, 64}, Case{20000, 2, 40}}) {
    SCOPED_TRACE("hidden " + std::to_string(c.hidden));
    on_gpus([&](bool gpu_each) {
      DispatchProblem p;
      p.num_ranks = GetParam();
      p.num_experts = 128;
      p.topk = c.topk;
      p.hidden = c.hidden;
      for (int r = 0; r < p.num_ranks; ++r) {
        p.tokens.push_back(c.tokens + 13 * r);
      }
      run_gpu_ranks(GetParam(), gpu_each, kTimeout, [&](Group& gpu, Group& host) {
        Sides sides(gpu, host, p.placement());
        check_problem(p, make_wide_input(p, host.rank()), sides);
      });
    });
  }
}

// Ranks come late by turns, results live on, and routes of different calls are used crosswise.
TEST_P(HighThroughputCuda, ManyCallsWithDelaysAndInterleavedHandles) {
  on_gpus([&](bool gpu_each) {
    DispatchProblem p;
    p.num_ranks = GetParam();
    p.num_experts = 16;
    p.topk = 4;
    p.hidden = 512;
    for (int r = 0; r < p.num_ranks; ++r) {
      p.tokens.push_back(40 + 5 * r);
    }
    run_gpu_ranks(GetParam(), gpu_each, kTimeout, [&](Group& gpu, Group& host) {
      Sides sides(gpu, host, p.placement());
      std::mt19937 random(static_cast<uint32_t>(7 + host.rank()));
      constexpr int kInputs = 3;
      std::vector<DispatchInput> inputs;
      std::vector<DispatchInput> inputs_up;
      std::vector<DispatchOutput> expected;
      for (int i = 0; i < kInputs; ++i) {
        DispatchProblem q = p;
        q.seed = static_cast<uint64_t>(10 + i);
        const RankInput in = make_wide_input(q, host.rank());
        inputs.push_back({{in.x, in.code}, in.ids, in.weights, 1, {}});
        inputs_up.push_back(sides.up(inputs.back()));
        expected.push_back(sides.cpu.dispatch(inputs.back(), sides.cpu_stream));
      }
      std::vector<DispatchOutput> live(kInputs);
      for (int call = 0; call < 300; ++call) {
        if (random() % 8 == 0) {
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
        }
        const auto i = static_cast<size_t>(call % kInputs);
        live[i] = sides.cuda.dispatch(inputs_up[i], sides.stream);
        // Any earlier one is as it was, and its route, too.
        const auto j = static_cast<size_t>(call * 5 / 3 % kInputs);
        if (call % 4 == 3) {
          const DispatchOutput cached = sides.cuda.dispatch_cached(
              std::vector<Tensor>{inputs_up[j].payloads[1]}, *live[j].handle, sides.stream);
          expect_same(sides, cached.payloads[0], expected[j].payloads[1], "cached");
        }
        if (call % 16 == 15) {
          expect_same(sides, live[i], expected[i]);
          expect_same(sides, live[j], expected[j]);
        }
        if (::testing::Test::HasFailure()) {
          throw Error("call " + std::to_string(call));
        }
      }
      const TransportStatistics statistics = sides.cuda.statistics();
      EXPECT_EQ(statistics.copies, sides.cpu.statistics().copies * 100);
      EXPECT_EQ(statistics.selections, sides.cpu.statistics().selections * 100);
    });
  });
}

TEST_P(HighThroughputCuda, ACapacityKeepsCountsOnTheDevice) {
  on_gpus([&](bool gpu_each) {
    for (const DispatchProblem& p : dispatch_problems(GetParam())) {
      SCOPED_TRACE("problem " + std::to_string(p.seed));
      run_gpu_ranks(GetParam(), gpu_each, kTimeout, [&](Group& gpu, Group& host) {
        Sides sides(gpu, host, p.placement());
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
          expect_same(sides, output.topk_weights.slice(0, rows), expected.topk_weights,
                      "topk_weights");
          expect_same(sides, output.payloads[0], expected.payloads[0], "payload 0");
          expect_same(sides, output.payloads[1], expected.payloads[1], "payload 1");
          expect_same(sides, output.expert_num_tokens, expected.expert_num_tokens, "counts");
        }
        // One row too few for whoever gets the most.
        if (request_up.capacity > 4) {
          request_up.capacity -= 4;
          try {
            sides.cuda.dispatch(request_up, sides.stream);
            sides.stream.synchronize();
            sides.cuda.check();
            ADD_FAILURE() << "rows went beyond their capacity";
          } catch (const CommError& error) {
            EXPECT_NE(std::string(error.what()).find("has no room for all its rows"),
                      std::string::npos)
                << error.what();
          }
        }
      });
    }
  });
}

TEST_P(HighThroughputCuda, ARankThatNeverComesIsNamed) {
  if (GetParam() == 1) {
    GTEST_SKIP() << "skipped: needs a second rank";
  }
  on_gpus([&](bool gpu_each) {
    DispatchProblem p;
    p.num_ranks = GetParam();
    p.tokens.assign(static_cast<size_t>(GetParam()), 20);
    const int missing = GetParam() - 1;
    constexpr std::chrono::milliseconds kShort{400};
    run_gpu_ranks(GetParam(), gpu_each, kShort, [&](Group& gpu, Group& host) {
      Sides sides(gpu, host, p.placement());
      const RankInput in = make_input(p, host.rank());
      const DispatchInput request = sides.up({{in.x}, in.ids, in.weights, 1, {}});
      sides.cuda.dispatch(request, sides.stream);
      sides.stream.synchronize();
      host.barrier("all dispatched once");
      if (host.rank() == missing) {
        std::this_thread::sleep_for(3 * kShort);
        // Its own call finds what the others have told.
        EXPECT_THROW(sides.cuda.dispatch(request, sides.stream), CommError);
        return;
      }
      const auto start = std::chrono::steady_clock::now();
      for (int attempt = 0; attempt < 2; ++attempt) {
        try {
          sides.cuda.dispatch(request, sides.stream);
          ADD_FAILURE() << "dispatched without rank " << missing;
        } catch (const CommError& error) {
          EXPECT_EQ(error.peer(), missing) << error.what();
          EXPECT_NE(std::string(error.what()).find("did not come within 400 ms, expected at "),
                    std::string::npos)
              << error.what();
        }
      }
      EXPECT_LT(std::chrono::steady_clock::now() - start, 2 * kShort);
      std::this_thread::sleep_for(3 * kShort);  // leaving would be another failure
    });
  });
}

TEST_P(HighThroughputCuda, AnIdThatIsNoExpertEndsTheCallEverywhere) {
  DispatchProblem p;
  p.num_ranks = GetParam();
  p.tokens.assign(static_cast<size_t>(GetParam()), 20);
  const int guilty = GetParam() - 1;
  run_gpu_ranks(GetParam(), false, kTimeout, [&](Group& gpu, Group& host) {
    Sides sides(gpu, host, p.placement());
    const RankInput in = make_input(p, host.rank());
    if (host.rank() == guilty) {
      in.ids.data<int32_t>()[7 * p.topk + 1] = static_cast<int32_t>(p.num_experts);
    }
    try {
      sides.cuda.dispatch(sides.up({{in.x}, in.ids, in.weights, 1, {}}), sides.stream);
      sides.stream.synchronize();
      sides.cuda.check();
      ADD_FAILURE() << "took an id that is none";
    } catch (const CommError& error) {
      EXPECT_EQ(error.peer(), guilty);
      EXPECT_NE(std::string(error.what()).find("has an expert id that is none"), std::string::npos)
          << error.what();
      if (host.rank() == guilty) {
        EXPECT_NE(std::string(error.what()).find(": 8 of token 7"), std::string::npos)
            << error.what();
      }
    }
    host.barrier("all have seen it");
  });
}

TEST_P(HighThroughputCuda, GraphsReplayDispatchAndCombine) {
  on_gpus([&](bool gpu_each) {
    DispatchProblem p;
    p.num_ranks = GetParam();
    p.num_experts = 32;
    p.topk = 6;
    p.hidden = 1024;
    p.tokens.assign(static_cast<size_t>(GetParam()), 150);
    run_gpu_ranks(GetParam(), gpu_each, kTimeout, [&](Group& gpu, Group& host) {
      Sides sides(gpu, host, p.placement());
      const cuda::DeviceGuard guard(sides.device.index);
      const RankInput in = make_wide_input(p, host.rank());
      DispatchInput input = sides.up({{in.x}, in.ids, in.weights, 4, {}});
      input.capacity = 150 * GetParam();
      const auto call = [&] {
        const DispatchOutput output = sides.cuda.dispatch(input, sides.stream);
        const auto combined = sides.cuda.combine({output.payloads[0], output.topk_weights, {}, {}},
                                                 *output.handle, sides.stream);
        return std::pair(output, combined);
      };
      call();
      sides.stream.synchronize();
      const auto stream = cuda::as_stream(sides.stream.native_handle());
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t executable = nullptr;
      cuda::check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin");
      const auto [output, combined] = call();
      cuda::check_cuda(cudaStreamEndCapture(stream, &graph), "end");
      cuda::check_cuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
      for (int replay = 0; replay < 20; ++replay) {
        DispatchProblem q = p;
        q.seed = static_cast<uint64_t>(50 + replay);
        const RankInput fresh = make_wide_input(q, host.rank());
        copy(fresh.x, input.payloads[0], sides.stream);
        copy(fresh.ids, input.topk_ids, sides.stream);
        copy(fresh.weights, input.topk_weights, sides.stream);
        cuda::check_cuda(cudaGraphLaunch(executable, stream), "launch");
        const DispatchOutput expected =
            sides.cpu.dispatch({{fresh.x}, fresh.ids, fresh.weights, 4, {}}, sides.cpu_stream);
        const auto sum = sides.cpu.combine({expected.payloads[0], expected.topk_weights, {}, {}},
                                           *expected.handle, sides.cpu_stream);
        const int64_t rows = expected.handle->num_rows();
        expect_same(sides, output.payloads[0].slice(0, rows), expected.payloads[0], "rows");
        expect_same(sides, output.topk_ids.slice(0, rows), expected.topk_ids, "ids");
        expect_same(sides, output.expert_num_tokens, expected.expert_num_tokens, "counts");
        expect_same(sides, combined.x, sum.x, "sum");
        expect_same(sides, combined.topk_weights, sum.topk_weights, "weights");
      }
      sides.cuda.check();
      cuda::check_cuda(cudaGraphExecDestroy(executable), "destroy");
      cuda::check_cuda(cudaGraphDestroy(graph), "destroy");
      host.barrier("all done");
    });
  });
}

void expect_same(const Sides& sides, const ExpertOrder& actual, const ExpertOrder& expected) {
  expect_same(sides, actual.expert_offsets, expected.expert_offsets, "expert_offsets");
  expect_same(sides, actual.copy_row, expected.copy_row, "copy_row");
  expect_same(sides, actual.slot, expected.slot, "slot");
  ASSERT_EQ(actual.payloads.size(), expected.payloads.size());
  for (size_t i = 0; i < actual.payloads.size(); ++i) {
    expect_same(sides, actual.payloads[i], expected.payloads[i], "by expert " + std::to_string(i));
  }
}

void check_tables(const DispatchInput& request, Group& host, Sides& sides) {
  DispatchInput request_up = sides.up(request);
  const DispatchLayout layout = sides.cuda.layout(request_up.topk_ids, sides.stream);
  const DispatchLayout expected = sides.cpu.layout(request.topk_ids, sides.cpu_stream);
  expect_same(sides, layout.tokens_per_rank, expected.tokens_per_rank, "tokens_per_rank");
  expect_same(sides, layout.tokens_per_node, expected.tokens_per_node, "tokens_per_node");
  expect_same(sides, layout.tokens_per_expert, expected.tokens_per_expert, "tokens_per_expert");
  expect_same(sides, layout.is_token_in_rank, expected.is_token_in_rank, "is_token_in_rank");
  const DispatchOutput on_cpu = sides.cpu.dispatch(request, sides.cpu_stream);
  const DispatchOutput on_gpu = sides.cuda.dispatch(request_up, sides.stream);
  for (const int64_t alignment : {1, 8}) {
    const ExpertOrder order = sides.cpu.expert_order(on_cpu, alignment, sides.cpu_stream);
    expect_same(sides, sides.cuda.expert_order(on_gpu, alignment, sides.stream), order);
  }
  // Rows beyond those that have arrived are nobody's.
  const int64_t rows = on_cpu.handle->num_rows();
  request_up.capacity = all_reduce_max(host, "most rows", rows) + 50;
  DispatchOutput roomy = sides.cuda.dispatch(request_up, sides.stream);
  expect_same(sides, sides.cuda.expert_order(roomy, 8, sides.stream),
              sides.cpu.expert_order(on_cpu, 8, sides.cpu_stream));
}

TEST_P(HighThroughputCuda, LayoutAndExpertOrderAreThoseOfTheCpu) {
  on_gpus([&](bool gpu_each) {
    std::vector<DispatchProblem> problems = dispatch_problems(GetParam());
    DispatchProblem& many = problems.emplace_back();  // several parts of ids, and more experts
    many.num_ranks = GetParam();                      // than threads of a block
    many.num_experts = 300 * GetParam();
    many.topk = 6;
    many.hidden = 24;
    many.tokens.assign(static_cast<size_t>(GetParam()), 3001);
    for (const DispatchProblem& p : problems) {
      SCOPED_TRACE("problem " + std::to_string(p.seed));
      run_gpu_ranks(GetParam(), gpu_each, kTimeout, [&](Group& gpu, Group& host) {
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
          EXPECT_EQ(message([&] { sides.cuda.layout(sides.up(in.ids), sides.stream); }),
                    message([&] { sides.cpu.layout(in.ids, sides.cpu_stream); }));
        }
      });
    }
  });
}

// Several halves under way, and hooks in another order on every rank.
TEST_P(HighThroughputCuda, HalvesMayBeFinishedInAnyOrder) {
  on_gpus([&](bool gpu_each) {
    DispatchProblem p;
    p.num_ranks = GetParam();
    p.num_experts = 16;
    p.topk = 4;
    p.hidden = 256;
    p.tokens.assign(static_cast<size_t>(GetParam()), 60);
    run_gpu_ranks(GetParam(), gpu_each, kTimeout, [&](Group& gpu, Group& host) {
      Sides sides(gpu, host, p.placement());
      for (int round = 0; round < 4; ++round) {
        std::vector<DispatchInput> inputs(2);
        std::vector<DispatchInput> inputs_up;
        std::vector<Pending<DispatchOutput>> pending;
        for (size_t i = 0; i < inputs.size(); ++i) {
          DispatchProblem q = p;
          q.seed = static_cast<uint64_t>(2 * round) + i + 1;
          q.tokens.assign(q.tokens.size(), 30 + 40 * round);  // banks grow in the middle
          const RankInput in = make_wide_input(q, host.rank());
          inputs[i] = {{in.x, in.code}, in.ids, in.weights, 1, {}};
          inputs_up.push_back(sides.up(inputs[i]));
        }
        for (const DispatchInput& input : inputs_up) {
          pending.push_back(sides.cuda.dispatch_async(input, sides.stream));
        }
        if ((host.rank() + round) % 2 == 0) {
          pending[1].hook();
          pending[0].hook();
        }
        const DispatchOutput second = pending[1].receive();
        const DispatchOutput first = pending[0].receive();
        const std::vector<DispatchOutput> expected = {
            sides.cpu.dispatch(inputs[0], sides.cpu_stream),
            sides.cpu.dispatch(inputs[1], sides.cpu_stream)};
        expect_same(sides, first, expected[0]);
        expect_same(sides, second, expected[1]);

        auto sum = sides.cuda.combine_async({first.payloads[0], first.topk_weights, {}, {}},
                                            *first.handle, sides.stream);
        auto next = sides.cuda.dispatch_async(inputs_up[1], sides.stream);
        const auto expected_sum =
            sides.cpu.combine({expected[0].payloads[0], expected[0].topk_weights, {}, {}},
                              *expected[0].handle, sides.cpu_stream);
        expect_same(sides, next.finish(), expected[1]);
        const auto actual_sum = sum.finish();
        expect_same(sides, actual_sum.x, expected_sum.x, "sum");
        expect_same(sides, actual_sum.topk_weights, expected_sum.topk_weights, "sum of weights");
      }
    });
  });
}

TEST_P(HighThroughputCuda, CountsWhatItSends) {
  on_gpus([&](bool gpu_each) {
    DispatchProblem p;
    p.num_ranks = GetParam();
    p.num_experts = 4 * GetParam();
    p.topk = 3;
    for (int r = 0; r < p.num_ranks; ++r) {
      p.tokens.push_back(20 + 3 * r);
    }
    run_gpu_ranks(GetParam(), gpu_each, kTimeout, [&](Group& gpu, Group& host) {
      Sides sides(gpu, host, p.placement());
      const int rank = gpu.rank();
      const RankInput in = make_input(p, rank);
      const DispatchInput request = sides.up({{in.x, in.code}, in.ids, in.weights, 1, {}});
      const DispatchOutput output = sides.cuda.dispatch(request, sides.stream);
      const HighThroughput::CombineInput rows{output.payloads[0], output.topk_weights, {}, {}};
      sides.cuda.combine(rows, *output.handle, sides.stream);

      // What others hold of this rank's tokens, and what this rank holds of theirs.
      int64_t away = 0;
      const Tensor is_in = sides.cpu.layout(in.ids, sides.cpu_stream).is_token_in_rank;
      for (int64_t i = 0; i < is_in.numel(); ++i) {
        away += is_in.data<bool>()[i] && i % p.num_ranks != rank ? 1 : 0;
      }
      const Tensor sources = sides.down(output.handle->source_rank());
      const int64_t foreign =
          sources.numel() -
          std::count(sources.data<int32_t>(), sources.data<int32_t>() + sources.numel(), rank);
      // The second result is a bank more; the third takes the first's.
      const auto sent = [&] { return gpu.traffic().intra_node_bytes; };
      sides.cuda.dispatch(request, sides.stream);
      int64_t before = sent();
      sides.cuda.dispatch(request, sides.stream);
      const int64_t row_bytes = p.hidden * 2 + 8 + 8 * p.topk + 4;
      EXPECT_EQ(sent() - before, away * row_bytes);
      before = sent();
      sides.cuda.dispatch_cached(request.payloads, *output.handle, sides.stream);
      EXPECT_EQ(sent() - before, away * (p.hidden * 2 + 8));
      before = sent();
      sides.cuda.combine(rows, *output.handle, sides.stream);
      EXPECT_EQ(sent() - before, foreign * (p.hidden * 2 + 4 * p.topk));
      const TransportStatistics statistics = sides.cuda.statistics();
      const TransportStatistics expected = expected_sent(p, in, gpu.topology());
      EXPECT_EQ(statistics.selections, 3 * expected.selections);
      EXPECT_EQ(statistics.copies, 3 * expected.copies);
    });
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, HighThroughputCuda, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace moebius::testing
