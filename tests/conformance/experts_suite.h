// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The contract of the experts stage, run for every entry of experts_impls() against `ref`.
// Include it in one source file of a test executable.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "moebius/experts.h"
#include "moebius/quantize.h"
#include "tests/conformance/experts_runs.h"
#include "tests/scoped_setting.h"

namespace moebius::experts_suite {

// Runs `p` with the implementation and with ref and compares.
inline void expect_agrees(const ExpertProblem& p, const Scheme& scheme, std::string_view impl) {
  if (const std::string reason = refusal(p, impl); !reason.empty()) {
    try {
      make(p, impl, 1);
      ADD_FAILURE() << "made in spite of: " << reason;
    } catch (const Unsupported& error) {
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    }
    return;
  }
  const Tensor expected = valid_rows(p, run(p, "ref"));
  const Tensor actual = valid_rows(p, run(p, impl));
  EXPECT_LE(relative_error(actual, expected), tolerance_of(p, scheme));
}

// Those this processor can run; see ListsImplementationsThatDoNotRunHere for the others.
inline const std::vector<std::string>& implementation_names() {
  static const std::vector<std::string> names = [] {
    const ExpertProblem p = ExpertProblemMaker().make(kTiny, {});
    std::vector<std::string> found;
    for (const ExpertsImpl& impl : experts_impls()) {
      if (refusal(p, impl.name).empty()) {
        found.emplace_back(impl.name);
      }
    }
    return found;
  }();
  return names;
}

inline std::string format_name(ActivationFormat format) {
  return std::string(name(format));
}

using Parameters = std::tuple<std::string, ActivationFormat>;
class ExpertsContract : public ::testing::TestWithParam<Parameters> {
 protected:
  void SetUp() override {
    const std::string reason = refusal(ExpertProblemMaker().make(kTiny, base_case()), impl());
    if (!reason.empty()) {
      GTEST_SKIP() << reason;
    }
  }
  std::string impl() const { return std::get<0>(GetParam()); }
  ExpertCase base_case() const {
    ExpertCase c;
    c.format = std::get<1>(GetParam());
    return c;
  }
  ExpertCase f32_case() const {
    ExpertCase c = base_case();
    c.dtype = DType::kF32;
    return c;
  }
  bool is_standard() const { return std::get<1>(GetParam()) == ActivationFormat::kStandard; }
};

using SchemeParameters = std::tuple<std::string, ActivationFormat, Scheme>;
class ExpertsScheme : public ::testing::TestWithParam<SchemeParameters> {
 protected:
  void SetUp() override {
    const auto& [impl, format, scheme] = GetParam();
    const ExpertCase c{.scheme = scheme, .format = format};
    const std::string reason = refusal(ExpertProblemMaker().make(kTiny, c), impl);
    if (!reason.empty()) {
      GTEST_SKIP() << reason;
    }
  }
};

inline std::string parameters_name(const ::testing::TestParamInfo<Parameters>& info) {
  return std::get<0>(info.param) + "_" + format_name(std::get<1>(info.param));
}
inline std::string scheme_name(const ::testing::TestParamInfo<SchemeParameters>& info) {
  return std::get<0>(info.param) + "_" + format_name(std::get<1>(info.param)) + "_" +
         std::string(std::get<2>(info.param).name);
}

inline const auto kFormats =
    ::testing::Values(ActivationFormat::kStandard, ActivationFormat::kBatched);
INSTANTIATE_TEST_SUITE_P(All,
                         ExpertsContract,
                         ::testing::Combine(::testing::ValuesIn(implementation_names()), kFormats),
                         parameters_name);
INSTANTIATE_TEST_SUITE_P(All,
                         ExpertsScheme,
                         ::testing::Combine(::testing::ValuesIn(implementation_names()),
                                            kFormats,
                                            ::testing::ValuesIn(kSchemes)),
                         scheme_name);

// Hundreds of skipped cases would say no more.
TEST(ExpertsImplementations, ListsImplementationsThatDoNotRunHere) {
  const ExpertProblem p = ExpertProblemMaker().make(kTiny, {});
  std::string refused;
  for (const ExpertsImpl& impl : experts_impls()) {
    if (const std::string reason = refusal(p, impl.name); !reason.empty()) {
      refused += std::string(impl.name) + ": " + reason + "; ";
    }
  }
  if (!refused.empty()) {
    GTEST_SKIP() << refused;
  }
}

// By every set of vectors that cpu_portable may use on this processor.
TEST(ExpertsVectors, AgreeWithRef) {
  for (const std::string vectors : {"vnni", "avx2", "plain"}) {
    const testing::ScopedSetting setting("MOEBIUS_CPU_VECTORS", vectors);
    if (!can_run_vectors(vectors)) {
      continue;
    }
    for (const Scheme& scheme : kSchemes) {
      for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
        SCOPED_TRACE(vectors + " " + std::string(scheme.name) + " " + std::string(name(dtype)));
        const ExpertCase c{.scheme = scheme, .dtype = dtype, .biased = true};
        expect_agrees(ExpertProblemMaker(7).make({"vectors", 43, 2, 1, 96, 64}, c), scheme,
                      "cpu_portable");
      }
    }
  }
}

