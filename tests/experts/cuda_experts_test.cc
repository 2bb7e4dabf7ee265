// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Experts on a GPU, beyond the contract of the stage: CUDA graphs, the places of operands, and the
// widths of real models.
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "moebius/graph.h"
#include "tests/conformance/experts_runs.h"
#include "tests/error_text.h"
#include "tests/gpu_test.h"

namespace moebius::experts_suite {
namespace {

using testing::expect_mentions;
using testing::message_of;

constexpr Scheme kDeepSeek = {
    "fp8_block_128", QuantFormat::kFp8, QuantFormat::kFp8, WeightScales::kBlock, {128, 128}};

// With so many rows, elements of this int4 hold their scales, by norms that an update finds again.
constexpr Scheme kInt4By128 = {
    "int4 by 128", std::nullopt, QuantFormat::kInt4, WeightScales::kGroup, {0, 128}};
constexpr Problem kManyRows = {"many", 240, 2, 1, 256, 256};

class CudaExperts : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) {
      place_ = testing::Place(DeviceType::kCuda);
    }
  }

  // A call whose buffers stay where they are.
  struct Call {
    std::unique_ptr<Experts> experts;
    ExpertsInput input;
    Tensor output, intermediate, scratch;

    void apply(const Stream& stream) const {
      experts->apply(input, output, intermediate, scratch, stream);
    }
  };
  Call call_of(const ExpertProblem& p) const {
    Call call;
    call.experts = make_experts(p.desc, placed(p.weights, place_), place_.stream, "cuda");
    call.input = placed(p.input, place_);
    const int64_t rows = p.input.x.dim(p.desc.format == ActivationFormat::kBatched ? 1 : 0);
    const ExpertsWorkspace ws = call.experts->workspace(rows);
    call.output = place_.take(poisoned(ws.output, ws.dtype));
    call.intermediate = place_.take(poisoned(ws.intermediate, ws.dtype));
    call.scratch = place_.take(poisoned({ws.scratch_bytes}, DType::kU8));
    return call;
  }
  void overwrite(const ExpertsInput& to, const ExpertsInput& from) const {
    const auto put = [&](const Tensor& source, const Tensor& target) {
      if (source) {
        copy(source, target, place_.stream);
      }
    };
    put(from.x, to.x);
    put(from.topk_ids, to.topk_ids);
    put(from.topk_weights, to.topk_weights);
    put(from.expert_num_tokens, to.expert_num_tokens);
    put(from.lora_ids, to.lora_ids);
    place_.stream.synchronize();
  }

  testing::Place place_;
};

// Row counts, experts in use and adapters differ between replays.
TEST_F(CudaExperts, AReplayedGraphWorksOnWhatIsThereThen) {
  const Problem problem = {"graph", 700, 12, 3, 256, 128};
  for (const ActivationFormat format : {ActivationFormat::kStandard, ActivationFormat::kBatched}) {
    for (const std::string_view name : {"unquantized", "fp8_block", "fp8_tensor", "int4_w4a16",
                                        "fp8_channel_token", "int8_w8a8_token", "nvfp4"}) {
      SCOPED_TRACE(std::string(name) + " " + std::string(moebius::name(format)));
      ExpertCase c{.scheme = scheme_of(name), .format = format};
      c.num_adapters = name == "unquantized" ? 2 : 0;
      c.lora_rank = 4 * c.num_adapters;
      ExpertProblemMaker maker(51);
      ExpertProblem p = maker.make(problem, c);
      const Call call = call_of(p);
      call.apply(place_.stream);
      place_.stream.synchronize();
      const Graph graph(place_.stream, [&] { call.apply(place_.stream); });
      for (int i = 0; i < 2; ++i) {
        p.input = format == ActivationFormat::kStandard ? maker.standard_input(problem, c.dtype)
                                                        : maker.batched_input(problem, c.dtype);
        if (format == ActivationFormat::kStandard) {
          for (int64_t s = i; s < p.input.topk_ids.numel(); s += 5) {
            p.input.topk_ids.data<int32_t>()[s] = i == 0 ? -1 : 0;
          }
        }
        if (c.num_adapters > 0) {
          p.input.lora_ids = maker.lora_ids(p.input, c.num_adapters);
        }
        overwrite(call.input, p.input);
        graph.launch();
        place_.stream.synchronize();
        const Tensor actual = valid_rows(p, place_.bring(call.output));
        const Tensor again = apply(*call.experts, p.input, place_.stream);
        EXPECT_TRUE(same_bits(actual, valid_rows(p, again)));
        EXPECT_LE(relative_error(run_valid_rows(p, "cuda"), run_valid_rows(p, "cpu_portable")),
                  tolerance_of(p, c.scheme, "cuda"));
      }
    }
  }
}

