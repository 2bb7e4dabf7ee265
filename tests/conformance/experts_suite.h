// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The contract of the experts stage, run for every entry of experts_impls() against `ref`.
// Include it in one source file of a test executable.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
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
  const Tensor expected = run_valid_rows(p, "ref");
  const Tensor actual = run_valid_rows(p, impl);
  EXPECT_LE(relative_error(actual, expected), tolerance_of(p, scheme, impl));
}

// Compares with what ref computes in float64, in two dtypes where the implementation takes them.
// `extreme_seed` makes a problem whose largest product of gate and up is some 30 times the typical
// one; only int8 codes with one scale of all rows are sensitive to that.
inline void expect_close_to_f64(ExpertCase c,
                                uint64_t seed,
                                uint64_t extreme_seed,
                                std::string_view impl) {
  std::vector<uint64_t> seeds = {seed};
  if (has_int8_tensor_codes(c.scheme)) {
    seeds.push_back(extreme_seed);
  }
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const uint64_t s : seeds) {
      SCOPED_TRACE(std::string(name(dtype)) + " seed " + std::to_string(s));
      c.dtype = dtype;
      ExpertProblem p = ExpertProblemMaker(s).make(kTiny, c);
      if (!refusal(p, impl).empty()) {
        continue;
      }
      const Tensor actual = run_valid_rows(p, impl);
      p.desc.precision = Precision::kF64;
      EXPECT_LE(relative_error(actual, run_valid_rows(p, "ref")), model_tolerance_of(p, c.scheme));
    }
  }
}

// The implementations that can run here; ListsImplementationsThatDoNotRunHere names the others.
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
  ExpertCase base_case(const Scheme& scheme = kSchemes[0]) const {
    return {.scheme = scheme, .format = std::get<1>(GetParam())};
  }
  ExpertCase f32_case(const Scheme& scheme = kSchemes[0]) const {
    ExpertCase c = base_case(scheme);
    c.dtype = DType::kF32;
    return c;
  }
  bool takes(const ExpertCase& c) const {
    return refusal(ExpertProblemMaker().make(kTiny, c), impl()).empty();
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
  return std::get<0>(info.param) + "_" + std::string(name(std::get<1>(info.param)));
}
inline std::string scheme_name(const ::testing::TestParamInfo<SchemeParameters>& info) {
  const auto& [impl, format, scheme] = info.param;
  return impl + "_" + std::string(name(format)) + "_" + std::string(scheme.name);
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

// Why one test lists them: hundreds of skipped cases would say no more.
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

// cpu_portable agrees with every set of vectors that it may use on this processor.
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

// There are enough rows for whole tiles of every kernel, and some are left over.  Of the second
// problem, kernels that ask for multiples of 64 or 128 take both GEMMs.
TEST_P(ExpertsScheme, AgreesWithRefOnManyRows) {
  const auto& [impl, format, scheme] = GetParam();
  for (const Problem& problem :
       {Problem{"many", 347, 2, 1, 128, 96}, Problem{"whole", 211, 3, 2, 192, 128}}) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(std::string(problem.name) + " " + std::string(name(dtype)));
      const ExpertCase c{.scheme = scheme, .dtype = dtype, .format = format, .biased = true};
      expect_agrees(ExpertProblemMaker(8).make(problem, c), scheme, impl);
    }
  }
}

TEST_P(ExpertsScheme, ModelOfRoundingIsCloseToFloat64) {
  const auto& [impl, format, scheme] = GetParam();
  expect_close_to_f64({.scheme = scheme, .format = format, .biased = true}, 5, 65, impl);
}

// Rows that come quantized, as dispatch may deliver them, give the same as rows that are quantized
// here.
TEST_P(ExpertsScheme, TakesQuantizedRows) {
  const auto& [impl, format, scheme] = GetParam();
  ExpertProblem p = ExpertProblemMaker(10).make(kKBlocks, {.scheme = scheme, .format = format});
  const auto experts = make(p, impl, 2);
  const auto spec = activation_spec(p.weights.quant.a1);
  const ExpertsTraits& traits = experts->traits();
  if (!spec || (traits.expects_unquantized_inputs && !traits.takes_quantized_transfers)) {
    const Tensor plain = p.input.x;
    p.input.x = Tensor::zeros(plain.shape(), DType::kI8);
    EXPECT_THROW(run(*experts, p.input, stream_of(impl, 2)), InvalidArgument);
    return;
  }
  const Tensor expected = valid_rows(p, run(*experts, p.input, stream_of(impl, 2)));
  const auto quantized = [&](const Tensor& rows) {
    const QuantDesc& a1 = p.weights.quant.a1;
    Quantized q = allocate_quantized(*spec, rows.dim(0), rows.dim(1));
    quantize(rows, *spec, q, Stream::cpu(2), a1.scale, a1.alpha_or_gscale);
    if (spec->global_scale_per_row) {
      const Tensor scales = Tensor::empty({q.scale.dim(0), q.scale.dim(1) + 4}, q.scale.dtype());
      for (int64_t r = 0; r < rows.dim(0); ++r) {
        const Tensor row = scales.slice(r, r + 1);
        std::memcpy(row.raw(), q.scale.slice(r, r + 1).raw(), static_cast<size_t>(q.scale.dim(1)));
        std::memcpy(row.bytes() + q.scale.dim(1), q.global_scale.data<float>() + r, sizeof(float));
      }
      q.scale = scales;
    }
    return q;
  };
  const Tensor x = p.input.x;
  if (format == ActivationFormat::kStandard) {
    const Quantized q = quantized(x);
    p.input.x = q.values;
    p.input.x_scale = q.scale;
  } else {
    const Tensor scales = quantized(x[0]).scale;
    p.input.x = poisoned(x.shape(), storage_dtype(spec->format));
    p.input.x_scale = poisoned({x.dim(0), scales.dim(0), scales.dim(1)}, scales.dtype());
    for (int64_t e = 0; e < x.dim(0); ++e) {
      const int32_t n = p.input.expert_num_tokens.data<int32_t>()[e];
      if (n > 0) {
        const Quantized q = quantized(x[e].slice(0, n));
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
      EXPECT_TRUE(same_bits(once, run_valid_rows(p, impl, threads)));
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
  for (const std::string_view name : {"fp8_block", "int4_w4a16", "mxfp4_w4a16"}) {
    SCOPED_TRACE(name);
    ExpertCase c = base_case(scheme_of(name));
    c.activation = {.kind = Activation::kSwigluOai, .interleaved = true};
    expect_agrees(ExpertProblemMaker(13).make(kKBlocks, c), c.scheme, impl());
  }
}

}  // namespace moebius::experts_suite
