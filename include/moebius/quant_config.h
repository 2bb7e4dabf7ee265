// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// QuantConfig: how the two activations and the two weights of an MoE layer are quantized.
// Names and defaults follow vLLM's FusedMoEQuantConfig; docs/formats.md describes every format byte
// by byte.
// Letters: L local experts, N rows of a weight, K its columns (the reduced dimension), M rows of an
// activation, g group size.
// Ownership: the descs hold handles on tensors.
// Thread-safety: as any value type.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "moebius/api.h"
#include "moebius/tensor.h"

namespace moebius MOEBIUS_API {

enum class QuantFormat : uint8_t {
  kFp8,        // e4m3
  kInt8,       // symmetric
  kInt4,       // unsigned nibbles with zero point (8 when none is given); weights only
  kMxfp4,      // e2m1, e8m0 scale per 32
  kMxfp6E3M2,  // e3m2, e8m0 scale per 32
  kMxfp6E2M3,  // e2m3, e8m0 scale per 32
  kMxfp8,      // e4m3, e8m0 scale per 32
  kNvfp4,      // e2m1, e4m3 scale per 16, f32 global scale
};

std::string_view name(QuantFormat format);  // "fp8", "int8", "mxfp6_e3m2", ...
std::optional<QuantFormat> quant_format_from_name(std::string_view name);
DType storage_dtype(QuantFormat format);
bool is_ocp_mx(QuantFormat format);  // mxfp4, mxfp6_*, mxfp8

// How many elements share one scale, as rows x columns; -1 means all of that dimension.  The rows
// of a weight are its output channels, so scales "per token" of a weight are its scales per
// channel.
struct GroupShape {
  int64_t row = -1;
  int64_t col = -1;

  static constexpr GroupShape per_tensor() { return {-1, -1}; }
  static constexpr GroupShape per_token() { return {1, -1}; }  // one scale per row
  constexpr bool is_per_tensor() const { return row == -1 && col == -1; }
  constexpr bool is_per_token() const { return row == 1 && col == -1; }
  bool operator==(const GroupShape&) const = default;
};

// How one operand is quantized.  An activation has tensors only with static quantization.
struct QuantDesc {
  std::optional<QuantFormat> format;  // nullopt: not quantized
  std::optional<GroupShape> shape;
  // Activation: static scale, f32 [1] (or [L] for a2); for one per row see calls_bring_scales.  One
  // scale of a1 is the same on all ranks that send rows to each other, since rows travel quantized.
  // Weight: f32/bf16/f16 per tensor [L], per channel [L, N], per block [L, row blocks, col blocks],
  // per group [L, N, ceil(K/g)]; e8m0 [L, N, ceil(K/32)] (mx); e4m3 [L, N, ceil(K/16)] (nvfp4).
  // Row blocks of a gated w1 never straddle gate and up: each half has its own ceil(I/row) blocks.
  Tensor scale;
  // nvfp4.  Activation: the global scale, f32 [1] or [L]; a = q * sf / gscale; where undefined,
  // each row has its own.  Weight: f32 [L], or [L, 2] when gate and up differ: what accumulators
  // are multiplied with, weight_scale_2 / gscale of the activation (1 where that has none).
  Tensor alpha_or_gscale;
  // int4 and int8 weights: u8 [L, N, ceil(K/g)], the shape of the scale.  Zero points of int8 count
  // from -128 as the unsigned code does: value = (q + 128 - zero_point) * scale.
  Tensor zero_point;
  Tensor bias;  // weights: f32, bf16 or f16 [L, N]
  // fp8 activations in blocks: scales are rounded up to powers of two (UE8M0 values, stored as
  // f32), as DeepSeek-V3.1 requires.  No builder sets this flag: set it in a1 and a2, then call
  // validate().
  bool power_of_two_scale = false;
  // a2 in fp8 or int8 with a scale per token: every call brings these scales (ExpertsInput::
  // a2_scale), one for each row of x, instead of taking them from the rows of GEMM2.  Such a scale
  // is static: all selections of a row share it, and it must be known before GEMM1 has been
  // computed.  Codes are rounded as with scales per token that are taken from the rows:
  // fp8 e4m3(clamp(v / scale, -448, 448)), int8 v * (1 / scale) to the nearest, halves away from
  // zero.  `scale` is then undefined.  No builder sets this flag: set it in a2, then call
  // validate().
  bool calls_bring_scales = false;
};

// The arguments of the builders: every tensor of the four operands.  Each of them is optional.
struct QuantTensors {
  Tensor w1_scale, w2_scale;
  Tensor a1_scale, a2_scale;
  Tensor g1_alphas, g2_alphas;
  Tensor a1_gscale, a2_gscale;
  Tensor w1_bias, w2_bias;
  Tensor w1_zero_point, w2_zero_point;
};

class QuantConfig {
 public:
  QuantDesc a1, a2, w1, w2;