// A recorded graph computes with the weights of the last update, whether they came from the host or
// from the GPU, or were written to lent memory.
TEST_F(CudaExperts, AReplayedGraphComputesWithUpdatedWeights) {
  std::vector<Scheme> schemes(std::begin(kSchemes), std::end(kSchemes));
  schemes.push_back(kInt4By128);
  for (const ActivationFormat format : {ActivationFormat::kStandard, ActivationFormat::kBatched}) {
    for (const Scheme& scheme : schemes) {
      for (const WeightMemory memory : {WeightMemory::kOwned, WeightMemory::kLent}) {
        SCOPED_TRACE(std::string(scheme.name) + " " + std::string(name(format)) +
                     (memory == WeightMemory::kLent ? " lent" : ""));
        const Problem problem =
            scheme.name == kInt4By128.name ? kManyRows : Problem{"update", 70, 12, 3, 256, 128};
        const ExpertCase c{.scheme = scheme, .format = format, .biased = true};
        ExpertProblem p = ExpertProblemMaker(53).make(problem, c);
        ExpertProblem other = ExpertProblemMaker(54).make(problem, c);
        other.input = p.input;
        p.desc.weight_memory = memory;
        p.weights = placed(p.weights, place_);  // `placed` tensors are copies on the GPU
        const Call call = call_of(p);
        call.apply(place_.stream);
        call.apply(place_.stream);
        place_.stream.synchronize();
        const Graph graph(place_.stream, [&] { call.apply(place_.stream); });
        graph.launch();
        const Tensor before = valid_rows(p, place_.bring(call.output));
        ExpertWeights from = other.weights;  // on the host
        if (memory == WeightMemory::kLent) {
          std::vector<Tensor> values;
          for_each_tensor(other.weights,
                          [&](const Tensor& value, const auto&) { values.push_back(value); });
          size_t i = 0;
          for_each_tensor(p.weights, [&](const Tensor& lent, const auto&) {
            if (const Tensor& value = values[i++]) {
              copy(value, lent, place_.stream);
            }
          });
          place_.stream.synchronize();
          from = p.weights;
        }
        call.experts->update_weights(from, place_.stream);
        graph.launch();
        const Tensor after = valid_rows(p, place_.bring(call.output));
        EXPECT_FALSE(same_bits(after, before));
        const Call fresh = call_of(other);
        fresh.apply(place_.stream);
        EXPECT_TRUE(same_bits(after, valid_rows(p, place_.bring(fresh.output))));
        if (memory == WeightMemory::kOwned) {
          call.experts->update_weights(p.weights, place_.stream);  // on the GPU
          graph.launch();
          EXPECT_TRUE(same_bits(valid_rows(p, place_.bring(call.output)), before));
        }
      }
    }
  }
}

TEST_F(CudaExperts, AdaptersLeaveOtherRowsOfManyAsTheyAre) {
  for (const Scheme& scheme : {kInt4By128, scheme_of("mxfp4_w4a16"), scheme_of("int8_w8a16")}) {
    SCOPED_TRACE(scheme.name);
    const ExpertCase c{.scheme = scheme, .num_adapters = 2, .lora_rank = 8};
    const ExpertProblem p = ExpertProblemMaker(57).make(kManyRows, c);
    const std::vector<int32_t> adapters = adapters_of_rows(p);
    const Shape rows = {static_cast<int64_t>(adapters.size()), p.desc.hidden};
    const Tensor with = run_valid_rows(p, "cuda").view(rows);
    const Tensor plain = run_valid_rows(without_adapters(p), "cuda").view(rows);
    for (int64_t r = 0; r < rows[0]; ++r) {
      EXPECT_EQ(same_bits(with[r], plain[r]), adapters[static_cast<size_t>(r)] == -1) << r;
    }
  }
}

