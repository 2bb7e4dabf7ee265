// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/gemm/expert_gemm.h"

#include <algorithm>
#include <cassert>
#include <optional>

#include "core/cuda/device.h"
#include "experts/cuda/activation/activation.h"
#include "experts/cuda/gemm/dequant/decode_weights.h"
#include "experts/cuda/gemm/grouped_gemm.h"
#include "quant/decoded_room.h"
#include "quant/scale_grid.h"

namespace moebius::cuda {

namespace {

constexpr int64_t kBlock = 128;  // of GroupedGemm's scales

bool has_block_scales(const ExpertGemm& gemm) {
  const WeightOperand& w = *gemm.w;
  const QuantDesc& desc = w.quant;
  const int64_t n = w.values.dim(1);
  const bool restarts_within_block = w.gate_rows < n && w.gate_rows % kBlock != 0;
  return !gemm.keeps_f32 && gemm.a.values.dtype() == DType::kF8E4M3 &&
         gemm.a.scales == RowScales::kPerRow && gemm.a.block == kBlock &&
         desc.format == QuantFormat::kFp8 && desc.shape == GroupShape{kBlock, kBlock} &&
         desc.scale.dtype() == DType::kF32 && desc.scale.num_dims() == 3 && !restarts_within_block;
}

// Rows [M, C] as GroupedGemm takes them.
Tensor grouped(const ExpertGemm& gemm, const Tensor& tensor) {
  const RowGroups& rows = gemm.rows;
  return rows.counts != nullptr && tensor
             ? tensor.view({rows.num_groups, rows.max_rows, tensor.dim(1)})
             : tensor;
}

// One for all columns, to multiply by.
bool has_row_scales(const RowOperand& a) {
  return a.scales == RowScales::kPerRow && a.scale.dim(1) == 1 && !a.divides;
}

// Sets the scales of int8 operands.  False: they have others than of rows and columns.
bool set_int8_scales(const ExpertGemm& gemm, GroupedGemm& out) {
  const RowOperand& a = gemm.a;
  const WeightOperand& w = *gemm.w;
  const int64_t num_groups = w.values.dim(0);
  if (w.quant.zero_point || w.quant.scale.dtype() != DType::kF32 || a.divides) {
    return false;
  }
  switch (a.scales) {
    case RowScales::kNone:
      return false;
    case RowScales::kAll:
      out.a_scale = a.scale.view({1, 1});
      break;
    case RowScales::kPerGroup:
      out.a_scale = a.scale.view({num_groups, 1, 1});
      break;
    case RowScales::kPerRow:
      if (!has_row_scales(a)) {
        return false;
      }
      out.a_scale = grouped(gemm, a.scale);
  }
  const quant::ScaleGrid grid = quant::scale_grid(w.values, w.quant, w.gate_rows);
  out.column_scale = w.quant.scale.view({num_groups, w.quant.scale.numel() / num_groups});
  return grid.num_cols == 1 && (grid.num_rows == 1 || grid.group_rows == 1);
}

// Elements of ExpertGemm::decoded for each of the groups that it has room for.
int64_t decoded_group(const WeightOperand& w) {
  return quant::decoded_group_bytes(w.values.dim(1), w.values.dim(2), decoded_blocks(w)) /
         int64_t{sizeof(BFloat16)};
}

// Room in gemm.decoded, and nothing that decoded weights cannot say.
bool decodes(const ExpertGemm& gemm) {
  return gemm.decoded && gemm.a.values.dtype() == DType::kBF16 &&
         (gemm.a.scales != RowScales::kPerRow || has_row_scales(gemm.a)) &&
         can_decode_weights(*gemm.w) && gemm.decoded.numel() >= decoded_group(*gemm.w);
}

// Room for as many groups as fit.
void set_decoded(const ExpertGemm& gemm, GroupedGemm& out) {
  const WeightOperand& w = *gemm.w;
  const int64_t n = w.values.dim(1);
  const int64_t k = w.values.dim(2);
  const int64_t blocks = decoded_blocks(w);
  const int64_t groups = std::min(w.values.dim(0), gemm.decoded.numel() / decoded_group(w));
  out.b = gemm.decoded.slice(0, groups * n * k).view({groups, n, k});
  auto* scales = reinterpret_cast<float*>(gemm.decoded.data<BFloat16>() + groups * n * k);
  const Device device = gemm.decoded.device();
  out.column_scale = Tensor::borrow(scales, {groups, n}, DType::kF32, device);
  if (blocks > 0) {
    out.b_scale = Tensor::borrow(scales + groups * n, {groups, blocks, n}, DType::kF32, device);
    out.scale_block = quant::scale_grid(w.values, w.quant, w.gate_rows).group_cols;
  }
  if (gemm.a.scales == RowScales::kPerRow) {
    out.a_scale = grouped(gemm, gemm.a.scale);
  }
}

// The same GEMM where GroupedGemm can say it; of weights that are decoded, b has room for the first
// groups.
std::optional<GroupedGemm> as_grouped_gemm(const ExpertGemm& gemm) {
  const WeightOperand& w = *gemm.w;
  GroupedGemm out;
  out.b = w.values;
  const bool has_blocks = has_block_scales(gemm);
  if (gemm.a.values.dtype() == DType::kI8 && w.quant.format == QuantFormat::kInt8) {
    if (!set_int8_scales(gemm, out)) {
      return std::nullopt;
    }
  } else if (decodes(gemm)) {
    set_decoded(gemm, out);
  } else if (!has_blocks && (gemm.a.scales != RowScales::kNone || w.quant.format)) {
    return std::nullopt;
  }
  const Device device = gemm.out.device();
  const RowGroups& rows = gemm.rows;
  const int64_t num_groups = rows.num_groups;
  const auto borrow = [&](const int32_t* data, int64_t n) {
    return Tensor::borrow(const_cast<int32_t*>(data), {n}, DType::kI32, device);
  };
  out.a = grouped(gemm, gemm.a.values);
  out.a_rows = gemm.a.index;
  out.arrivals = gemm.a.arrivals;
  out.bias = w.quant.bias;
  out.out = grouped(gemm, gemm.out);
  out.next_item = gemm.next_item;
  out.settled_groups = rows.settled;
  out.num_sms = gemm.max_sms;
  out.first_column = gemm.first_column;
  out.num_columns = gemm.num_columns;
  if (has_blocks) {
    out.a_scale = grouped(gemm, gemm.a.scale);
    out.b_scale = w.quant.scale;
  }
  if (rows.counts != nullptr) {
    out.group_counts = borrow(rows.counts, num_groups);
  } else {
    out.group_offsets = borrow(rows.offsets, num_groups + 1);
  }
  return out;
}

// Groups [begin, end) of a GEMM whose weights are decoded.
GroupedGemm groups_of(const GroupedGemm& gemm, int64_t begin, int64_t end) {
  GroupedGemm out = gemm;
  const auto cut = [&](Tensor& tensor, int64_t extra) {
    tensor = tensor ? tensor.slice(begin, end + extra) : tensor;
  };
  out.b = gemm.b.slice(0, end - begin);
  out.first_expert = begin;
  out.column_scale = gemm.column_scale.slice(0, end - begin);
  out.b_scale = gemm.b_scale ? gemm.b_scale.slice(0, end - begin) : Tensor();
  cut(out.bias, 0);
  cut(out.group_offsets, 1);
  if (gemm.group_counts) {
    cut(out.group_counts, 0);
    cut(out.a, 0);
    cut(out.a_scale, 0);
    cut(out.out, 0);
  }
  return out;
}

void run_grouped_gemm(const GroupedGemm& grouped, const ExpertGemm& gemm, const Stream& stream) {
  if (!decodes(gemm)) {
    sm90_grouped_gemm(grouped, stream);
    return;
  }
  const int64_t num_groups = gemm.w->values.dim(0);
  const int64_t at_once = grouped.b.dim(0);
  for (int64_t begin = 0; begin < num_groups; begin += at_once) {
    const GroupedGemm part = groups_of(grouped, begin, std::min(begin + at_once, num_groups));
    decode_weights(gemm, begin, part, stream);
    sm90_grouped_gemm(part, stream);
  }
}

std::optional<GroupedGemm> as_grouped_gemm(const ActivatedGemm& activated) {
  const QuantizeSpec* codes = activated.codes;
  if (!is_plain_silu(activated.activation) ||
      (codes != nullptr &&
       (codes->format != QuantFormat::kFp8 || codes->group != GroupShape{1, kBlock}))) {
    return std::nullopt;
  }
  ExpertGemm gemm = activated.gemm;
  gemm.out = activated.out.values;
  std::optional<GroupedGemm> out = as_grouped_gemm(gemm);
  if (out) {
    out->activates = true;
    if (codes != nullptr) {
      out->out_scale = activated.out.scale;
      out->power_of_two_scale = codes->power_of_two_scale;
    }
  }
  return out;
}

// The same, if it can be run.
template <typename Gemm>
std::optional<GroupedGemm> supported(const Gemm& gemm) {
  const std::optional<GroupedGemm> grouped = as_grouped_gemm(gemm);
  return grouped && sm90_grouped_gemm_supports(*grouped).ok ? grouped : std::nullopt;
}

}  // namespace

int64_t blocks_of(const ExpertGemm& gemm, int64_t per_sm, int device_index) {
  const int sms = num_sms(device_index);
  return gemm.max_sms > 0 ? std::min(gemm.max_sms, sms) : per_sm * sms;
}

int64_t decoded_elements(const WeightOperand& w, DType a, int64_t expected_rows) {
  if (a != DType::kBF16 || !can_decode_weights(w) || !sm90_takes_weights(w.values) ||
      (few_rows_takes_weights(w) &&
       expected_rows < quant::decoded_rows(*w.quant.format) * w.values.dim(0))) {
    return 0;
  }
  const Tensor& values = w.values;
  return quant::decoded_bytes(values.dim(0), values.dim(1), values.dim(2), decoded_blocks(w)) /
         int64_t{sizeof(BFloat16)};
}

bool wants_bf16_codes(const WeightOperand& w) {
  return w.quant.format == QuantFormat::kFp8 && can_decode_weights(w) &&
         sm90_takes_weights(w.values);
}

bool can_take_columns(const ExpertGemm& gemm) {
  return supported(gemm) && !decodes(gemm);
}

bool takes_index(const ExpertGemm& gemm) {
  return supported(gemm).has_value();
}

void run_expert_gemm(const ExpertGemm& gemm, const Stream& stream) {
  if (gemm.out.numel() == 0) {
    return;
  }
  if (const std::optional<GroupedGemm> grouped = supported(gemm)) {
    run_grouped_gemm(*grouped, gemm, stream);
    return;
  }
  assert(!gemm.a.index);
  if (can_few_rows_gemm(gemm)) {
    few_rows_gemm(gemm, stream);
  } else if (can_mma_gemm(gemm)) {
    mma_gemm(gemm, stream);
  } else {
    general_gemm(gemm, stream);
  }
}

bool can_run_activated_gemm(const ActivatedGemm& gemm) {
  return supported(gemm).has_value();
}

bool run_activated_gemm(const ActivatedGemm& gemm, const Stream& stream) {
  const std::optional<GroupedGemm> grouped = supported(gemm);
  if (grouped) {
    run_grouped_gemm(*grouped, gemm.gemm, stream);
  }
  return grouped.has_value();
}

}  // namespace moebius::cuda
