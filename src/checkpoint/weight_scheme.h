// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// WeightScheme: how a checkpoint stores a weight [N, K]: the tensors that belong to it, with their
// dtypes and shapes.  The loader reads by this table, and make_model() writes by it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config_fields.h"
#include "moebius/quant_config.h"

namespace moebius::checkpoint {

// quant_format() follows this order.
enum class WeightFormat : uint8_t {
  kFloat,       // bf16, f16 or f32
  kFp8Block,    // e4m3, weight_scale_inv per block
  kFp8Channel,  // e4m3, weight_scale per row
  kInt8Channel,
  kInt4Group,
  kMxfp4,  // fused [E, N, K/32, 16]
  kNvfp4,
};

struct WeightScheme {
  WeightFormat format = WeightFormat::kFloat;
  std::string name = "none";   // ModelInfo::quant_method
  GroupShape block{1, 1};      // fp8: {rows, cols}; int4: {1, group}
  bool is_asymmetric = false;  // int4 with zero points
  bool quantizes_activations = false;
  bool has_ue8m0_activations = false;  // fp8 blocks: their scales are powers of two
};

enum class PartRole : uint8_t {
  kWeight,
  kScale,
  kZeroPoint,    // 4 bits each; a word holds those of 8 rows
  kWeightShape,  // i64 [2] = N, K
  kGlobalScale,  // f32, one per module
  kInputScale,   // f32, one per module
};

struct StoredPart {
  PartRole role = PartRole::kWeight;
  std::string_view suffix;  // after the module's name
  // The dtype in the file; a float type of 16 or 32 bits stands for all of them.
  DType stored = DType::kBF16;
  // How many rows and columns of the weight one stored element covers; 0 stands for all of them.  A
  // matrix part has the shape [num_units(N, row_unit), num_units(K, col_unit)].
  int64_t row_unit = 1;
  int64_t col_unit = 1;

  bool is_matrix() const { return role <= PartRole::kZeroPoint; }
};

// The number of stored elements that cover `total` elements, `unit` each.
int64_t num_units(int64_t total, int64_t unit);

// The parts of a weight.  float_dtype is the dtype of unquantized weights, and that of scales where
// the format leaves it open.
std::vector<StoredPart> stored_parts(const WeightScheme& scheme, DType float_dtype);

// nullopt for kFloat.
std::optional<QuantFormat> quant_format(WeightFormat format);

// Reads quantization_config.  model_type decides on methods that only some families have.  Throws
// Unsupported naming the method, and InvalidArgument for values that make no sense.
WeightScheme read_weight_scheme(const ConfigFields& quantization, std::string_view model_type);

}  // namespace moebius::checkpoint
