// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// WeightScheme: how a checkpoint stores a weight [N, K]: the tensors that belong to it, with their
// dtypes and shapes, and what they become.  The loader reads by this table, and make_model() writes
// by it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moebius/quant_config.h"

namespace moebius::checkpoint {

// Which tensors hold a weight.  stored_formats() describes each.
enum class WeightFormat : uint8_t {
  kFloat,       // bf16, f16 or f32
  kFp8Block,    // e4m3, a scale per block
  kFp8Channel,  // e4m3, a scale per row
  kFp8Tensor,   // e4m3, one scale
  kInt8,        // i8, a scale per row or group
  kPackedInt,   // compressed-tensors: words along K
  kGptq,        // words along K, transposed
  kAwq,         // words along N, transposed and interleaved
  kMxfp4Fused,  // gpt-oss: [E, N, K/32, 16]
  kMxfp4,
  kMxfp8,
  kNvfp4,        // ModelOpt
  kNvfp4Packed,  // compressed-tensors: global scales are reciprocals
};

// How the file wants activations quantized.
enum class ActivationScheme : uint8_t {
  kNone,
  kPerToken,       // dynamic
  kPerTensor,      // static: the file has input scales
  kPerBlock,       // dynamic, in groups as wide as the weights' blocks
  kPerBlockUe8m0,  // the same with power-of-two scales
  kMx,             // dynamic, in the weights' mx format
  kNvfp4,          // groups are dynamic; the file has global scales
  kNvfp4Dynamic,   // all scales are dynamic
};

struct WeightScheme {
  WeightFormat stored = WeightFormat::kFloat;
  std::string name = "none";          // ModelInfo::quant_method
  std::optional<QuantFormat> format;  // what it becomes; nullopt: not quantized
  // What shares a scale: {rows, cols} of blocks, {1, g}, or per token, which is per row.
  GroupShape group = GroupShape::per_token();
  bool has_zero_points = false;
  int zero_point_offset = 0;  // is added to stored zero points: 1 for GPTQ's first version
  ActivationScheme activations = ActivationScheme::kNone;

  bool quantizes_activations() const { return activations != ActivationScheme::kNone; }
  bool has_input_scales() const {
    return activations == ActivationScheme::kPerTensor || activations == ActivationScheme::kNvfp4;
  }
  bool operator==(const WeightScheme&) const = default;
};

enum class PartRole : uint8_t {
  kWeight,
  kScale,
  kZeroPoint,
  kWeightShape,  // i64 [2] = N, K
  kGroupIndex,   // i32 [K], the group of each column; may be missing
  kGlobalScale,  // f32, one per module
  kInputScale,   // f32, one per module
};

// What is done to stored elements.
enum class Unpack : uint8_t {
  kNone,
  kFlipSigns,  // bytes that are codes plus 128 become signed ones, and signed ones unsigned
  kAwqWords,   // a word holds 8 rows of a column, in AWQ's order; they become rows of nibbles
  kRows,       // a word holds zero points of 8 rows (4 where they have 8 bits)
  kAwqRows,    // the same in AWQ's order
};

struct StoredPart {
  PartRole role = PartRole::kWeight;
  // After the module's name.  Publishers spell some in several ways: the first one that the file
  // has counts, and the first one of all where it has none.
  std::vector<std::string_view> suffixes;
  // The dtype in the file; a float type of 16 or 32 bits stands for all of them, and also for e8m0
  // where it is that of a scale.
  DType dtype = DType::kBF16;
  // How many rows and columns of the weight one stored element covers; 0 stands for all of them.  A
  // matrix part has the shape [num_units(N, row_unit), num_units(K, col_unit)].
  int64_t row_unit = 1;
  int64_t col_unit = 1;
  bool is_transposed = false;  // the file has [columns, rows]
  Unpack unpack = Unpack::kNone;

  bool is_matrix() const { return role <= PartRole::kZeroPoint; }
};

// The number of stored elements that cover `total` elements, `unit` each.
int64_t num_units(int64_t total, int64_t unit);

// The parts of a weight.  float_dtype is the dtype of unquantized weights, and that of scales where
// the format leaves it open.
std::vector<StoredPart> stored_parts(const WeightScheme& scheme, DType float_dtype);

// Whether a tensor of this name is a static scale of activations.
bool is_input_scale(std::string_view tensor);

// The scheme in the words of load_quant_schemes(), such as "fp8_w8a8_channel"; "none" if it is not
// quantized.  Without quantizes_activations its activations are not.
std::string computed_as(const WeightScheme& scheme, bool quantizes_activations);

// What the loader reads, for the documentation.
struct StoredFormat {
  WeightFormat stored;
  std::string_view checkpoints;  // methods of quantization_config
  std::string_view tensors;      // after the module's name
  std::string_view becomes;      // what the experts compute with
};
std::span<const StoredFormat> stored_formats();
// The table of docs/formats.md, in lines.
std::vector<std::string> stored_formats_table();

}  // namespace moebius::checkpoint
