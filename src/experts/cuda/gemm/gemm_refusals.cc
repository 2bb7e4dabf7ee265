// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/gemm/gemm_refusals.h"

#include <bit>
#include <limits>

#include "experts/cuda/activation/activation.h"
#include "experts/int8_depth.h"
#include "quant/group_rule.h"
#include "quant/row_kernels.h"

namespace moebius::cuda {

namespace {

constexpr int kMajor = 9;              // the architecture of sm90 and few_rows
constexpr int64_t kMultiple = 64;      // N and K of sm90 are multiples of it
constexpr int64_t kTileColumns = 256;  // of sm90: gate and up side by side
constexpr int64_t kMaxGroups = 1024;
constexpr int64_t kSlab = 32;  // of K, in few_rows
constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max();

// Whether the weights of a column, or of all columns, share a scale.
bool has_column_scales(const WeightFacts& w) {
  return w.grid.num_cols == 1 && (w.grid.num_rows == 1 || w.grid.group_rows == 1);
}

Refusal refusal_of_int8(const GemmDesc& desc) {
  const WeightFacts& w = desc.weights;
  if (w.has_zero_point || !has_column_scales(w)) {
    return "int8 weights have other scales than those of columns";
  }
  if (desc.rows.scales == RowScales::kNone || desc.rows.divides ||
      (desc.rows.scales == RowScales::kPerRow && !has_one_scale_per_row(desc.rows, w.k))) {
    return "int8 rows have other scales than one each";
  }
  return w.k > kMaxS8Depth ? "sums of int8 products may not fit 32 bits" : nullptr;
}

Refusal refusal_of_result(const GemmDesc& desc, Fp8Scales fp8, bool is_int8) {
  if (!desc.activation) {
    return desc.out == DType::kBF16 && desc.rows.dtype == DType::kF16
               ? "rows are f16 and the result is bf16"
               : nullptr;
  }
  if (!is_plain_silu(*desc.activation)) {
    return "the activation is not silu(gate) * up";
  }
  const bool is_fp8 = desc.codes && desc.codes->format == QuantFormat::kFp8;
  const bool by_blocks = is_fp8 && desc.codes->group == GroupShape{1, kSm90Block};
  if (desc.codes && !by_blocks && !(is_fp8 && desc.has_static_codes)) {
    return "activated rows are coded otherwise than in fp8 by 1 x 128 or by a static scale";
  }
  const bool has_kernel =
      !desc.codes ? desc.out == DType::kBF16 && fp8 != Fp8Scales::kBlocks && !is_int8
                  : desc.out == DType::kF8E4M3 &&
                        fp8 == (by_blocks ? Fp8Scales::kBlocks : Fp8Scales::kRowsAndColumns);
  if (!has_kernel) {
    return "no kernel activates such a result";
  }
  return desc.weights.n % kTileColumns != 0 ? "gate and up are not whole tiles" : nullptr;
}

bool few_rows_has_kernel(quant::Code code, DType scale) {
  switch (code) {
    case quant::Code::kU4:
    case quant::Code::kE2M1:
      return true;
    case quant::Code::kI8:
      return scale == DType::kF32;
    case quant::Code::kE4M3:
      return scale == DType::kF32 || scale == DType::kE8M0;
    default:
      return false;
  }
}

}  // namespace

bool has_one_scale_per_row(const RowFacts& rows, int64_t k) {
  return rows.scales == RowScales::kPerRow && (rows.block == 0 || rows.block >= k);
}

bool has_sizes_of_sm90(const WeightFacts& w, const CudaDeviceInfo& gpu) {
  return gpu.major == kMajor && w.n % kMultiple == 0 && w.k % kMultiple == 0 &&
         w.num_groups * w.n * w.k > 0;
}

bool has_fp8_columns(const WeightFacts& w) {
  return w.format == QuantFormat::kFp8 && has_column_scales(w) && w.num_groups <= kMaxGroups &&
         w.alignment >= 16 && w.scale_alignment >= 16 && w.bias_alignment >= 16;
}

Refusal refusal_of_sm90(const GemmDesc& desc, const CudaDeviceInfo& gpu, bool decodes) {
  const WeightFacts& w = desc.weights;
  const DType dtype = desc.rows.dtype;
  if (!has_sizes_of_sm90(w, gpu)) {
    return gpu.major != kMajor ? "the GPU is not of architecture 9.0"
                               : "N or K is not a multiple of 64";
  }
  const bool is_int8 = dtype == DType::kI8 && w.format == QuantFormat::kInt8;
  const Fp8Scales fp8 = fp8_scales(desc);
  if (is_int8) {
    if (const Refusal refusal = refusal_of_int8(desc)) {
      return refusal;
    }
  } else if (!decodes && fp8 == Fp8Scales::kNone) {
    if (desc.rows.scales != RowScales::kNone || w.format) {
      return "it takes no operands with such scales";
    }
    if ((dtype != DType::kBF16 && dtype != DType::kF16) || w.dtype != dtype) {
      return "plain operands are not both bf16, or both f16";
    }
  }
  if (const Refusal refusal = refusal_of_result(desc, fp8, is_int8)) {
    return refusal;
  }
  const int64_t end = desc.first_column + desc.num_columns;
  if (desc.num_columns > 0 && (desc.activation || desc.first_column % kSm90Block != 0 ||
                               end > w.n || (end % kSm90Block != 0 && end != w.n))) {
    return "the columns are not whole blocks of 128";
  }
  if (w.num_groups > kMaxGroups) {
    return "there are more than 1024 groups";
  }
  const int64_t row_bytes = w.k * bits(dtype) / 8;
  if (desc.num_rows > kMostRows || w.num_groups * w.n > kMostRows ||
      (desc.by_index && desc.num_rows * row_bytes > std::numeric_limits<uint32_t>::max())) {
    return "an operand has more rows than 32 bits tell";
  }
  const bool is_aligned = desc.rows_alignment >= 16 && desc.out_alignment >= 16 &&
                          w.bias_alignment >= 16 && (decodes || w.alignment >= 16) &&
                          (fp8 == Fp8Scales::kNone || w.scale_alignment >= 16);
  return is_aligned ? nullptr : "a tensor is not 16-byte aligned";
}

Refusal refusal_of_few_rows(const GemmDesc& desc, const CudaDeviceInfo& gpu) {
  const WeightFacts& w = desc.weights;
  if (gpu.major != kMajor) {
    return "the GPU is not of architecture 9.0";
  }
  if (!w.format || !few_rows_has_kernel(quant::code_of(*w.format), w.scale_dtype)) {
    return "it has no kernel for such weights";
  }
  const bool is_e2m1 = quant::code_of(*w.format) == quant::Code::kE2M1;
  const bool has_even_scales =
      w.grid.num_cols == 1 || (std::has_single_bit(static_cast<uint64_t>(w.grid.group_cols)) &&
                               (w.grid.group_cols >= kSlab || is_e2m1));
  if (!has_even_scales || w.k % kSlab != 0 || w.num_scales > std::numeric_limits<int32_t>::max()) {
    return "scales or K do not come in whole slabs of 32";
  }
  if (w.num_groups * w.n > kMostRows) {
    return "the weights have more rows than 32 bits tell";
  }
  const bool has_row_scale =
      desc.rows.scales != RowScales::kPerRow || has_one_scale_per_row(desc.rows, w.k);
  if ((desc.rows.dtype != DType::kBF16 && desc.rows.dtype != DType::kF16) || !has_row_scale) {
    return "rows are not bf16 or f16 with one scale each at most";
  }
  return desc.rows_alignment < 16 || desc.out_alignment < 4 || w.alignment < 16 ||
                 w.scale_alignment < 2
             ? "an operand is not aligned"
             : nullptr;
}

Refusal refusal_of_thin(const GemmDesc& desc) {
  const WeightFacts& w = desc.weights;
  if (desc.rows.dtype != DType::kBF16 || desc.rows.scales != RowScales::kNone || w.format) {
    return "operands are not both plain bf16";
  }
  if (desc.codes || desc.num_columns > 0) {
    return "it stores no codes, and all columns";
  }
  return w.k < kThinDepth ? "K is less than 320" : nullptr;
}

Refusal refusal_of_thin_codes(const GemmDesc& desc) {
  constexpr int64_t kSharing = 128;  // elements whose sums are scaled together
  constexpr int64_t kLane = 64;      // codes of e2m1 whose scales a lane loads at once
  const WeightFacts& w = desc.weights;
  const quant::Code code = quant::code_of(*w.format);
  const int lane_scales = w.scale_dtype == DType::kF8E4M3 ? 4 : 2;  // of a byte each
  if (quant::code_bits(code) != 4 || w.has_zero_point) {
    return "codes are not of 4 bits without zero points";
  }
  if (code == quant::Code::kU4) {
    if (w.grid.num_cols > 1 && w.grid.group_cols % kSharing != 0) {
      return "fewer than 128 elements of int4 share a scale";
    }
  } else if (w.scale_dtype != DType::kF8E4M3 && desc.rows.dtype != DType::kBF16) {
    return "f16 does not hold elements with scales of mx formats";
  } else if (w.grid.group_cols * lane_scales != kLane) {
    return "scales are not for 16 or 32 elements";
  } else if (w.k % kLane != 0 || w.scale_alignment < lane_scales) {
    return "K is not a multiple of 64, or scales are not aligned";
  }
  return desc.num_columns > 0    ? "it computes all columns"
         : w.n % 16 != 0         ? "N is not a multiple of 16"
         : w.k <= kThinCodeDepth ? "K is 256 or less"
         : w.alignment < 16      ? "weights are not 16-byte aligned"
                                 : nullptr;
}

Refusal refusal_of_mma(const GemmDesc& desc) {
  const MmaPlan plan = plan_mma(desc);
  return plan.kind == MmaPlan::Kind::kNone ? "the operands have no exact place on tensor cores"
         : plan.segment == 0               ? "scales do not come in whole steps"
                                           : nullptr;
}

}  // namespace moebius::cuda