// Experts have many rows or none, and fp8 has scales of 128 x 128 as published models do.  Hopper's
// tensor cores sum fp8 products to fewer bits than those of f32, so there both are compared with
// float64.
TEST_F(CudaExperts, WidthsOfModelsAgreeWithTheCpu) {
  for (const ActivationFormat format : {ActivationFormat::kStandard, ActivationFormat::kBatched}) {
    for (const Scheme& scheme :
         {kSchemes[0], kDeepSeek, scheme_of("mxfp4_w4a16"), scheme_of("int4_w4a16_zp"),
          scheme_of("int8_w8a8_token"), scheme_of("int8_w8a16"), scheme_of("nvfp4"),
          scheme_of("fp8_tensor"), scheme_of("fp8_tensor_static"), scheme_of("fp8_channel"),
          scheme_of("fp8_channel_token")}) {
      for (const Problem& problem :
           {Problem{"prefill", 900, 6, 2, 512, 384}, Problem{"decode", 12, 16, 4, 1024, 256},
            Problem{"odd", 100, 4, 2, 352, 352}, Problem{"wide", 24, 3, 2, 2304, 2112}}) {
        // A thread that quantizes to nvfp4 holds more than one vector of rows above 2048.
        if (problem.name == std::string_view("wide") && scheme.name != scheme_of("nvfp4").name) {
          continue;
        }
        SCOPED_TRACE(std::string(scheme.name) + " " + std::string(problem.name) + " " +
                     std::string(name(format)));
        const ExpertCase c{.scheme = scheme, .format = format, .biased = true};
        const ExpertProblem p = ExpertProblemMaker(52).make(problem, c);
        const Tensor there = run_valid_rows(p, "cuda");
        const Tensor here = run_valid_rows(p, "cpu_portable");
        if (scheme.name != kDeepSeek.name) {
          EXPECT_LE(relative_error(there, here), tolerance_of(p, scheme, "cuda"));
          continue;
        }
        ExpertProblem exact = p;
        exact.desc.precision = Precision::kF64;
        const Tensor expected = run_valid_rows(exact, "ref");
        EXPECT_LE(relative_error(there, expected), model_tolerance_of(p, scheme));
        EXPECT_LE(relative_error(here, expected), model_tolerance_of(p, scheme));
      }
    }
  }
}

// Checkpoints of fp8 per channel have scales in bf16.
TEST_F(CudaExperts, ScalesOfColumnsMayHave16Bits) {
  const Scheme& scheme = scheme_of("fp8_channel_token");
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    ExpertProblem p =
        ExpertProblemMaker(61).make({"narrow", 150, 3, 2, 256, 128}, {.scheme = scheme});
    for (QuantDesc* w : {&p.weights.quant.w1, &p.weights.quant.w2}) {
      w->scale = convert(w->scale, dtype);
    }
    EXPECT_LE(relative_error(run_valid_rows(p, "cuda"), run_valid_rows(p, "ref")),
              tolerance_of(p, scheme, "cuda"))
        << name(dtype);
  }
}

// In the batched format every expert has room for all tokens.  Which GEMM multiplies them, and how
// much scratch it takes, depends on how many rows are expected.
TEST_F(CudaExperts, FewRowsWithMuchRoomNeedNoDecodedWeights) {
  for (const int64_t experts : {41, 2}) {  // 59 rows are expected of 1200, or all
    const Problem problem = {"room", 1200, experts, 2, 512, 384};
    const auto scratch_bytes = [&](std::string_view scheme) {
      const ExpertCase c{.scheme = scheme_of(scheme), .format = ActivationFormat::kBatched};
      const ExpertProblem p = ExpertProblemMaker(56).make(problem, c);
      EXPECT_LE(relative_error(run_valid_rows(p, "cuda"), run_valid_rows(p, "cpu_portable")),
                tolerance_of(p, c.scheme, "cuda"))
          << scheme << " " << experts;
      return call_of(p).scratch.nbytes();
    };
    const int64_t more = scratch_bytes("mxfp4_w4a16") - scratch_bytes("unquantized");
    EXPECT_EQ(more > 0, experts == 2) << more << " B of " << experts;
  }
}

// The caller may know better than the room how many rows to expect; the workspace stays the same.
TEST_F(CudaExperts, ExpectedRowsMayBeTold) {
  const ExpertCase c{.scheme = scheme_of("mxfp4_w4a16"), .format = ActivationFormat::kBatched};
  for (const Problem& problem :
       {Problem{"told", 400, 4, 2, 512, 384}, {"one", 40, 1, 1, 512, 384}}) {
    const ExpertProblem p = ExpertProblemMaker(57).make(problem, c);
    const Tensor expected = run_valid_rows(p, "cpu_portable");
    Call call = call_of(p);
    for (const int64_t rows : {0, 1, 10, 100, 1000}) {
      call.input.expected_rows = rows;
      call.apply(place_.stream);
      EXPECT_LE(relative_error(valid_rows(p, place_.bring(call.output)), expected),
                tolerance_of(p, c.scheme, "cuda"))
          << problem.name << " " << rows;
    }
  }
}

// Experts that run beside others take another kernel from their second token on.
TEST_F(CudaExperts, ExpertsBesideOthersHaveTheSameResults) {
  for (const std::string_view scheme : {"mxfp4_w4a16", "nvfp4"}) {
    const ExpertCase c{.scheme = scheme_of(scheme)};
    for (const int64_t tokens : {1, 4}) {
      ExpertProblem p = ExpertProblemMaker(59).make({"beside", tokens, 32, 4, 512, 384}, c);
      const Tensor expected = run_valid_rows(p, "cpu_portable");
      for (const bool beside_others : {false, true}) {
        p.desc.beside_others = beside_others;
        EXPECT_LE(relative_error(run_valid_rows(p, "cuda"), expected),
                  tolerance_of(p, c.scheme, "cuda"))
            << scheme << " " << tokens << " " << beside_others;
      }
    }
  }
}

