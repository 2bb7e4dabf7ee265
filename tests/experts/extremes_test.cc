// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Values at the ends of their ranges: every implementation on this CPU agrees with ref, or says
// that it does not take them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "experts/cpu/tiles/packed_weight.h"
#include "tests/conformance/experts_runs.h"

namespace moebius {
namespace {

using experts_suite::run;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr Problem kOne = {"one", 3, 1, 1, 32, 20};  // T, E, K, H, I: I is no multiple of 16

ExpertProblem problem(std::string_view scheme, const Problem& size = kOne) {
  return ExpertProblemMaker(3).make(size, {.scheme = scheme_of(scheme)});
}

// The implementations on the CPU, except ref, that take the problem.
std::vector<std::string_view> takers(const ExpertProblem& p) {
  std::vector<std::string_view> names;
  for (const ExpertsImpl& impl : experts_impls()) {
    if (impl.device == DeviceType::kCpu && impl.name != "ref" &&
        impl.supports(p.desc, p.weights).ok) {
      names.push_back(impl.name);
    }
  }
  return names;
}

void expect_as_ref(const ExpertProblem& p, const std::string& what) {
  const Tensor expected = run(p, "ref");
  for (const std::string_view impl : takers(p)) {
    const Tensor actual = run(p, impl);
    for (int64_t i = 0; i < expected.numel(); ++i) {
      const float value = get_float(actual, i);
      const float wanted = get_float(expected, i);
      if (std::isfinite(wanted)) {
        ASSERT_NEAR(value, wanted, 0.02f * std::abs(wanted) + 1e-30f) << what << ", " << impl;
      } else {
        ASSERT_TRUE(std::isnan(wanted) ? std::isnan(value) : value == wanted)
            << what << ", " << impl << ": " << value << ", expected " << wanted;
      }
    }
  }
}

void fill(const Tensor& tensor, float value) {
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    set_float(tensor, i, value);
  }
}

TEST(ExpertExtremes, GatesFarBelowZeroGiveNothing) {
  for (const float gate : {-80.0f, -88.5f, -100.0f, -1e4f, -1e30f, -1e37f}) {
    ExpertProblem p = problem("unquantized");
    const int64_t half = p.desc.intermediate * p.desc.hidden;
    const Tensor w1 = p.weights.w1.view({p.weights.w1.numel()});
    fill(w1.slice(0, half), gate / static_cast<float>(p.desc.hidden));
    fill(w1.slice(half, 2 * half), 10.0f / static_cast<float>(p.desc.hidden));
    fill(p.weights.w2, 1.0f);
    fill(p.input.x, 1.0f);
    expect_as_ref(p, "gate " + std::to_string(gate));
  }
}

TEST(ExpertExtremes, PaddingGivesNoNaN) {
  for (const int64_t intermediate : {1, 15, 20, 33, 48}) {
    Problem size = kOne;
    size.intermediate = intermediate;
    ExpertProblem p = problem("unquantized", size);
    fill(p.weights.w1, 1.0f);
    fill(p.weights.w2, 1.0f);
    fill(p.input.x, 1.0f);
    set_float(p.input.x, 0, kInf);
    expect_as_ref(p, "intermediate " + std::to_string(intermediate));
  }
}

// An implementation that weights rows leaves them as the first terms of sums that begin with +0:
// products that are too small for bf16 or f32 are rounded, not dropped, and none is -0.
TEST(ExpertExtremes, WeightsFarBelowOne) {
  for (const float value : {0x1p-20f, -0x1p-20f}) {
    for (const float weight : {1.0f, 1e-30f, 1e-36f, 1e-38f, 1e-41f, 1e-44f}) {
      ExpertProblem p = problem("unquantized");
      fill(p.weights.w1, 1.0f);
      fill(p.weights.w2, value);
      fill(p.input.x, 1.0f);
      fill(p.input.topk_weights, weight);
      const Tensor rows = run(p, "ref");  // not weighted
      const Tensor expected = Tensor::empty({p.input.x.dim(0), p.desc.hidden}, rows.dtype());
      for (int64_t i = 0; i < expected.numel(); ++i) {
        const auto product = static_cast<float>(BFloat16(get_float(rows, i) * weight));
        set_float(expected, i, product + 0.0f);
      }
      for (const std::string_view impl : takers(p)) {
        const auto experts = experts_suite::make(p, impl, 2);
        if (experts->traits().weight_and_reduce == WeightAndReduceKind::kNoOp) {
          const Tensor actual = experts_suite::apply(*experts, p.input, Stream::cpu(2));
          EXPECT_TRUE(experts_suite::same_bits(actual, expected))
              << impl << ", " << get_float(actual, 0) << ", expected " << get_float(expected, 0);
        }
      }
    }
  }
}

// Gives the first scale of w2 this code.  Activations are small, so that sums are finite.
void expect_with_scale_code(std::string_view scheme, const Problem& size, uint8_t code) {
  ExpertProblem p = problem(scheme, size);
  for (int64_t i = 0; i < p.input.x.numel(); ++i) {
    set_float(p.input.x, i, 0x1p-10f * get_float(p.input.x, i));
  }
  p.weights.quant.w2.scale.bytes()[0] = std::byte{code};
  expect_as_ref(p, std::string(scheme) + ", scale code " + std::to_string(code));
}

TEST(ExpertExtremes, LargestScalesAndNaN) {
  const Problem size = {"groups", 3, 1, 1, 32, 64};
  for (const uint8_t code : {0, 1, 126, 246, 247, 250}) {
    expect_with_scale_code("mxfp8", size, code);
  }
  for (const uint8_t code : {0, 1, 126, 200, 223, 224, 252, 253}) {
    expect_with_scale_code("mxfp4_w4a16", size, code);
  }
  for (const uint8_t code : {0x01, 0x7e, 0x7f, 0xfe, 0xff}) {
    expect_with_scale_code("nvfp4_w4a16", size, code);
  }
}

TEST(ExpertExtremes, F32ProductsTakeWhatBf16ProductsDoNot) {
  ExpertProblem p = problem("mxfp4_w4a16", {"groups", 3, 1, 1, 32, 64});
  p.weights.quant.w1.scale.bytes()[5] = std::byte{253};
  const Support support = cpu::PackedWeight::supports(p.weights.quant.w1, cpu::Operand::kBF16);
  EXPECT_NE(support.reason.find("scale 5 is the e8m0 code 253"), std::string::npos)
      << support.reason;
  EXPECT_EQ(takers(p), std::vector<std::string_view>{"cpu_portable"});
}

// docs/formats.md has this rule, and the next.
bool multiplies_bf16(std::string_view impl) {
  return impl == "cpu_avx512" || impl == "cpu_amx";
}

TEST(ExpertExtremes, Bf16ProductsTakeSubnormalWeightsForZero) {
  ExpertProblem p = problem("unquantized");
  fill(p.weights.w1, 0x1p-130f);
  fill(p.weights.w2, 1.0f);
  fill(p.input.x, 0x1p100f);
  const Tensor expected = run(p, "ref");
  ASSERT_GT(get_float(expected, 0), 0x1p-50f);
  for (const std::string_view impl : takers(p)) {
    const Tensor actual = run(p, impl);
    for (int64_t i = 0; i < expected.numel(); ++i) {
      const float wanted = multiplies_bf16(impl) ? 0.0f : get_float(expected, i);
      ASSERT_NEAR(get_float(actual, i), wanted, 0.02f * wanted) << impl;
    }
  }
}

void multiply(const Tensor& tensor, float factor) {
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    set_float(tensor, i, factor * get_float(tensor, i));
  }
}