TEST_P(ExpertsScheme, AgreesWithRef) {
  const auto& [impl, format, scheme] = GetParam();
  for (const Problem& problem : kTestProblems) {
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      SCOPED_TRACE(std::string(problem.name) + " " + std::string(name(dtype)));
      const ExpertCase c{.scheme = scheme, .dtype = dtype, .format = format};
      expect_agrees(ExpertProblemMaker(7).make(problem, c), scheme, impl);
    }
  }
}

// Enough rows for whole tiles of every kernel, and some over.
TEST_P(ExpertsScheme, AgreesWithRefOnManyRows) {
  const auto& [impl, format, scheme] = GetParam();
  const Problem problem = {"many", 347, 2, 1, 128, 96};
  const ExpertCase c{.scheme = scheme, .format = format, .biased = true};
  expect_agrees(ExpertProblemMaker(8).make(problem, c), scheme, impl);
}

TEST_P(ExpertsScheme, ModelOfRoundingIsCloseToFloat64) {
  const auto& [impl, format, scheme] = GetParam();
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    // 65: the largest product of gate and up is 27 times the typical one.
    for (const uint64_t seed : {5u, 65u}) {
      if (seed == 65 && !has_int8_tensor_codes(scheme)) {
        continue;
      }
      SCOPED_TRACE(std::string(name(dtype)) + " seed " + std::to_string(seed));
      const ExpertCase c{.scheme = scheme, .dtype = dtype, .format = format, .biased = true};
      ExpertProblem p = ExpertProblemMaker(seed).make(kTiny, c);
      if (!refusal(p, impl).empty()) {
        continue;
      }
      const Tensor actual = valid_rows(p, run(p, impl));
      p.desc.precision = Precision::kF64;
      const Tensor exact = valid_rows(p, run(p, "ref"));
      EXPECT_LE(relative_error(actual, exact), model_tolerance_of(p, scheme));
    }
  }
}

// Rows that come quantized, as dispatch may deliver them, give what quantizing them here gives.
TEST_P(ExpertsScheme, TakesQuantizedRows) {
  const auto& [impl, format, scheme] = GetParam();
  ExpertProblem p = ExpertProblemMaker(10).make(kKBlocks, {.scheme = scheme, .format = format});
  const auto experts = make(p, impl, 2);
  const auto spec = activation_spec(p.weights.quant.a1);
  if (!spec || experts->traits().expects_unquantized_inputs) {
    const Tensor plain = p.input.x;
    p.input.x = Tensor::zeros(plain.shape(), DType::kI8);
    EXPECT_THROW(run(*experts, p.input, stream_of(impl, 2)), InvalidArgument);
    return;
  }
  const Tensor expected = valid_rows(p, run(*experts, p.input, stream_of(impl, 2)));
  const Tensor& static_scale = p.weights.quant.a1.scale;
  const Tensor x = p.input.x;
  if (format == ActivationFormat::kStandard) {
    Quantized q = allocate_quantized(*spec, x.dim(0), x.dim(1));
    quantize(x, *spec, q, Stream::cpu(2), static_scale);
    p.input.x = q.values;
    p.input.x_scale = q.scale;
  } else {
    const auto shape = p.weights.quant.batched_scale_shape(x.dim(0), x.dim(1), x.dim(2));
    p.input.x = poisoned(x.shape(), storage_dtype(spec->format));
    p.input.x_scale = poisoned(Shape(std::span(*shape)), DType::kF32);
    for (int64_t e = 0; e < x.dim(0); ++e) {
      const int32_t n = p.input.expert_num_tokens.data<int32_t>()[e];
      if (n > 0) {
        Quantized q = allocate_quantized(*spec, n, x.dim(2));
        quantize(x[e].slice(0, n), *spec, q, Stream::cpu(2), static_scale);
        std::memcpy(p.input.x[e].raw(), q.values.raw(), static_cast<size_t>(q.values.nbytes()));
        std::memcpy(p.input.x_scale[e].raw(), q.scale.raw(), static_cast<size_t>(q.scale.nbytes()));
      }
    }
  }
  const Tensor actual = valid_rows(p, run(*experts, p.input, stream_of(impl, 2)));
  EXPECT_TRUE(same_bits(actual, expected)) << relative_error(actual, expected);
}

