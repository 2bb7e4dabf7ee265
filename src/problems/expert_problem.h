// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Random weights and inputs for the experts stage in every quantization scheme.  Weights are random
// codes and scales instead of quantized values, so that reading a scale from a wrong place is
// noticed.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <string_view>

#include "moebius/experts.h"
#include "moebius/quantize.h"
#include "problems/sizes.h"

namespace moebius {

// The layout of a weight's scales.
enum class WeightScales : uint8_t { kNone, kTensor, kChannel, kBlock, kGroup };

struct Scheme {
  std::string_view name;
  std::optional<QuantFormat> activation{};
  std::optional<QuantFormat> weight{};
  WeightScales scales = WeightScales::kNone;
  GroupShape block{};  // for kBlock and kGroup
  bool per_token = false;
  bool static_scales = false;  // of a1 and a2; for nvfp4 these are global scales
  bool zero_points = false;
  bool power_of_two_scales = false;  // of activations
  bool calls_bring_scales = false;   // see QuantDesc; the input then has an a2_scale
};
inline void PrintTo(const Scheme& scheme, std::ostream* out) {
  *out << scheme.name;
}
inline void PrintTo(ActivationFormat format, std::ostream* out) {
  *out << name(format);
}

inline constexpr Scheme kSchemes[] = {
    {"unquantized", std::nullopt, std::nullopt},
    {"fp8_tensor", QuantFormat::kFp8, QuantFormat::kFp8, WeightScales::kTensor},
    {.name = "fp8_tensor_static",
     .activation = QuantFormat::kFp8,
     .weight = QuantFormat::kFp8,
     .scales = WeightScales::kTensor,
     .static_scales = true},
    {"fp8_channel", QuantFormat::kFp8, QuantFormat::kFp8, WeightScales::kChannel},
    {"fp8_channel_token", QuantFormat::kFp8, QuantFormat::kFp8, WeightScales::kChannel, {}, true},
    {"fp8_block", QuantFormat::kFp8, QuantFormat::kFp8, WeightScales::kBlock, {48, 128}},
    {.name = "fp8_block_ue8m0",
     .activation = QuantFormat::kFp8,
     .weight = QuantFormat::kFp8,
     .scales = WeightScales::kBlock,
     .block = {128, 128},
     .power_of_two_scales = true},
    {"fp8_w8a16", std::nullopt, QuantFormat::kFp8, WeightScales::kChannel},
    {"int8_w8a8_tensor", QuantFormat::kInt8, QuantFormat::kInt8, WeightScales::kTensor},
    {"int8_w8a8_token", QuantFormat::kInt8, QuantFormat::kInt8, WeightScales::kChannel, {}, true},
    {"int8_w8a8_block", QuantFormat::kInt8, QuantFormat::kInt8, WeightScales::kBlock, {64, 64}},
    {"int8_w8a16", std::nullopt, QuantFormat::kInt8, WeightScales::kChannel},
    {"int4_w4a16", std::nullopt, QuantFormat::kInt4, WeightScales::kGroup, {0, 32}},
    {.name = "int4_w4a16_zp",
     .weight = QuantFormat::kInt4,
     .scales = WeightScales::kGroup,
     .block = {1, 64},
     .zero_points = true},
    {"mxfp4_w4a16", std::nullopt, QuantFormat::kMxfp4, WeightScales::kGroup, {1, 32}},
    {"mxfp4_a_mxfp4", QuantFormat::kMxfp4, QuantFormat::kMxfp4, WeightScales::kGroup, {1, 32}},
    {"mxfp4_a_mxfp6_e3m2",
     QuantFormat::kMxfp6E3M2,
     QuantFormat::kMxfp4,
     WeightScales::kGroup,
     {1, 32}},
    {"mxfp4_a_fp8", QuantFormat::kFp8, QuantFormat::kMxfp4, WeightScales::kGroup, {1, 32}},
    {"mxfp6_e2m3", QuantFormat::kMxfp6E2M3, QuantFormat::kMxfp6E2M3, WeightScales::kGroup, {1, 32}},
    {"mxfp8", QuantFormat::kMxfp8, QuantFormat::kMxfp8, WeightScales::kGroup, {1, 32}},
    {"nvfp4", QuantFormat::kNvfp4, QuantFormat::kNvfp4, WeightScales::kGroup, {1, 16}},
    {.name = "nvfp4_static",
     .activation = QuantFormat::kNvfp4,
     .weight = QuantFormat::kNvfp4,
     .scales = WeightScales::kGroup,
     .block = {1, 16},
     .static_scales = true},
    {"nvfp4_w4a16", std::nullopt, QuantFormat::kNvfp4, WeightScales::kGroup, {1, 16}},
};

// Schemes whose calls bring a scale for each row of GEMM2.  Why apart: a layer needs more than
// weights to be called with them.
inline constexpr Scheme kBroughtScales[] = {
    {.name = "fp8_token_brought",
     .activation = QuantFormat::kFp8,
     .weight = QuantFormat::kFp8,
     .scales = WeightScales::kChannel,
     .per_token = true,
     .calls_bring_scales = true},
    {.name = "int8_token_brought",
     .activation = QuantFormat::kInt8,
     .weight = QuantFormat::kInt8,
     .scales = WeightScales::kChannel,
     .per_token = true,
     .calls_bring_scales = true},
};

// The entry of kSchemes with this name; throws InvalidArgument where there is none.
inline const Scheme& scheme_of(std::string_view name) {
  for (const Scheme& scheme : kSchemes) {
    if (scheme.name == name) {
      return scheme;
    }
  }
  throw InvalidArgument("no scheme " + std::string(name));
}

// All parameters of an experts object but the sizes.
struct ExpertCase {
  Scheme scheme = kSchemes[0];
  DType dtype = DType::kBF16;  // of activations, and of unquantized weights
  ActivationFormat format = ActivationFormat::kStandard;
  ActivationSpec activation{};
  bool biased = false;
  int64_t num_adapters = 0;  // of LoRA: each row uses one of them or none
  int64_t lora_rank = 0;
  DType lora_dtype = DType::kBF16;
};

struct ExpertProblem {
  ExpertsDesc desc;
  ExpertWeights weights;
  ExpertsInput input;
};

// Why the implementation refuses `p`; empty when it accepts.
inline std::string refusal(const ExpertProblem& p, std::string_view impl) {
  for (const ExpertsImpl& candidate : experts_impls()) {
    if (candidate.name == impl) {
      return candidate.supports(p.desc, p.weights).reason;
    }
  }
  return "no such implementation";
}

class ExpertProblemMaker {
 public:
  explicit ExpertProblemMaker(uint64_t seed = 1) : random_(seed) {}