TEST(ExpertExtremes, Bf16ProductsByInt8OrNvfp4TakeRowsBelow2To72) {
  EXPECT_EQ(cpu::row_factor(cpu::TileCode::kI8AsBF16, cpu::Operand::kBF16), 0x1p56f);
  EXPECT_EQ(cpu::row_factor(cpu::TileCode::kNvfp4, cpu::Operand::kBF16), 0x1p56f);
  for (const std::string_view scheme : {"int8_w8a16", "nvfp4_w4a16"}) {
    for (const int exponent : {71, 72}) {
      ExpertProblem p = problem(scheme, {"groups", 3, 1, 1, 32, 64});
      fill(p.input.x, std::ldexp(1.0f, exponent));
      QuantDesc& w1 = p.weights.quant.w1;
      multiply(w1.format == QuantFormat::kNvfp4 ? w1.alpha_or_gscale : w1.scale,
               std::ldexp(1.0f, -exponent));
      if (exponent < 72) {
        expect_as_ref(p, std::string(scheme));
        continue;
      }
      const Tensor expected = run(p, "ref");
      for (const std::string_view impl : takers(p)) {
        const Tensor actual = run(p, impl);
        for (int64_t i = 0; i < expected.numel(); ++i) {
          ASSERT_TRUE(std::isfinite(get_float(expected, i))) << scheme;
          ASSERT_EQ(std::isfinite(get_float(actual, i)), !multiplies_bf16(impl))
              << scheme << ", " << impl;
        }
      }
    }
  }
}

}  // namespace
}  // namespace moebius