TEST_P(ExpertsScheme, SameBitsForAnyNumberOfThreadsAndAnyCall) {
  const auto& [impl, format, scheme] = GetParam();
  const Problem problem = {"threads", 83, 4, 2, 288, 160};
  for (const int64_t num_adapters : {0, 3}) {
    const ExpertCase c{.scheme = scheme,
                       .format = format,
                       .biased = true,
                       .num_adapters = num_adapters,
                       .lora_rank = num_adapters > 0 ? 12 : 0};
    const ExpertProblem p = ExpertProblemMaker(11).make(problem, c);
    if (!refusal(p, impl).empty()) {
      continue;
    }
    const auto experts = make(p, impl, 3);
    const Tensor once = valid_rows(p, run(*experts, p.input, stream_of(impl, 1)));
    for (const int threads : {1, 2, 3, 5}) {
      SCOPED_TRACE(threads);
      EXPECT_TRUE(same_bits(once, valid_rows(p, run(*experts, p.input, stream_of(impl, threads)))));
      EXPECT_TRUE(same_bits(once, valid_rows(p, run(p, impl, threads))));
    }
  }
}

TEST_P(ExpertsContract, ReportsTheImplementationThatWasForced) {
  const ExpertProblem p = ExpertProblemMaker().make(kTiny, base_case());
  EXPECT_EQ(make(p, impl(), 1)->name(), impl());
}

TEST_P(ExpertsContract, EveryActivation) {
  const ActivationSpec specs[] = {
      {.kind = Activation::kSilu},
      {.kind = Activation::kSilu, .gated = false},
      {.kind = Activation::kSilu, .interleaved = true},
      {.kind = Activation::kGelu},
      {.kind = Activation::kGelu, .gated = false},
      {.kind = Activation::kGeluTanh},
      {.kind = Activation::kGeluTanh, .gated = false},
      {.kind = Activation::kSwigluOai},
      {.kind = Activation::kSwigluOai, .interleaved = true, .alpha = 1.5f, .limit = 1.25f},
      {.kind = Activation::kSwigluOai, .alpha = 1.0f, .beta = 0.0f, .limit = 1.25f},
      {.kind = Activation::kSwigluStep, .limit = 0.5f},
      {.kind = Activation::kSwigluStep, .interleaved = true, .limit = 1.25f},
      {.kind = Activation::kRelu2, .gated = false},
  };
  for (const ActivationSpec& spec : specs) {
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      // Biases move gate and up apart, so that swapping them shows; k_blocks has several columns
      // of tasks.
      for (const Problem& problem : {kTiny, kKBlocks}) {
        SCOPED_TRACE(std::string(name(spec.kind)) + (spec.gated ? " gated " : " ") +
                     (spec.interleaved ? "interleaved " : "") + std::string(name(dtype)));
        ExpertCase c = base_case();
        c.dtype = dtype;
        c.activation = spec;
        c.biased = true;
        expect_agrees(ExpertProblemMaker(12).make(problem, c), c.scheme, impl());
      }
    }
  }
}

