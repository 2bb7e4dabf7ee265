// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/weight_scheme.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace moebius::checkpoint {

namespace {

// Scales of activations, as publishers spell them.
constexpr std::string_view kInputScaleNames[] = {".input_scale", ".activation_scale",
                                                 ".input_global_scale"};

constexpr StoredFormat kStoredFormats[] = {
    {WeightFormat::kFloat, "none, and modules that a rule leaves out", "`.weight` bf16, f16 or f32",
     "itself"},
    {WeightFormat::kFp8Block,
     "`fp8` (DeepSeek, Qwen, MiniMax), compressed-tensors `float-quantized` by blocks, ModelOpt "
     "`FP8_PB_WO`",
     "`.weight` e4m3, `.weight_scale_inv`, `.weight_scale` or `.scale` per block, f32, bf16 or "
     "e8m0; fused, too",
     "fp8 in blocks; activations by groups as wide, with power-of-two scales where `scale_fmt` is "
     "`ue8m0`"},
    {WeightFormat::kFp8Channel,
     "compressed-tensors `float-quantized` per channel (FP8-dynamic), `fbgemm_fp8`, ModelOpt "
     "`FP8_PER_CHANNEL_PER_TOKEN`",
     "`.weight` e4m3, `.weight_scale` per row; fused and transposed, too",
     "fp8 per channel; activations per token"},
    {WeightFormat::kFp8Tensor,
     "`fp8` without blocks, compressed-tensors `float-quantized` per tensor, ModelOpt `FP8`",
     "`.weight` e4m3, one `.weight_scale` (or `.weight_scale_inv`), `.input_scale` or "
     "`.activation_scale` where activations are static",
     "fp8 per channel, all rows of a projection with its scale; activations per tensor if static, "
     "else per token"},
    {WeightFormat::kInt8, "compressed-tensors `int-quantized`, 8 bits",
     "`.weight` i8, `.weight_scale` per row or group, `.weight_zero_point` i8",
     "int8; activations per token where the file says so"},
    {WeightFormat::kPackedInt, "compressed-tensors `pack-quantized`, 4 and 8 bits",
     "`.weight_packed` i32 (codes offset by 8 or 128, first element lowest), `.weight_scale`, "
     "`.weight_zero_point` (rows packed), `.weight_shape`",
     "int4 or int8 in groups or per channel"},
    {WeightFormat::kGptq, "`gptq`, 4 and 8 bits, zero points of both versions",
     "`.qweight` i32 [K/8, N], `.scales` [K/g, N], `.qzeros` i32 [K/g, N/8], `.g_idx`",
     "int4 or int8 in groups, transposed while it is read"},
    {WeightFormat::kAwq, "`awq` `gemm`, 4 bits",
     "`.qweight` i32 [K, N/8] (rows 0, 2, 4, 6, 1, 3, 5, 7 of eight), `.scales` [K/g, N], "
     "`.qzeros` i32 [K/g, N/8]",
     "int4 in groups, transposed while it is read"},
    {WeightFormat::kMxfp4Fused, "`mxfp4` (gpt-oss)",
     "`_blocks` [E, N, K/32, 16], two e2m1 per byte, low nibble first, and e8m0 `_scales`",
     "mxfp4"},
    {WeightFormat::kMxfp4,
     "compressed-tensors `mxfp4-pack-quantized`, `fp8` with `expert_dtype` `fp4` (DeepSeek-V4)",
     "`.weight_packed` or `.weight`, two e2m1 per byte, and e8m0 scales per 32", "mxfp4"},
    {WeightFormat::kMxfp8,
     "`mxfp8`, compressed-tensors `mxfp8-quantized`, ModelOpt `MXFP8`, `fp8` with blocks of "
     "[1, 32] and e8m0 scales",
     "`.weight` e4m3, `.weight_scale` or `.weight_scale_inv` e8m0 per 32",
     "mxfp8; activations likewise"},
    {WeightFormat::kNvfp4, "ModelOpt `NVFP4`",
     "`.weight` e2m1 pairs, `.weight_scale` e4m3 per 16, `.weight_scale_2` f32, `.input_scale`",
     "nvfp4; activations likewise, if they have scales"},
    {WeightFormat::kNvfp4Packed, "compressed-tensors `nvfp4-pack-quantized`",
     "`.weight_packed` e2m1 pairs, `.weight_scale` e4m3 per 16, `.weight_global_scale` and "
     "`.input_global_scale` f32, which are reciprocals",
     "nvfp4; activations likewise where the file says so"},
};

// Where scales of the scheme lie, as units of StoredPart.
StoredPart scale_part(const WeightScheme& scheme,
                      std::vector<std::string_view> suffixes,
                      DType dtype) {
  StoredPart part{PartRole::kScale, std::move(suffixes), dtype};
  part.row_unit = scheme.group.row;
  part.col_unit = scheme.group.col == -1 ? 0 : scheme.group.col;
  return part;
}

// A part that is one row of stored elements per word of packed rows.
StoredPart zero_points(const WeightScheme& scheme, std::string_view suffix, Unpack unpack) {
  StoredPart part = scale_part(scheme, {suffix}, DType::kI32);
  part.role = PartRole::kZeroPoint;
  part.row_unit = scheme.format == QuantFormat::kInt8 ? 4 : 8;
  part.unpack = unpack;
  return part;
}

StoredPart transposed(StoredPart part) {
  part.is_transposed = true;
  return part;
}

}  // namespace

int64_t num_units(int64_t total, int64_t unit) {
  return unit == 0 ? 1 : (total + unit - 1) / unit;
}

bool is_input_scale(std::string_view tensor) {
  return std::any_of(std::begin(kInputScaleNames), std::end(kInputScaleNames),
                     [&](std::string_view name) { return tensor.ends_with(name); });
}