  Tensor normal(const Shape& shape, DType dtype, float scale = 1.0f);

  ExpertProblem make(const Problem& p, const ExpertCase& c);

  // A scale for every row; padding rows of the batched format get NaN.
  Tensor a2_scale(const ExpertsInput& input, QuantFormat format);

  ExpertWeights make_weights(const ExpertsDesc& d, const ExpertCase& c);

  // Adds adapters that change a product of unit rows by about a quarter, and an id for every row.
  void add_adapters(const ExpertCase& c, ExpertProblem& p);

  // An id in [-1, num_adapters) for every row.  Padding rows of the batched format get a value that
  // is no id.
  Tensor lora_ids(const ExpertsInput& input, int64_t num_adapters);

  ExpertsInput standard_input(const Problem& p, DType dtype);

  // The first expert has num_tokens rows, the second has none, and the others have any number.
  // Padding rows are NaN.
  ExpertsInput batched_input(const Problem& p, DType dtype);

 private:
  // The sum of four uniform numbers, which is about normal, with variance 1.
  float bell();
  Tensor uniform(const Shape& shape, DType dtype, float low, float high);

  // Codes cover a good part of their range, and scales make products of unit rows about 1.
  void make_weight(const ExpertCase& c,
                   const Shape& shape,
                   int64_t halves,
                   Tensor& w,
                   Tensor& scale,
                   Tensor& zero_point,
                   Tensor& alphas);

  std::mt19937_64 random_;
};

}  // namespace moebius
