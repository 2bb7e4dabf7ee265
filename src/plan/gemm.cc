// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/gemm.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "experts/expected_rows.h"
#include "quant/decoded_room.h"
#include "quant/group_rule.h"

namespace moebius::plan {

namespace {

constexpr int64_t kBlock = 128;    // of fp8 scales, and the columns of gate in a tile
constexpr int64_t kMultiple = 64;  // of N and K
constexpr double kManyRows = std::numeric_limits<double>::infinity();

// Blocks of a row with scales that stay apart from the elements; 0: the row has one, at most.
int64_t decoded_blocks(const QuantizeSpec& weights, int64_t k) {
  const int64_t block = weights.group.col;
  return block < 1 || quant::scaled_codes_fit_bf16(weights.format) ? 0 : (k + block - 1) / block;
}

// bf16 holds the elements but for a factor of their column or of blocks of it.
bool is_exact_in_bf16(const QuantizeSpec& weights) {
  return quant::scaled_codes_fit_bf16(weights.format) || weights.group.col < 1 ||
         weights.group.col % quant::kDecodedStep == 0;
}

// Codes of 4 or 8 bits, groups of a power of two.
bool fits_registers(const QuantizeSpec& weights) {
  const auto group = static_cast<uint64_t>(std::max<int64_t>(weights.group.col, 1));
  return bits(storage_dtype(weights.format)) % 4 == 0 && std::has_single_bit(group);
}

bool has_sizes_of_sm90(const LayerShape& l, int64_t intermediate) {
  return l.hidden % kMultiple == 0 && intermediate % kMultiple == 0;
}

}  // namespace

GemmKind gemm_kind(const Deployment& d, int64_t intermediate, double rows_of_expert) {
  const LayerShape& l = d.layer;
  const auto& weights = d.formats.weights;
  const auto& rows = d.formats.activations;
  if (rows && rows->format == QuantFormat::kInt8) {
    return GemmKind::kInt8;
  }
  if (l.dtype == DType::kF32) {
    return GemmKind::kF32;
  }
  if (l.dtype != DType::kBF16) {
    return GemmKind::kCoded;
  }
  if (!weights) {
    return GemmKind::kBF16;
  }
  bool takes_rows = true;
  if (rows && rows->format == QuantFormat::kFp8) {
    const bool has_blocks = rows->group == GroupShape{1, kBlock} &&
                            weights->group == GroupShape{kBlock, kBlock} &&
                            (!l.is_gated || intermediate % kBlock == 0);
    if (has_blocks) {
      return GemmKind::kFp8Blocks;
    }
    takes_rows = rows->group.col < 1 && weights->format == QuantFormat::kFp8;
  }
  if (!takes_rows || !is_exact_in_bf16(*weights) || !has_sizes_of_sm90(l, intermediate)) {
    return GemmKind::kCoded;
  }
  const auto pays_from = static_cast<double>(quant::decoded_rows(weights->format));
  const bool has_few = d.device.is_cuda() && rows_of_expert < pays_from;
  return has_few && fits_registers(*weights) ? GemmKind::kRegisters : GemmKind::kDecoded;
}

bool activates_in_gemm1(const Deployment& d, int64_t intermediate, double rows) {
  if (!d.device.is_cuda() || !d.layer.is_gated || intermediate % kBlock != 0 ||
      !has_sizes_of_sm90(d.layer, intermediate)) {
    return false;
  }
  const GemmKind kind = gemm_kind(d, intermediate, rows);
  const bool stores_bf16 = kind == GemmKind::kBF16 || kind == GemmKind::kDecoded;
  return kind == GemmKind::kFp8Blocks || (stores_bf16 && !d.formats.activations);
}

int64_t widened_bytes(const Deployment& d, int64_t intermediate, int64_t elements) {
  const auto& rows = d.formats.activations;
  const bool widens = d.device.is_cuda() && rows && rows->format == QuantFormat::kFp8 &&
                      gemm_kind(d, intermediate, kManyRows) == GemmKind::kDecoded;
  return widens ? elements : 0;
}

// Why 67: an element takes 0.304, 0.388 and 0.480 ps in tiles of 16, 48 and 64 rows, means of the
// formats in docs/performance/gpu_experts.md; so 0.0037 ps a row, and 67 times that for itself.
double rows_in_registers(double rows) {
  constexpr double kDecoding = 67;
  const int tile = few_rows_tile(static_cast<int64_t>(rows));
  return std::ceil(rows / tile) * (tile + kDecoding);
}

int64_t decoded_bytes(const Deployment& d, int64_t num_experts, int64_t intermediate, double rows) {
  if (!d.device.is_cuda() || gemm_kind(d, intermediate, rows) != GemmKind::kDecoded) {
    return 0;
  }
  const LayerShape& l = d.layer;
  const auto of_matrix = [&](int64_t n, int64_t k) {
    return quant::decoded_bytes(num_experts, n, k, decoded_blocks(*d.formats.weights, k));
  };
  return std::max(of_matrix(l.w1_rows(intermediate), l.hidden), of_matrix(l.hidden, intermediate));
}

}  // namespace moebius::plan
