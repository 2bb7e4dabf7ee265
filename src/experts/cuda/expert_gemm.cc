// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/expert_gemm.h"

#include <algorithm>
#include <optional>

#include "core/cuda/device.h"
#include "experts/cuda/activation.h"
#include "experts/cuda/grouped_gemm.h"

namespace moebius::cuda {

namespace {

constexpr int64_t kBlock = 128;  // of GroupedGemm's scales

bool has_block_scales(const ExpertGemm& gemm) {
  const WeightOperand& w = *gemm.w;
  const QuantDesc& desc = w.quant;
  const int64_t n = w.values.dim(1);
  const bool restarts_within_block = w.gate_rows < n && w.gate_rows % kBlock != 0;
  return gemm.a.values.dtype() == DType::kF8E4M3 && gemm.a.scales == RowScales::kPerRow &&
         gemm.a.block == kBlock && desc.format == QuantFormat::kFp8 &&
         desc.shape == GroupShape{kBlock, kBlock} && desc.scale.dtype() == DType::kF32 &&
         desc.scale.num_dims() == 3 && !restarts_within_block;
}

// The same GEMM where GroupedGemm can say it.
std::optional<GroupedGemm> as_grouped_gemm(const ExpertGemm& gemm) {
  const WeightOperand& w = *gemm.w;
  const bool is_plain = gemm.a.scales == RowScales::kNone && !w.quant.format;
  const bool is_block = !is_plain && has_block_scales(gemm);
  if (!is_plain && !is_block) {
    return std::nullopt;
  }
  const Device device = gemm.out.device();
  const RowGroups& rows = gemm.rows;
  const int64_t num_groups = rows.num_groups;
  const auto borrow = [&](const int32_t* data, int64_t n) {
    return Tensor::borrow(const_cast<int32_t*>(data), {n}, DType::kI32, device);
  };
  const auto grouped = [&](const Tensor& tensor) {
    return rows.counts != nullptr && tensor
               ? tensor.view({num_groups, rows.max_rows, tensor.dim(1)})
               : tensor;
  };
  GroupedGemm out;
  out.a = grouped(gemm.a.values);
  out.b = w.values;
  out.bias = w.quant.bias;
  out.out = grouped(gemm.out);
  out.next_item = gemm.next_item;
  out.num_sms = gemm.max_sms;
  if (is_block) {
    out.a_scale = grouped(gemm.a.scale);
    out.b_scale = w.quant.scale;
  }
  if (rows.counts != nullptr) {
    out.group_counts = borrow(rows.counts, num_groups);
  } else {
    out.group_offsets = borrow(rows.offsets, num_groups + 1);
  }
  return out;
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

}  // namespace

int64_t blocks_of(const ExpertGemm& gemm, int64_t per_sm, int device_index) {
  const int sms = num_sms(device_index);
  return gemm.max_sms > 0 ? std::min(gemm.max_sms, sms) : per_sm * sms;
}

void run_expert_gemm(const ExpertGemm& gemm, const Stream& stream) {
  if (gemm.out.numel() == 0) {
    return;
  }
  const std::optional<GroupedGemm> grouped = as_grouped_gemm(gemm);
  if (grouped && sm90_grouped_gemm_supports(*grouped).ok) {
    sm90_grouped_gemm(*grouped, stream);
  } else if (can_mma_gemm(gemm)) {
    mma_gemm(gemm, stream);
  } else {
    general_gemm(gemm, stream);
  }
}

bool can_run_activated_gemm(const ActivatedGemm& gemm) {
  const std::optional<GroupedGemm> grouped = as_grouped_gemm(gemm);
  return grouped && sm90_grouped_gemm_supports(*grouped).ok;
}

void run_activated_gemm(const ActivatedGemm& gemm, const Stream& stream) {
  sm90_grouped_gemm(*as_grouped_gemm(gemm), stream);
}

}  // namespace moebius::cuda