TEST_P(ExpertsContract, BlockScalesOfInterleavedWeights) {
  for (const std::string_view wanted : {"fp8_block", "int4_w4a16", "mxfp4_w4a16"}) {
    for (const Scheme& scheme : kSchemes) {
      if (scheme.name != wanted) {
        continue;
      }
      SCOPED_TRACE(wanted);
      ExpertCase c = base_case();
      c.scheme = scheme;
      c.activation = {.kind = Activation::kSwigluOai, .interleaved = true};
      expect_agrees(ExpertProblemMaker(13).make(kKBlocks, c), scheme, impl());
    }
  }
}

TEST_P(ExpertsContract, OddSizesAroundBlocks) {
  for (const int64_t hidden : {1, 7, 63, 65, 127, 129, 257, 513}) {
    for (const int64_t intermediate : {1, 31, 64, 65, 129, 257}) {
      SCOPED_TRACE("H " + std::to_string(hidden) + " I " + std::to_string(intermediate));
      const Problem problem = {"odd", 5, 3, 2, hidden, intermediate};
      expect_agrees(ExpertProblemMaker(14).make(problem, base_case()), kSchemes[0], impl());
      if (intermediate % 2 == 1) {
        ExpertCase c = base_case();
        c.scheme = scheme_of("int8_w8a8_token");
        expect_agrees(ExpertProblemMaker(15).make(problem, c), c.scheme, impl());
      }
    }
  }
}

TEST_P(ExpertsContract, RowsPerExpertAroundBlocks) {
  for (const int64_t rows :
       {1, 2, 3, 4, 15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 512, 513, 581}) {
    SCOPED_TRACE(rows);
    const Problem problem = {"rows", rows, 1, 1, 40, 24};
    expect_agrees(ExpertProblemMaker(16).make(problem, base_case()), kSchemes[0], impl());
  }
}

TEST_P(ExpertsContract, NoRows) {
  for (const Scheme& scheme : kSchemes) {
    SCOPED_TRACE(scheme.name);
    ExpertCase c = base_case();
    c.scheme = scheme;
    const ExpertProblem p = ExpertProblemMaker(17).make({"some", 3, 4, 2, 64, 32}, c);
    if (!refusal(p, impl()).empty()) {
      continue;
    }
    ExpertsInput input = p.input;
    if (is_standard()) {
      input.x = p.input.x.slice(0, 0);
      input.topk_ids = p.input.topk_ids.slice(0, 0);
      input.topk_weights = p.input.topk_weights.slice(0, 0);
    } else {
      input.x = Tensor::empty({4, 0, 64}, c.dtype);
      input.expert_num_tokens = Tensor::zeros({4}, DType::kI32);
    }
    const auto experts = make(p, impl(), 2);
    EXPECT_EQ(run(*experts, input, stream_of(impl(), 2)).numel(), 0);
  }
}

TEST_P(ExpertsContract, EmptyExpertsAndAllRowsToOne) {
  for (const Scheme& scheme : kSchemes) {
    SCOPED_TRACE(scheme.name);
    ExpertCase c = base_case();
    c.scheme = scheme;
    const ExpertProblem p = ExpertProblemMaker(18).make(kTiny, c);
    if (is_standard()) {
      // Twice the same expert for a token is allowed, too.
      std::fill_n(p.input.topk_ids.data<int32_t>(), p.input.topk_ids.numel(), 4);
    } else {
      int32_t* counts = p.input.expert_num_tokens.data<int32_t>();
      for (int64_t e = 1; e < kTiny.num_experts; ++e) {
        counts[e] = 0;
      }
    }
    expect_agrees(p, scheme, impl());
  }
}

TEST_P(ExpertsContract, NothingComputedGivesZeros) {
  if (!is_standard()) {
    GTEST_SKIP() << "masked selections exist in the standard format only";
  }
  const ExpertProblem p = ExpertProblemMaker(19).make(kTiny, base_case());
  std::fill_n(p.input.topk_ids.data<int32_t>(), p.input.topk_ids.numel(), -1);
  const Tensor output = run(p, impl());
  EXPECT_TRUE(same_bits(output, Tensor::zeros(output.shape(), output.dtype())));
}