// With few rows GEMM1's result is stored, with many it is not; a workspace for more rows still
// does.
TEST_F(CudaExperts, AWorkspaceDoesForFewerRows) {
  const Problem problems[] = {{"wide", 20, 4, 2, 128, 512}, {"deep", 20, 16, 2, 512, 512}};
  for (const std::string_view scheme :
       {"unquantized", "fp8_block", "mxfp4_w4a16", "nvfp4", "int8_w8a16"}) {
    for (const ActivationFormat format :
         {ActivationFormat::kStandard, ActivationFormat::kBatched}) {
      for (const Problem& problem : problems) {
        const ExpertCase c{.scheme = scheme_of(scheme), .format = format};
        const Call call = call_of(ExpertProblemMaker(58).make(problem, c));
        int64_t before = 0;
        for (int64_t rows = 1; rows < 1000; ++rows) {
          const int64_t bytes = call.experts->workspace(rows).scratch_bytes;
          ASSERT_GE(bytes, before)
              << scheme << " " << problem.name << " " << name(format) << " " << rows;
          before = bytes;
        }
      }
    }
  }
}

// Rows that are not aligned are gathered, since GEMM1 cannot fetch them.
TEST_F(CudaExperts, RowsNeedNotBeAligned) {
  const ExpertProblem p = ExpertProblemMaker(60).make({"odd", 300, 4, 2, 512, 256}, {});
  Call call = call_of(p);
  call.apply(place_.stream);
  const Tensor expected = place_.bring(call.output);
  const Tensor aligned = call.input.x;
  const Tensor room = Tensor::empty({aligned.numel() + 1}, aligned.dtype(), aligned.device());
  call.input.x = room.slice(1, room.numel()).view(aligned.shape());
  copy(aligned, call.input.x, place_.stream);
  call.apply(place_.stream);
  EXPECT_TRUE(same_bits(place_.bring(call.output), expected));
}

TEST_F(CudaExperts, WeightsOfTheHostAreCopied) {
  for (const Scheme& scheme : {kSchemes[0], kDeepSeek, scheme_of("int4_w4a16_zp")}) {
    const ExpertCase c{.scheme = scheme, .biased = true, .num_adapters = 2, .lora_rank = 4};
    ExpertProblem p = ExpertProblemMaker(53).make({"some", 40, 4, 2, 256, 128}, c);
    const Tensor expected = run(p, "cuda");
    const auto experts = make_experts(p.desc, p.weights, place_.stream);
    EXPECT_EQ(experts->name(), "cuda");
    std::memset(p.weights.w1.raw(), 0, static_cast<size_t>(p.weights.w1.nbytes()));
    p.weights = {};
    EXPECT_TRUE(same_bits(run(*experts, p.input, place_.stream), expected));
  }
}

TEST_F(CudaExperts, OperandsElsewhereAreNamed) {
  const ExpertProblem p = ExpertProblemMaker(54).make(kTiny, {});
  Call call = call_of(p);
  const auto error = [&](const Stream& stream) {
    return message_of<Error>([&] { call.apply(stream); });
  };
  const ExpertsInput there = call.input;
  call.input.x = p.input.x;
  expect_mentions(error(place_.stream), "device of x is cpu, expected cuda:0");
  call.input = there;
  call.input.topk_ids = p.input.topk_ids;
  expect_mentions(error(place_.stream), "device of topk_ids is cpu, expected cuda:0");
  call.input = there;
  expect_mentions(error(Stream::cpu(1)), "stream is on cpu, expected cuda:0");
  expect_mentions(
      message_of<Error>([&] { make_experts(p.desc, placed(p.weights, place_), Stream::cpu(1)); }),
      "device of w1 is cuda:0, expected cpu");
}

// Ids that the CPU would refuse select no expert on a GPU.
TEST_F(CudaExperts, IdsOutOfRangeCountAsMasked) {
  const ExpertProblem p = ExpertProblemMaker(55).make(kTiny, {});
  int32_t* ids = p.input.topk_ids.data<int32_t>();
  ids[3] = ids[10] = -1;
  const Tensor expected = run(p, "cuda");
  ids[3] = 6;
  ids[10] = -7;
  EXPECT_TRUE(same_bits(run(p, "cuda"), expected));
}

}  // namespace
}  // namespace moebius::experts_suite
