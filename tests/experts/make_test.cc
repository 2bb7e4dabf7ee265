// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests what make_experts chooses, which weights and calls are refused, and that ref computes its
// formula.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "problems/expert_problem.h"
#include "problems/gemm_tolerance.h"
#include "tests/error_text.h"

namespace moebius {
namespace {

using testing::expect_mentions;
using testing::message_of;

ExpertProblem problem(std::string_view scheme = "unquantized",
                      ActivationFormat format = ActivationFormat::kStandard) {
  return ExpertProblemMaker(2).make(
      kTiny, {.scheme = scheme_of(scheme), .format = format, .biased = true});
}

std::string make_error(const ExpertProblem& p, std::string_view implementation = {}) {
  return message_of<Error>(
      [&] { make_experts(p.desc, p.weights, Stream::cpu(1), implementation); });
}

TEST(MakeExperts, TheFirstThatAcceptsWins) {
  const ExpertProblem p = problem();
  const auto impls = experts_impls();
  const auto first = std::find_if(impls.begin(), impls.end(), [&](const ExpertsImpl& impl) {
    return impl.device == DeviceType::kCpu && impl.supports(p.desc, p.weights).ok;
  });
  EXPECT_EQ(make_experts(p.desc, p.weights, Stream::cpu(1))->name(), first->name);
  EXPECT_EQ(experts_impls().back().name, "ref");
}

// ref computes on weights as they lie.  Whoever writes to memory that it has taken over is noticed,
// and whoever still holds a handle has another copy.
TEST(MakeExperts, HandlesThatAreMovedInAreNotCopied) {
  for (const bool is_shared : {false, true}) {
    ExpertProblem p = problem();
    const Tensor output = Tensor::empty({33, 3, 96}, DType::kBF16);
    Tensor other = is_shared ? p.weights.w1 : Tensor();
    const Tensor memory =
        Tensor::borrow(p.weights.w1.raw(), p.weights.w1.shape(), p.weights.w1.dtype());
    const auto experts = make_experts(p.desc, std::move(p.weights), Stream::cpu(1), "ref");
    std::memset(memory.raw(), 0xff, static_cast<size_t>(memory.nbytes()));  // NaN
    const ExpertsWorkspace ws = experts->workspace(33);
    experts->apply(p.input, output, {}, Tensor::empty({ws.scratch_bytes}, DType::kU8),
                   Stream::cpu(1));
    EXPECT_EQ(std::isnan(get_float(output, 0)), !is_shared);
  }
}

TEST(MakeExperts, LentWeightsAreOnTheDeviceOfTheExperts) {
  ExpertProblem p = problem();
  p.desc.weight_memory = WeightMemory::kLent;
  EXPECT_EQ(make_error(p), "no error");
  const Tensor& w1 = p.weights.w1;
  p.weights.w1 = Tensor::borrow(w1.raw(), w1.shape(), w1.dtype(), Device::cuda(0));
  expect_mentions(make_error(p), {"w1 (lent)", "cuda:0", "cpu"});
}

TEST(MakeExperts, Float64IsComputedByRef) {
  ExpertProblem p = problem();
  p.desc.precision = Precision::kF64;
  EXPECT_EQ(make_experts(p.desc, p.weights, Stream::cpu(1))->name(), "ref");
  expect_mentions(make_error(p, "cpu_portable"), {"cpu_portable", "f64"});
}

TEST(MakeExperts, TheSettingForcesAnImplementation) {
  const ExpertProblem p = problem();
  for (const ExpertsImpl& impl : experts_impls()) {
    setenv("MOEBIUS_EXPERTS", std::string(impl.name).c_str(), 1);
    if (impl.device != DeviceType::kCpu) {
      expect_mentions(make_error(p), {impl.name, "the stream is on cpu"});
      continue;
    }
    if (const Support support = impl.supports(p.desc, p.weights); !support.ok) {
      expect_mentions(make_error(p), {impl.name, support.reason});
      continue;
    }
    EXPECT_EQ(make_experts(p.desc, p.weights, Stream::cpu(1))->name(), impl.name);
  }
  setenv("MOEBIUS_EXPERTS", "cpu_portabel", 1);
  expect_mentions(make_error(p), {"cpu_portabel", "cpu_portable", "ref"});
  unsetenv("MOEBIUS_EXPERTS");
}

TEST(MakeExperts, WeightShapesThatContradictTheDescAreNamed) {
  ExpertProblem p = problem();
  p.desc.intermediate = 96;
  expect_mentions(make_error(p), {"w1", "[6, 128, 96]", "[6, 192, 96]"});
  p = problem();
  p.weights.w2 = Tensor::zeros({6, 96, 65}, DType::kBF16);
  expect_mentions(make_error(p), {"w2", "[6, 96, 65]", "[6, 96, 64]"});
  p = problem();
  p.weights.w1 = {};
  expect_mentions(make_error(p), {"w1"});
  p = problem();
  p.weights.w1 = p.weights.w1.view_as(DType::kU8);
  expect_mentions(make_error(p), {"w1"});
  p = problem();
  p.weights.quant.w1.bias = Tensor::zeros({6, 96}, DType::kF32);
  expect_mentions(make_error(p), {"w1_bias", "[6, 96]", "[6, 128]"});
}

TEST(MakeExperts, QuantTensorsThatContradictTheDescAreNamed) {
  ExpertProblem p = problem("fp8_block");
  p.weights.quant.w1.scale = Tensor::zeros({6, 3, 1}, DType::kF32);
  expect_mentions(make_error(p), {"w1_scale", "[6, 3, 1]", "[6, 4, 1]"});
  p = problem("fp8_channel");
  p.weights.quant.w2.scale = {};
  expect_mentions(make_error(p), {"w2_scale"});
  p.weights.quant.w2.scale = Tensor::zeros({5, 96}, DType::kF32);
  expect_mentions(make_error(p), {"w2_scale", "[5, 96]", "[6, 96]"});
  p = problem("mxfp4_w4a16");
  p.weights.quant.w1.scale = Tensor::zeros({6, 128, 3}, DType::kU8);
  expect_mentions(make_error(p), {"w1_scale", "u8", "e8m0"});
  p.weights.w1 = Tensor::zeros({6, 128, 96}, DType::kBF16);
  expect_mentions(make_error(p), {"w1", "bf16", "f4e2m1"});
  p = problem("int4_w4a16_zp");
  p.weights.quant.w2.zero_point = Tensor::zeros({6, 96, 2}, DType::kU8);
  expect_mentions(make_error(p), {"w2_zero_point", "[6, 96, 2]", "[6, 96, 1]"});
  p = problem("int4_w4a16_zp");
  p.weights.quant.w1.zero_point.data<uint8_t>()[3] = 16;
  EXPECT_EQ(make_error(p), "no error");
  p.weights.quant.w1.zero_point.data<uint8_t>()[3] = 17;
  expect_mentions(make_error(p), {"w1_zero_point[3] is 17", "0 to 16"});
  p = problem("nvfp4");
  p.weights.quant.w1.alpha_or_gscale = Tensor::zeros({6, 3}, DType::kF32);
  expect_mentions(make_error(p), {"w1 alphas", "[6, 3]", "[6, 2]"});
  p = problem("fp8_tensor");
  p.weights.quant.a2.scale = Tensor::zeros({4}, DType::kF32);
  expect_mentions(make_error(p), {"a2_scale", "[4]", "[6]"});
  p = problem("fp8_channel_token");
  p.weights.quant.a1.scale = Tensor::zeros({1}, DType::kF32);
  expect_mentions(make_error(p), {"a1", "static", "{1, -1}"});
}

TEST(MakeExperts, AdaptersThatContradictTheDescAreNamed) {
  const auto refused = [](auto change) {
    ExpertProblem p =
        ExpertProblemMaker(4).make(kTiny, {.num_adapters = 3, .lora_rank = 8});  // L 6, H 96, I 64
    change(p);
    return make_error(p);
  };
  EXPECT_EQ(refused([](ExpertProblem&) {}), "no error");
  expect_mentions(refused([](ExpertProblem& p) { p.desc.num_adapters = 4; }),
                  {"lora scaling", "[3]", "[4]"});
  expect_mentions(refused([](ExpertProblem& p) { p.desc.lora_rank = 16; }),
                  {"lora w1_a", "[3, 6, 16, 96]", "[3, 6, 32, 96]"});
  expect_mentions(refused([](ExpertProblem& p) { p.desc.lora_rank = 0; }),
                  {"num_adapters is 3", "lora_rank 0"});
  expect_mentions(refused([](ExpertProblem& p) { p.desc.num_adapters = -1; }),
                  {"num_adapters", "-1"});
  expect_mentions(refused([](ExpertProblem& p) { p.desc.num_adapters = p.desc.lora_rank = 0; }),
                  {"num_adapters is 0", "3"});
  expect_mentions(refused([](ExpertProblem& p) { p.weights.lora = {}; }),
                  {"num_adapters is 3", "none"});
  expect_mentions(refused([](ExpertProblem& p) { p.weights.lora.scaling = {}; }), {"lora scaling"});
  expect_mentions(refused([](ExpertProblem& p) { p.weights.lora.w2_a = {}; }), {"lora w2_a"});
  expect_mentions(refused([](ExpertProblem& p) { p.weights.lora.w1_b = {}; }), {"lora w1_b"});
  expect_mentions(refused([](ExpertProblem& p) {
                    const Tensor scaling = p.weights.lora.scaling;
                    p.weights.lora = {};
                    p.weights.lora.scaling = scaling;
                  }),
                  {"w1_b", "w2_b"});
  expect_mentions(refused([](ExpertProblem& p) {
                    p.weights.lora.w1_b = Tensor::zeros({3, 6, 64, 8}, DType::kF32);
                  }),
                  {"lora w1_b", "[3, 6, 64, 8]", "[3, 6, 128, 8]"});
  expect_mentions(refused([](ExpertProblem& p) {
                    p.weights.lora.w2_b = Tensor::zeros({3, 6, 96, 8}, DType::kI8);
                  }),
                  {"lora w2_b", "i8", "f32, bf16 or f16"});
}

TEST(MakeExperts, DescsThatMeanNothingAreRefused) {
  const auto refused = [](auto change) {
    ExpertProblem p = problem();
    change(p.desc);
    return make_error(p);
  };
  expect_mentions(refused([](ExpertsDesc& d) { d.topk = 7; }), {"topk", "7", "6"});
  expect_mentions(refused([](ExpertsDesc& d) { d.topk = 0; }), {"topk", "0"});
  expect_mentions(refused([](ExpertsDesc& d) { d.num_local_experts = 7; }),
                  {"num_local_experts", "7"});
  expect_mentions(refused([](ExpertsDesc& d) { d.hidden = 0; }), {"hidden", "0"});
  expect_mentions(refused([](ExpertsDesc& d) { d.in_dtype = DType::kI8; }), {"in_dtype", "i8"});
  expect_mentions(refused([](ExpertsDesc& d) { d.activation.kind = Activation::kRelu2; }),
                  {"relu2"});
}

TEST(MakeExperts, SizesAQuantizationCannotTakeAreRefused) {
  ExpertProblemMaker maker;
  const Scheme scheme{
      "mxfp8", QuantFormat::kMxfp8, QuantFormat::kMxfp8, WeightScales::kGroup, {1, 32}};
  const ExpertProblem p = maker.make({"odd", 3, 4, 2, 64, 40}, {.scheme = scheme});
  expect_mentions(make_error(p), {"a2", "40", "32"});
}

// A call of apply() with buffers of the right sizes, any of which `change` may spoil.
struct Call {
  ExpertsInput input;
  Tensor output, intermediate, scratch;
};

// The error of a call, by an implementation that asks for a workspace.
std::string call_error(const ExpertProblem& p, const std::function<void(Call&)>& change) {
  const auto experts = make_experts(p.desc, p.weights, Stream::cpu(1), "cpu_portable");
  const ExpertsWorkspace ws = experts->workspace(kTiny.num_tokens);
  Call call{p.input, Tensor::empty(ws.output, ws.dtype), Tensor::empty(ws.intermediate, ws.dtype),
            Tensor::empty({ws.scratch_bytes}, DType::kU8)};
  change(call);
  return message_of<Error>([&] {
    experts->apply(call.input, call.output, call.intermediate, call.scratch, Stream::cpu(1));
  });
}

TEST(ApplyExperts, StandardCallsAreChecked) {
  const ExpertProblem p = problem();
  const auto error = [&](auto change) { return call_error(p, change); };
  const auto error_with = [&](Tensor ExpertsInput::*operand, const Shape& shape, DType dtype) {
    return error([&](Call& c) { c.input.*operand = Tensor::zeros(shape, dtype); });
  };
  EXPECT_EQ(error([](Call&) {}), "no error");
  expect_mentions(error_with(&ExpertsInput::x, {33, 95}, DType::kBF16), {"x", "95", "96"});
  expect_mentions(error_with(&ExpertsInput::x, {33, 96}, DType::kF32), {"x", "f32", "bf16"});
  expect_mentions(error_with(&ExpertsInput::x, {1, 33, 96}, DType::kBF16), {"x", "3", "2"});
  expect_mentions(error([](Call& c) { c.input.topk_ids = {}; }), {"topk_ids"});
  expect_mentions(error_with(&ExpertsInput::topk_ids, {33, 3}, DType::kF32),
                  {"topk_ids", "f32", "i32 or i64"});
  expect_mentions(error_with(&ExpertsInput::topk_ids, {32, 3}, DType::kI32),
                  {"topk_ids", "[32, 3]", "[33, 3]"});
  expect_mentions(error([](Call& c) { c.input.topk_ids.data<int32_t>()[7] = 6; }),
                  {"token 2", "slot 1", "6"});
  p.input.topk_ids.data<int32_t>()[7] = 0;
  expect_mentions(error_with(&ExpertsInput::expert_map, {5}, DType::kI32),
                  {"expert_map", "[5]", "[6]"});
  expect_mentions(error([](Call& c) {
                    c.output = Tensor::zeros({33, 3, 96}, DType::kBF16);
                  }),
                  {"output", "[33, 3, 96]", "[33, 96]"});
  const auto on_gpu = [](const Tensor& t) {
    return Tensor::borrow(t.raw(), t.shape(), t.dtype(), Device::cuda(0));
  };
  expect_mentions(error([&](Call& c) { c.output = on_gpu(c.output); }),
                  {"device of output is cuda:0, expected cpu"});
  expect_mentions(error([](Call& c) { c.scratch = c.scratch.slice(0, c.scratch.dim(0) - 1); }),
                  {"scratch"});
  expect_mentions(error([](Call& c) { c.scratch = {}; }), {"scratch"});
}

TEST(ApplyExperts, BatchedCallsAreChecked) {
  const ExpertProblem p = problem("unquantized", ActivationFormat::kBatched);
  const auto error = [&](auto change) { return call_error(p, change); };
  EXPECT_EQ(error([](Call&) {}), "no error");
  expect_mentions(error([](Call& c) { c.input.expert_num_tokens = {}; }), {"expert_num_tokens"});
  expect_mentions(error([](Call& c) { c.input.expert_num_tokens.data<int32_t>()[3] = 34; }),
                  {"expert_num_tokens[3]", "34", "33"});
}

TEST(ApplyExperts, ScalesOfQuantizedRowsAreChecked) {
  const ExpertProblem p = problem("fp8_channel_token");
  const auto quantized = [](Call& c) { c.input.x = Tensor::zeros({33, 96}, DType::kF8E4M3); };
  expect_mentions(call_error(p, quantized), {"x_scale"});
  expect_mentions(call_error(p,
                             [&](Call& c) {
                               quantized(c);
                               c.input.x_scale = Tensor::zeros({1, 1}, DType::kF32);
                             }),
                  {"x_scale", "[1, 1]", "[33, 1]"});
  expect_mentions(call_error(p,
                             [](Call& c) {
                               c.input.x = Tensor::zeros({33, 96}, DType::kI8);
                             }),
                  {"i8", "bf16", "f8e4m3"});
}

// Compares ref in float64 with the formula of experts.h, written out over the values of the
// weights.
TEST(RefExperts, ComputesTheFormula) {
  for (const Scheme& scheme : kSchemes) {
    SCOPED_TRACE(scheme.name);
    ExpertProblem p =
        ExpertProblemMaker(3).make(kTiny, {.scheme = scheme, .dtype = DType::kF32, .biased = true});
    p.desc.precision = Precision::kF64;
    const auto experts = make_experts(p.desc, p.weights, Stream::cpu(1), "ref");
    const ExpertsWorkspace ws = experts->workspace(kTiny.num_tokens);
    const Tensor output = Tensor::empty(ws.output, ws.dtype);
    experts->apply(p.input, output, {}, Tensor::empty({ws.scratch_bytes}, DType::kU8),
                   Stream::cpu(1));
    const auto h = static_cast<size_t>(p.desc.hidden);
    const auto n = static_cast<size_t>(p.desc.intermediate);
    const QuantConfig& q = p.weights.quant;
    RelativeError error;
    std::vector<float> w1(2 * n * h);
    std::vector<float> w2(h * n);
    for (int64_t slot = 0; slot < 10; ++slot) {
      const int64_t e = p.input.topk_ids.data<int32_t>()[slot];
      const float* x = p.input.x.data<float>() + slot / kTiny.topk * kTiny.hidden;
      dequantize_weight_rows(p.weights.w1, q.w1, {e, 0, p.desc.w1_rows(), p.desc.intermediate},
                             w1.data(), q.a1.alpha_or_gscale);
      dequantize_weight_rows(p.weights.w2, q.w2, {e, 0, p.desc.hidden, p.desc.hidden}, w2.data(),
                             q.a2.alpha_or_gscale);
      std::vector<double> act(n);
      for (size_t i = 0; i < n; ++i) {
        double gate = get_float(q.w1.bias, e * 2 * p.desc.intermediate + static_cast<int64_t>(i));
        double up =
            get_float(q.w1.bias, (e * 2 + 1) * p.desc.intermediate + static_cast<int64_t>(i));
        for (size_t k = 0; k < h; ++k) {
          gate += static_cast<double>(x[k]) * static_cast<double>(w1[i * h + k]);
          up += static_cast<double>(x[k]) * static_cast<double>(w1[(n + i) * h + k]);
        }
        act[i] = gate / (1 + std::exp(-gate)) * up;
      }
      for (size_t j = 0; j < h; ++j) {
        double y = get_float(q.w2.bias, e * p.desc.hidden + static_cast<int64_t>(j));
        for (size_t i = 0; i < n; ++i) {
          y += act[i] * static_cast<double>(w2[j * n + i]);
        }
        error.add(output.data<float>()[static_cast<size_t>(slot) * h + j], static_cast<float>(y));
      }
    }
    EXPECT_LE(error.value(), 0x1p-22);
  }
}

}  // namespace
}  // namespace moebius
