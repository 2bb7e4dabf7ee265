// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "problems/expert_problem.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <utility>
#include <vector>

namespace moebius {

namespace {

// Weights of benchmarks are large, so they repeat after this many elements.  It is 4 times a
// prime: bytes are whole, and no two rows or experts of a usual size are equal.
constexpr int64_t kPeriod = 4 * 65537;

template <typename Next>
Tensor filled(const Shape& shape, DType dtype, Next next) {
  Tensor tensor = Tensor::empty(shape, dtype);
  const int64_t n = std::min(tensor.numel(), kPeriod);
  for (int64_t i = 0; i < n; ++i) {
    set_float(tensor, i, next());
  }
  const int64_t period_bytes = kPeriod * bits(dtype) / 8;
  for (int64_t begin = period_bytes; begin < tensor.nbytes(); begin += period_bytes) {
    std::memcpy(tensor.bytes() + begin, tensor.bytes(),
                static_cast<size_t>(std::min(period_bytes, tensor.nbytes() - begin)));
  }
  return tensor;
}

// alphas [L] /= gscales [1] or [L].
void divide(const Tensor& alphas, const Tensor& gscales) {
  for (int64_t e = 0; e < alphas.numel(); ++e) {
    alphas.data<float>()[e] /= gscales.data<float>()[gscales.numel() > 1 ? e : 0];
  }
}

// Static scales are for values up to these bounds: x is normal, and products of gate and up with
// biases reach about 14.
constexpr float kLargestX = 4.5f;
constexpr float kLargestHidden = 16.0f;

constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

QuantConfig assemble(const Scheme& s, QuantTensors t) {
  if (s.activation == QuantFormat::kFp8 && is_ocp_mx(*s.weight)) {
    return QuantConfig::ocp_mx(*s.activation, std::move(t), s.weight);
  }
  const bool blocks = s.scales == WeightScales::kBlock || s.scales == WeightScales::kGroup;
  QuantConfig config =
      QuantConfig::make(s.activation, s.per_token, s.scales == WeightScales::kChannel,
                        blocks ? std::optional(s.block) : std::nullopt, std::move(t), s.weight);
  config.a1.power_of_two_scale = config.a2.power_of_two_scale = s.power_of_two_scales;
  config.a2.calls_bring_scales = s.calls_bring_scales;
  config.validate();
  return config;
}

}  // namespace

Tensor ExpertProblemMaker::normal(const Shape& shape, DType dtype, float scale) {
  return filled(shape, dtype, [&] { return bell() * scale; });
}

ExpertProblem ExpertProblemMaker::make(const Problem& p, const ExpertCase& c) {
  ExpertProblem out;
  out.desc.num_experts = out.desc.num_local_experts = p.num_experts;
  out.desc.topk = p.topk;
  out.desc.hidden = p.hidden;
  out.desc.intermediate = p.intermediate;
  out.desc.in_dtype = c.dtype;
  out.desc.activation = c.activation;
  out.desc.format = c.format;
  out.weights = make_weights(out.desc, c);
  out.input = c.format == ActivationFormat::kStandard ? standard_input(p, c.dtype)
                                                      : batched_input(p, c.dtype);
  if (c.num_adapters > 0) {
    add_adapters(c, out);
  }
  if (c.scheme.calls_bring_scales) {
    out.input.a2_scale = a2_scale(out.input, *c.scheme.activation);
  }
  return out;
}

Tensor ExpertProblemMaker::a2_scale(const ExpertsInput& input, QuantFormat format) {
  const bool batched = input.x.num_dims() == 3;
  const float largest_code = format == QuantFormat::kFp8 ? 448.0f : 127.0f;
  const Tensor scales =
      uniform(batched ? Shape{input.x.dim(0), input.x.dim(1)} : Shape{input.x.dim(0)}, DType::kF32,
              0.5f * kLargestHidden / largest_code, kLargestHidden / largest_code);
  for (int64_t e = 0; batched && e < scales.dim(0); ++e) {
    const Tensor padding =
        scales[e].slice(input.expert_num_tokens.data<int32_t>()[e], scales.dim(1));
    std::fill_n(padding.data<float>(), padding.numel(), std::nanf(""));
  }
  return scales;
}

ExpertWeights ExpertProblemMaker::make_weights(const ExpertsDesc& d, const ExpertCase& c) {
  const int64_t l = d.num_local_experts;
  const int64_t halves = d.activation.gated && !d.activation.interleaved ? 2 : 1;
  ExpertWeights out;
  QuantTensors t;
  make_weight(c, {l, d.w1_rows(), d.hidden}, halves, out.w1, t.w1_scale, t.w1_zero_point,
              t.g1_alphas);
  make_weight(c, {l, d.hidden, d.intermediate}, 1, out.w2, t.w2_scale, t.w2_zero_point,
              t.g2_alphas);
  if (c.biased) {
    t.w1_bias = normal({l, d.w1_rows()}, DType::kF32, 0.5f);
    t.w2_bias = normal({l, d.hidden}, DType::kBF16, 0.5f);
  }
  const bool is_nvfp4 = c.scheme.activation == QuantFormat::kNvfp4;
  if (c.scheme.static_scales && is_nvfp4) {
    // The scale is 448 * 6 over the largest element.  a2 has one per expert.
    t.a1_gscale = uniform({1}, DType::kF32, 448 * 6 / kLargestX, 448 * 6 / kLargestX + 10);
    t.a2_gscale =
        uniform({l}, DType::kF32, 448 * 6 / kLargestHidden, 448 * 6 / kLargestHidden + 10);
    divide(t.g1_alphas, t.a1_gscale);
    divide(t.g2_alphas, t.a2_gscale);
  } else if (c.scheme.static_scales) {
    t.a1_scale = uniform({1}, DType::kF32, kLargestX / 448, kLargestX / 400);
    t.a2_scale = uniform({l}, DType::kF32, kLargestHidden / 448, kLargestHidden / 400);
  }
  out.quant = assemble(c.scheme, std::move(t));
  return out;
}

void ExpertProblemMaker::add_adapters(const ExpertCase& c, ExpertProblem& p) {
  const ExpertsDesc& d = p.desc;
  const int64_t a = c.num_adapters;
  const int64_t l = d.num_local_experts;
  const int64_t r = c.lora_rank;
  const int64_t halves = d.activation.gated ? 2 : 1;
  const auto unit = [](int64_t k) { return 1.0f / std::sqrt(static_cast<float>(k)); };
  p.desc.num_adapters = a;
  p.desc.lora_rank = r;
  LoraWeights& lora = p.weights.lora;
  lora.w1_a = normal({a, l, halves * r, d.hidden}, c.lora_dtype, unit(d.hidden));
  lora.w1_b = normal({a, l, d.w1_rows(), r}, c.lora_dtype, 0.25f * unit(r));
  lora.w2_a = normal({a, l, r, d.intermediate}, c.lora_dtype, unit(d.intermediate));
  lora.w2_b = normal({a, l, d.hidden, r}, c.lora_dtype, 0.25f * unit(r));
  lora.scaling = uniform({a}, DType::kF32, 0.5f, 1.5f);
  p.input.lora_ids = lora_ids(p.input, a);
}

Tensor ExpertProblemMaker::lora_ids(const ExpertsInput& input, int64_t num_adapters) {
  const bool batched = input.x.num_dims() == 3;
  const Tensor ids = Tensor::empty(
      batched ? Shape{input.x.dim(0), input.x.dim(1)} : Shape{input.x.dim(0)}, DType::kI32);
  std::uniform_int_distribution<int32_t> id(-1, static_cast<int32_t>(num_adapters) - 1);
  std::generate_n(ids.data<int32_t>(), ids.numel(), [&] { return id(random_); });
  for (int64_t e = 0; batched && e < ids.dim(0); ++e) {
    const Tensor padding = ids[e].slice(input.expert_num_tokens.data<int32_t>()[e], ids.dim(1));
    std::fill_n(padding.data<int32_t>(), padding.numel(), int32_t{1} << 30);
  }
  return ids;
}

ExpertsInput ExpertProblemMaker::standard_input(const Problem& p, DType dtype) {
  ExpertsInput input;
  input.x = normal({p.num_tokens, p.hidden}, dtype);
  input.topk_ids = Tensor::empty({p.num_tokens, p.topk}, DType::kI32);
  input.topk_weights = uniform({p.num_tokens, p.topk}, DType::kF32, 0.0f, 1.0f);
  std::vector<int32_t> experts(static_cast<size_t>(p.num_experts));
  for (size_t e = 0; e < experts.size(); ++e) {
    experts[e] = static_cast<int32_t>(e);
  }
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    std::shuffle(experts.begin(), experts.end(), random_);
    std::copy_n(experts.begin(), p.topk, input.topk_ids.data<int32_t>() + t * p.topk);
  }
  return input;
}