TEST_P(ExpertsContract, MaskedSelectionsAreZeroAndChangeNothingElse) {
  if (!is_standard()) {
    GTEST_SKIP() << "masked selections exist in the standard format only";
  }
  for (const Scheme& scheme : kSchemes) {
    SCOPED_TRACE(scheme.name);
    ExpertCase c = base_case();
    c.scheme = scheme;
    const ExpertProblem p = ExpertProblemMaker(20).make(kTiny, c);
    int32_t* ids = p.input.topk_ids.data<int32_t>();
    for (int64_t i = 0; i < p.input.topk_ids.numel(); i += 4) {
      ids[i] = -1;
    }
    expect_agrees(p, scheme, impl());
    if (!refusal(p, impl()).empty()) {
      continue;
    }
    const Tensor output = run(p, impl()).view({p.input.topk_ids.numel(), p.desc.hidden});
    for (int64_t i = 0; i < p.input.topk_ids.numel(); i += 4) {
      EXPECT_TRUE(same_bits(output[i], Tensor::zeros({p.desc.hidden}, output.dtype()))) << i;
    }
  }
}

// Experts spread over ranks by a map that is neither linear nor contiguous: each computes its own,
// and the ranks' outputs add up to the whole.
TEST_P(ExpertsContract, ExpertMapsSelectLocalExperts) {
  if (!is_standard()) {
    GTEST_SKIP() << "expert maps belong to topk_ids";
  }
  const ExpertProblem whole = ExpertProblemMaker(21).make(kTiny, base_case());
  const Tensor expected = run(whole, "ref");
  const std::vector<std::vector<int32_t>> owned = {{4, 0}, {1}, {5, 3, 2}};
  Tensor sum = Tensor::zeros(expected.shape(), DType::kF32);
  for (const auto& experts : owned) {
    ExpertProblem part = whole;
    const auto l = static_cast<int64_t>(experts.size());
    part.desc.num_local_experts = l;
    part.input.expert_map = Tensor::empty({kTiny.num_experts}, DType::kI32);
    std::fill_n(part.input.expert_map.data<int32_t>(), kTiny.num_experts, -1);
    part.weights.w1 = Tensor::empty({l, part.desc.w1_rows(), part.desc.hidden}, DType::kBF16);
    part.weights.w2 = Tensor::empty({l, part.desc.hidden, part.desc.intermediate}, DType::kBF16);
    for (int64_t i = 0; i < l; ++i) {
      const int32_t e = experts[static_cast<size_t>(i)];
      part.input.expert_map.data<int32_t>()[e] = static_cast<int32_t>(i);
      std::memcpy(part.weights.w1[i].raw(), whole.weights.w1[e].raw(),
                  static_cast<size_t>(part.weights.w1[i].nbytes()));
      std::memcpy(part.weights.w2[i].raw(), whole.weights.w2[e].raw(),
                  static_cast<size_t>(part.weights.w2[i].nbytes()));
    }
    const auto local = make(part, impl(), 2);
    const Tensor output = run(*local, part.input, stream_of(impl(), 2));
    for (int64_t i = 0; i < output.numel(); ++i) {
      const float own = get_float(output, i);
      if (own != 0) {
        EXPECT_EQ(sum.data<float>()[i], 0) << "two ranks computed element " << i;
        sum.data<float>()[i] = own;
      }
    }
  }
  EXPECT_LE(relative_error(sum, expected), tolerance_of(whole, kSchemes[0]));
}

// Slices of tokens give the rows of the whole, where no scale spans all rows.
TEST_P(ExpertsContract, ChunksGiveTheRowsOfTheWhole) {
  const ExpertProblem p = ExpertProblemMaker(22).make(kTiny, base_case());
  const auto experts = make(p, impl(), 2);
  EXPECT_EQ(experts->traits().supports_chunking, is_standard());
  if (!is_standard()) {
    return;
  }
  const Tensor whole = run(*experts, p.input, stream_of(impl(), 2));
  for (int64_t begin = 0; begin < kTiny.num_tokens; begin += 10) {
    const int64_t end = std::min(kTiny.num_tokens, begin + 10);
    ExpertsInput chunk = p.input;
    chunk.x = p.input.x.slice(begin, end);
    chunk.topk_ids = p.input.topk_ids.slice(begin, end);
    chunk.topk_weights = p.input.topk_weights.slice(begin, end);
    const Tensor rows = run(*experts, chunk, stream_of(impl(), 2));
    EXPECT_LE(relative_error(rows, whole.slice(begin, end)), tolerance_of(p, kSchemes[0]));
  }
}