  // Unquantized.
  QuantConfig() = default;

  // The general builder.  `block` = {rows, cols} quantizes weights in blocks and activations in
  // groups of {1, cols}; block_shape() reports {rows, cols} for both, as vLLM's config does.
  // Throws InvalidArgument for a block together with per_act_token or per_out_channel, and for int4
  // activations.
  static QuantConfig make(std::optional<QuantFormat> activation,
                          bool per_act_token,
                          bool per_out_channel,
                          std::optional<GroupShape> block,
                          QuantTensors tensors,
                          std::optional<QuantFormat> weight = std::nullopt);

  static QuantConfig unquantized() { return {}; }
  static QuantConfig biased(Tensor w1_bias, Tensor w2_bias);
  static QuantConfig fp8_w8a8(QuantTensors tensors,
                              bool per_act_token = false,
                              bool per_out_channel = false,
                              std::optional<GroupShape> block = std::nullopt);
  static QuantConfig int8_w8a8(QuantTensors tensors, bool per_act_token = false);
  static QuantConfig int8_w8a16(QuantTensors tensors,
                                std::optional<GroupShape> block = std::nullopt);
  // `block` is {0, g}, as vLLM writes it, or {1, g}; g is even.
  static QuantConfig int4_w4a16(QuantTensors tensors,
                                std::optional<GroupShape> block = std::nullopt);
  static QuantConfig mxfp4_w4a16(QuantTensors tensors);
  // Throws InvalidArgument when `activation` is neither an OCP MX format nor fp8.  fp8 activations
  // are scaled per tensor and need OCP MX weights, so `weight` is required then (w_mxfp4_a_fp8 and
  // so on).
  static QuantConfig ocp_mx(QuantFormat activation,
                            QuantTensors tensors,
                            std::optional<QuantFormat> weight = std::nullopt,
                            std::optional<GroupShape> block = std::nullopt);
  static QuantConfig nvfp4(QuantTensors tensors);

  // Throws InvalidArgument for a combination that means nothing (see make()).  The builders call
  // it.  Call it after you have filled the four descs by hand.
  void validate() const;

  std::optional<QuantFormat> quant_format() const { return a1.format; }
  bool is_quantized() const { return a1.format.has_value(); }
  bool is_per_act_token() const { return a1.shape && a1.shape->is_per_token(); }
  bool per_out_channel() const { return w1.shape && w1.shape->is_per_token(); }
  bool is_per_tensor() const { return a1.shape && a1.shape->is_per_tensor(); }
  // The group of a1 unless a1 is scaled per tensor or per token.  So int4_w4a16 with {0, g} reports
  // {0, g} although its activations are not quantized; vLLM does the same.
  std::optional<GroupShape> block_shape() const;
  bool is_block_quantized() const { return block_shape().has_value(); }

  bool use_fp8_w8a8() const { return a1.format == QuantFormat::kFp8 && !ocp_mx_scheme(); }
  bool use_int8_w8a8() const { return a1.format == QuantFormat::kInt8; }
  bool use_int8_w8a16() const { return !a1.format && w1.format == QuantFormat::kInt8; }
  bool use_int4_w4a16() const { return !a1.format && w1.format == QuantFormat::kInt4; }
  bool use_mxfp4_w4a16() const { return !a1.format && w1.format == QuantFormat::kMxfp4; }
  bool use_nvfp4_w4a4() const { return a1.format == QuantFormat::kNvfp4; }
  // "w_mxfp4", "w_mxfp4_a_mxfp6_e3m2", "w_mxfp4_a_fp8", ...; nullopt when the weights are not OCP
  // MX, or the activations are quantized neither in an OCP MX format nor to fp8 per tensor.
  std::optional<std::string> ocp_mx_scheme() const;

  // The key of tuning tables: "fp8_w8a8", "int8_w8a16" or "int4_w4a16".  Other configs have nullopt
  // with OCP MX weights, "float32" when in_dtype is f32 (also int8_w8a8 and nvfp4, as in vLLM), and
  // nullopt otherwise.
  std::optional<std::string> config_name(DType in_dtype) const;
  // The shape of a1's scales for max_tokens = M rows: {M, ceil(H/cols)} in blocks, {M, 1} per token
  // and {1, 1} per tensor; nullopt when a1 is not quantized.
  std::optional<std::array<int64_t, 2>> scale_shape(int64_t max_tokens, int64_t hidden) const;
  // {num_experts, *scale_shape}.
  std::optional<std::array<int64_t, 3>> batched_scale_shape(int64_t num_experts,
                                                            int64_t max_tokens,
                                                            int64_t hidden) const;
};

}  // namespace moebius