ExpertsInput ExpertProblemMaker::batched_input(const Problem& p, DType dtype) {
  const int64_t max_rows = p.num_tokens;
  ExpertsInput input;
  input.x = normal({p.num_experts, max_rows, p.hidden}, dtype);
  input.expert_num_tokens = Tensor::empty({p.num_experts}, DType::kI32);
  std::uniform_int_distribution<int32_t> count(0, static_cast<int32_t>(max_rows));
  for (int64_t e = 0; e < p.num_experts; ++e) {
    const int32_t n = e == 0 ? static_cast<int32_t>(max_rows) : e == 1 ? 0 : count(random_);
    input.expert_num_tokens.data<int32_t>()[e] = n;
    const Tensor padding = input.x[e].slice(n, max_rows);
    std::memset(padding.raw(), 0xff, static_cast<size_t>(padding.nbytes()));
  }
  return input;
}

Tensor ExpertProblemMaker::uniform(const Shape& shape, DType dtype, float low, float high) {
  std::uniform_real_distribution<float> distribution(low, high);
  return filled(shape, dtype, [&] { return distribution(random_); });
}

void ExpertProblemMaker::make_weight(const ExpertCase& c,
                                     const Shape& shape,
                                     int64_t halves,
                                     Tensor& w,
                                     Tensor& scale,
                                     Tensor& zero_point,
                                     Tensor& alphas) {
  const Scheme& s = c.scheme;
  const int64_t l = shape[0];
  const int64_t rows = shape[1];
  const int64_t cols = shape[2];
  const float unit = 1.0f / std::sqrt(static_cast<float>(cols));
  if (!s.weight) {
    w = normal(shape, c.dtype, unit);
    return;
  }
  const bool is_integer = s.weight == QuantFormat::kInt8 || s.weight == QuantFormat::kInt4;
  const bool is_int4 = s.weight == QuantFormat::kInt4;
  const bool is_wide = s.weight == QuantFormat::kFp8 || s.weight == QuantFormat::kInt8 ||
                       s.weight == QuantFormat::kMxfp8;
  const float spread = is_wide ? 40.0f : 2.0f;
  const float center = is_int4 ? 8.0f : 0.0f;
  w = filled(shape, storage_dtype(*s.weight), [&] { return center + bell() * spread; });

  const int64_t group = std::max<int64_t>(1, s.block.row);
  const Shape scale_shape =
      s.scales == WeightScales::kTensor    ? Shape{l}
      : s.scales == WeightScales::kChannel ? Shape{l, rows}
      : s.scales == WeightScales::kBlock
          ? Shape{l, halves * ceil_div(rows / halves, group), ceil_div(cols, s.block.col)}
          : Shape{l, rows, ceil_div(cols, s.block.col)};
  const float mean = unit / spread;
  if (is_ocp_mx(*s.weight)) {
    scale = uniform(scale_shape, DType::kE8M0, 0.5f * mean, 2.0f * mean);
  } else if (s.weight == QuantFormat::kNvfp4) {
    scale = uniform(scale_shape, DType::kF8E4M3, 50.0f, 400.0f);
    alphas = uniform({l}, DType::kF32, 0.5f * mean / 200.0f, 1.5f * mean / 200.0f);
  } else {
    scale = uniform(scale_shape, is_integer ? DType::kBF16 : DType::kF32, 0.5f * mean, 1.5f * mean);
  }
  if (s.zero_points) {
    zero_point = uniform(scale_shape, DType::kU8, 5.0f, 11.0f);
  }
}

// Why not std::normal_distribution: it took half of the tests' time.
float ExpertProblemMaker::bell() {
  constexpr float kScale = 1.7320508f / 65536;  // sqrt(3)
  const uint64_t word = random_();
  const auto sum = (word & 0xffff) + (word >> 16 & 0xffff) + (word >> 32 & 0xffff) + (word >> 48);
  return (static_cast<float>(sum) - 131070.0f) * kScale;
}

}  // namespace moebius