TEST_P(ExpertsContract, SecondCallOnTheSameObjectHasNoMemoryOfTheFirst) {
  const ExpertProblem p = ExpertProblemMaker(23).make(kTiny, base_case());
  const ExpertProblem larger =
      ExpertProblemMaker(24).make({"larger", 90, 6, 3, 96, 64}, base_case());
  const auto experts = make(p, impl(), 2);
  const Tensor before = valid_rows(p, run(*experts, p.input, stream_of(impl(), 2)));
  run(*experts, larger.input, stream_of(impl(), 2));
  EXPECT_TRUE(same_bits(before, valid_rows(p, run(*experts, p.input, stream_of(impl(), 2)))));
}

TEST_P(ExpertsContract, SaysWhoWeightsAndReduces) {
  const ExpertProblem p = ExpertProblemMaker().make(kTiny, base_case());
  const auto experts = make(p, impl(), 1);
  const ExpertsWorkspace ws = experts->workspace(10);
  if (is_standard() && experts->traits().weight_and_reduce == WeightAndReduceKind::kNoOp) {
    EXPECT_EQ(ws.output, (Shape{10, kTiny.hidden}));
  } else if (is_standard()) {
    EXPECT_EQ(experts->traits().weight_and_reduce, WeightAndReduceKind::kContiguous);
    EXPECT_EQ(ws.output, (Shape{10, kTiny.topk, kTiny.hidden}));
  } else {
    EXPECT_EQ(experts->traits().weight_and_reduce, WeightAndReduceKind::kDelegate);
    EXPECT_EQ(ws.output, (Shape{kTiny.num_experts, 10, kTiny.hidden}));
  }
  // Not applied, or 1: it makes no difference whether the router's weights already are.
  ExpertsInput weighted = p.input;
  weighted.apply_router_weight_on_input = true;
  EXPECT_TRUE(same_bits(valid_rows(p, run(*experts, p.input, stream_of(impl(), 1))),
                        valid_rows(p, run(*experts, weighted, stream_of(impl(), 1)))));
}

TEST_P(ExpertsContract, NanInAWeightStaysInItsColumn) {
  for (const Scheme& scheme : kSchemes) {
    if (scheme.weight != QuantFormat::kFp8) {
      continue;
    }
    SCOPED_TRACE(scheme.name);
    ExpertCase c = base_case();
    c.scheme = scheme;
    const ExpertProblem p = ExpertProblemMaker(27).make(kTiny, c);
    if (!refusal(p, impl()).empty()) {
      continue;
    }
    constexpr int64_t kColumn = 5;
    for (int64_t e = 0; e < kTiny.num_experts; ++e) {
      p.weights.w2[e][kColumn].data<uint8_t>()[7] = 0xff;  // NaN in e4m3
    }
    const Tensor expected = valid_rows(p, run(p, "ref"));
    const Tensor actual = valid_rows(p, run(p, impl()));
    int64_t num_nan = 0;
    for (int64_t i = 0; i < expected.numel(); ++i) {
      const bool is_nan = std::isnan(get_float(expected, i));
      num_nan += is_nan ? 1 : 0;
      ASSERT_EQ(std::isnan(get_float(actual, i)), is_nan) << i;
      ASSERT_TRUE(!is_nan || i % kTiny.hidden == kColumn) << i;
    }
    EXPECT_GT(num_nan, 0);
  }
}

TEST_P(ExpertsContract, NanInARowStaysInItsToken) {
  const ExpertProblem p = ExpertProblemMaker(26).make(kTiny, base_case());
  const Tensor before = valid_rows(p, run(p, impl()));
  // Element 5 of row 0: of token 0, or of expert 0's first row.
  set_float(p.input.x, 5, std::numeric_limits<float>::quiet_NaN());
  const Tensor after =
      valid_rows(p, run(p, impl())).view({before.numel() / kTiny.hidden, kTiny.hidden});
  const int64_t touched = is_standard() ? kTiny.topk : 1;
  for (int64_t r = 0; r < after.dim(0); ++r) {
    if (r < touched) {
      EXPECT_TRUE(std::isnan(get_float(after[r], 0))) << r;
    } else {
      EXPECT_TRUE(same_bits(after[r], before.view(after.shape())[r])) << r;
    }
  }
}

}  // namespace moebius::experts_suite