std::vector<StoredPart> stored_parts(const WeightScheme& scheme, DType float_dtype) {
  using enum PartRole;
  const bool is_int8 = scheme.format == QuantFormat::kInt8;
  const int64_t codes_per_word = is_int8 ? 4 : 8;
  const Unpack codes = is_int8 ? Unpack::kFlipSigns : Unpack::kNone;
  std::vector<StoredPart> parts;
  switch (scheme.stored) {
    case WeightFormat::kFloat:
      return {{kWeight, {".weight"}, float_dtype}};
    case WeightFormat::kFp8Block:
      return {{kWeight, {".weight"}, DType::kF8E4M3},
              scale_part(scheme, {".weight_scale_inv", ".weight_scale", ".scale"}, DType::kF32)};
    case WeightFormat::kFp8Channel:
    case WeightFormat::kFp8Tensor:
      parts = {{kWeight, {".weight"}, DType::kF8E4M3},
               scale_part(scheme, {".weight_scale", ".weight_scale_inv"}, float_dtype)};
      if (scheme.stored == WeightFormat::kFp8Tensor) {
        parts.back().row_unit = 0;
      }
      if (scheme.has_input_scales()) {
        parts.push_back({kInputScale, {kInputScaleNames[0], kInputScaleNames[1]}, DType::kF32});
      }
      return parts;
    case WeightFormat::kInt8:
      parts = {{kWeight, {".weight"}, DType::kI8},
               scale_part(scheme, {".weight_scale"}, float_dtype)};
      if (scheme.has_zero_points) {
        StoredPart zeros = scale_part(scheme, {".weight_zero_point"}, DType::kI8);
        zeros.role = kZeroPoint;
        zeros.unpack = Unpack::kFlipSigns;
        parts.push_back(zeros);
      }
      return parts;
    case WeightFormat::kPackedInt:
      parts = {{kWeight, {".weight_packed"}, DType::kI32, 1, codes_per_word, false, codes},
               scale_part(scheme, {".weight_scale"}, float_dtype),
               {kWeightShape, {".weight_shape"}, DType::kI64}};
      if (scheme.has_zero_points) {
        parts.push_back(zero_points(scheme, ".weight_zero_point", Unpack::kRows));
      }
      return parts;
    case WeightFormat::kGptq:
      return {{kWeight, {".qweight"}, DType::kI32, 1, codes_per_word, true, codes},
              transposed(scale_part(scheme, {".scales"}, DType::kF16)),
              transposed(zero_points(scheme, ".qzeros", Unpack::kRows)),
              {kGroupIndex, {".g_idx"}, DType::kI32}};
    case WeightFormat::kAwq:
      return {{kWeight, {".qweight"}, DType::kI32, 8, 1, true, Unpack::kAwqWords},
              transposed(scale_part(scheme, {".scales"}, DType::kF16)),
              transposed(zero_points(scheme, ".qzeros", Unpack::kAwqRows))};
    case WeightFormat::kMxfp4Fused:
      return {{kWeight, {"_blocks"}, DType::kU8, 1, 2}, {kScale, {"_scales"}, DType::kU8, 1, 32}};
    case WeightFormat::kMxfp4:
      return {{kWeight, {".weight_packed", ".weight"}, DType::kU8, 1, 2},
              {kScale, {".weight_scale", ".weight_scale_inv", ".scale"}, DType::kU8, 1, 32}};
    case WeightFormat::kMxfp8:
      return {{kWeight, {".weight"}, DType::kF8E4M3},
              {kScale, {".weight_scale", ".weight_scale_inv", ".scale"}, DType::kU8, 1, 32}};
    case WeightFormat::kNvfp4:
    case WeightFormat::kNvfp4Packed: {
      const bool is_packed = scheme.stored == WeightFormat::kNvfp4Packed;
      parts = {
          {kWeight, {is_packed ? ".weight_packed" : ".weight"}, DType::kU8, 1, 2},
          {kScale, {".weight_scale"}, DType::kF8E4M3, 1, 16},
          {kGlobalScale, {is_packed ? ".weight_global_scale" : ".weight_scale_2"}, DType::kF32}};
      if (scheme.has_input_scales()) {
        parts.push_back({kInputScale, {kInputScaleNames[is_packed ? 2 : 0]}, DType::kF32});
      }
      return parts;
    }
  }
  return {};
}

std::string computed_as(const WeightScheme& scheme, bool quantizes_activations) {
  const bool acts = quantizes_activations && scheme.quantizes_activations();
  if (!scheme.format) {
    return "none";
  }
  switch (*scheme.format) {
    case QuantFormat::kFp8:
      return fmt::format("fp8_w8{}{}", acts ? "a8" : "a16",
                         scheme.group.is_per_token() ? "_channel" : "");
    case QuantFormat::kInt8:
      return fmt::format("int8_w8{}", acts ? "a8" : "a16");
    case QuantFormat::kInt4:
      return "int4_w4a16";
    case QuantFormat::kMxfp8:
      return acts ? "mxfp8" : "mxfp8_w8a16";
    default:
      return fmt::format("{}{}", moebius::name(*scheme.format), acts ? "" : "_w4a16");
  }
}

std::span<const StoredFormat> stored_formats() {
  return kStoredFormats;
}

std::vector<std::string> stored_formats_table() {
  std::vector<std::string> lines = {
      "| checkpoint (`quant_method`) | tensors of a module | becomes |", "| --- | --- | --- |"};
  for (const StoredFormat& format : kStoredFormats) {
    lines.push_back(
        fmt::format("| {} | {} | {} |", format.checkpoints, format.tensors, format.becomes));
  }
  return lines;
}

}  // namespace moebius::checkpoint
