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

namespace moebius::cuda {

namespace {

// Views rows [M, C] as GroupedGemm takes them.
Tensor grouped(const ExpertGemm& gemm, const Tensor& tensor) {
  const RowGroups& rows = gemm.rows;
  return rows.counts != nullptr && tensor
             ? tensor.view({rows.num_groups, rows.max_rows, tensor.dim(1)})
             : tensor;
}

// The scales of int8, and of fp8 where they are not of blocks.
void set_row_and_column_scales(const ExpertGemm& gemm, GroupedGemm& out) {
  const Tensor& scale = gemm.a.scale;
  const QuantDesc& quant = gemm.w->quant;
  const int64_t num_groups = gemm.w->values.dim(0);
  out.a_scale = gemm.a.scales == RowScales::kAll        ? scale.view({1, 1})
                : gemm.a.scales == RowScales::kPerGroup ? scale.view({num_groups, 1, 1})
                                                        : grouped(gemm, scale);
  out.column_scale = quant.scale.view({num_groups, quant.scale.numel() / num_groups});
}

// Lays out the room for weights that the GEMM decodes itself: slots for as many groups as fit, and
// scales of all.  Returns whether kLeastDecodedSlots fit.
bool set_decoded_ahead(const ExpertGemm& gemm, GroupedGemm& out) {
  const WeightOperand& w = *gemm.w;
  const int64_t num_groups = w.values.dim(0);
  const int64_t n = w.values.dim(1);
  const int64_t k = w.values.dim(2);
  const WeightFacts facts = facts_of(w);
  const int64_t blocks = decoded_blocks(facts, DType::kBF16);
  const int64_t slots = decoded_ahead_slots(facts, gemm.decoded.numel());
  if (slots < kLeastDecodedSlots) {
    return false;
  }
  const Device device = gemm.decoded.device();
  out.b = gemm.decoded.slice(0, slots * n * k).view({slots, n, k});
  auto* words = reinterpret_cast<float*>(gemm.decoded.data<BFloat16>() + slots * n * k);
  const auto take = [&](const Shape& shape, DType dtype) {
    const Tensor taken = Tensor::borrow(words, shape, dtype, device);
    words += taken.numel();
    return taken;
  };
  out.column_scale = take({num_groups, n}, DType::kF32);
  if (blocks > 0) {
    out.b_scale = take({num_groups, blocks, n}, DType::kF32);
    out.scale_block = facts.grid.group_cols;
  }
  out.decode_counters = take({num_decode_counters(num_groups)}, DType::kI32);
  return true;
}

// Lays out the room for decoded weights, for as many groups as fit.
void set_decoded(const ExpertGemm& gemm, GroupedGemm& out) {
  const WeightOperand& w = *gemm.w;
  const int64_t n = w.values.dim(1);
  const int64_t k = w.values.dim(2);
  const WeightFacts facts = facts_of(w);
  const DType dtype = gemm.a.values.dtype();
  const int64_t blocks = decoded_blocks(facts, dtype);
  const int64_t groups =
      std::min(w.values.dim(0), gemm.decoded.numel() / decoded_group_elements(facts, dtype));
  const Device device = gemm.decoded.device();
  out.b = Tensor::borrow(gemm.decoded.raw(), {groups, n, k}, dtype, device);
  auto* scales = reinterpret_cast<float*>(gemm.decoded.data<BFloat16>() + groups * n * k);
  out.column_scale = Tensor::borrow(scales, {groups, n}, DType::kF32, device);
  if (blocks > 0) {
    out.b_scale = Tensor::borrow(scales + groups * n, {groups, blocks, n}, DType::kF32, device);
    out.scale_block = facts.grid.group_cols;
  }
}

// The same GEMM for Multiplier::kSm90.  Where weights are decoded, b has room for the first groups.
GroupedGemm as_grouped_gemm(const ExpertGemm& gemm, const GemmPlan& plan) {
  const WeightOperand& w = *gemm.w;
  GroupedGemm out;
  out.b = w.values;
  out.fetch = gemm.fetch;
  out.evicts_b = plan.evicts_weights;
  out.b_maps =
      w.maps != nullptr && !plan.decodes() ? &w.maps->of(plan.evicts_weights).sm90 : nullptr;
  if (gemm.a.values.dtype() == DType::kI8 || plan.fp8 == Fp8Scales::kRowsAndColumns) {
    set_row_and_column_scales(gemm, out);
  } else if (plan.decodes()) {
    if (!plan.decodes_ahead || !set_decoded_ahead(gemm, out)) {
      set_decoded(gemm, out);
    }
    if (gemm.a.scales == RowScales::kPerRow) {
      out.a_scale = grouped(gemm, gemm.a.scale);
    }
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
  if (plan.fp8 == Fp8Scales::kBlocks) {
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

void run_thin(const ExpertGemm& gemm, const GemmPlan& plan, const Stream& stream) {
  (gemm.w->quant.format ? thin_codes_gemm : thin_gemm)(gemm, plan, stream);
}

void run_sm90(const ExpertGemm& gemm,
              const GroupedGemm& grouped,
              const GemmPlan& plan,
              const Stream& stream) {
  if (!plan.decodes()) {
    sm90_grouped_gemm(grouped, stream);
    return;
  }
  if (grouped.decode_counters) {
    decode_first_group(gemm, grouped, stream);
    const DecodeArgs args = decode_args(gemm, grouped);
    GroupedGemm decoding = grouped;
    decoding.decode = &args;
    sm90_grouped_gemm(decoding, stream);
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

int64_t expected_rows_of(const ExpertGemm& gemm) {
  return gemm.expected_rows > 0 ? gemm.expected_rows : gemm.out.dim(0);
}

// The alignment of an address, 16 at most; 16 where there is no tensor.
int alignment_of(const Tensor& tensor) {
  const auto address = tensor ? reinterpret_cast<uintptr_t>(tensor.raw()) : 0;
  return address % 16 == 0 ? 16 : static_cast<int>(address & -address);
}

GemmPlan plan_of_desc(const GemmDesc& desc, const ExpertGemm& gemm) {
  return choose_gemm(desc, cuda_device_info(gemm.out.device().index), expected_rows_of(gemm));
}

}  // namespace

WeightMaps::ByLines::ByLines(const Tensor& values, Lines lines)
    : thin(values.dtype() == DType::kBF16 ? thin_map(values, lines) : CUtensorMap{}),
      sm90(column_maps(values, lines)) {}

int64_t blocks_of(const ExpertGemm& gemm, int64_t per_sm, int device_index) {
  const int sms = num_sms(device_index);
  return gemm.max_sms > 0 ? std::min(gemm.max_sms, sms) : per_sm * sms;
}

bool has_planned_alignment(const Tensor& tensor) {
  return alignment_of(tensor) >= GemmDesc{}.rows_alignment;
}

WeightFacts facts_of(const WeightOperand& w) {
  WeightFacts facts;
  facts.num_groups = w.values.dim(0);
  facts.n = w.values.dim(1);
  facts.k = w.values.dim(2);
  facts.gate_rows = w.gate_rows;
  facts.dtype = w.values.dtype();
  facts.alignment = alignment_of(w.values);
  facts.bias_alignment = alignment_of(w.quant.bias);
  facts.format = w.quant.format;
  if (facts.format) {
    facts.shape = w.quant.shape;
    facts.grid = quant::scale_grid(w.values, w.quant, w.gate_rows);
    facts.scale_dtype = w.quant.scale.dtype();
    facts.scale_dims = w.quant.scale.num_dims();
    facts.num_scales = w.quant.scale.numel();
    facts.has_zero_point = w.quant.zero_point.defined();
    facts.scale_alignment = alignment_of(w.quant.scale);
  }
  return facts;
}

GemmDesc desc_of(const ExpertGemm& gemm) {
  const RowOperand& a = gemm.a;
  GemmDesc desc;
  desc.rows = {a.codes ? DType::kBF16 : a.values.dtype(), a.scales, a.block, a.divides};
  desc.weights = facts_of(*gemm.w);
  desc.out = gemm.out.dtype();
  desc.keeps_f32 = gemm.keeps_f32;
  desc.may_decode = gemm.decoded && desc.weights.format &&
                    gemm.decoded.numel() >= decoded_group_elements(desc.weights, desc.rows.dtype);
  desc.must_decode = desc.may_decode;
  desc.is_fetched = gemm.is_fetched;
  desc.most_thin_code_rows = gemm.most_thin_code_rows;
  desc.forced = gemm.forced;
  desc.decodes_ahead = gemm.decodes_ahead;
  desc.num_rows = desc.weights.k > 0 ? a.values.numel() / desc.weights.k : 0;
  desc.by_index = a.index.defined();
  desc.first_column = gemm.first_column;
  desc.num_columns = gemm.num_columns;
  desc.rows_alignment = alignment_of(a.values);
  desc.out_alignment = alignment_of(gemm.out);
  return desc;
}

GemmPlan plan_of(const ExpertGemm& gemm) {
  return plan_of_desc(desc_of(gemm), gemm);
}

GemmPlan plan_of(const ActivatedGemm& activated) {
  ExpertGemm gemm = activated.gemm;
  gemm.out = activated.out.values;
  GemmDesc desc = desc_of(gemm);
  desc.activation = activated.activation;
  if (activated.codes != nullptr) {
    desc.codes = *activated.codes;
    desc.has_static_codes = activated.codes->group.is_per_tensor();
  }
  return plan_of_desc(desc, gemm);
}

void run_expert_gemm(const ExpertGemm& gemm, const Stream& stream) {
  if (gemm.out.numel() == 0) {
    return;
  }
  const GemmPlan plan = plan_of(gemm);
  assert(!gemm.a.index || plan.takes_index());
  assert(!gemm.a.activation || plan.takes_unactivated());
  assert(!gemm.a.codes || plan.takes_uncoded(gemm.w->quant.format, *gemm.a.codes));
  switch (plan.multiplier) {
    case Multiplier::kThin:
      return run_thin(gemm, plan, stream);
    case Multiplier::kSm90:
      return run_sm90(gemm, as_grouped_gemm(gemm, plan), plan, stream);
    case Multiplier::kFewRows:
      return few_rows_gemm(gemm, plan, stream);
    case Multiplier::kMma:
      return mma_gemm(gemm, stream);
    case Multiplier::kGeneral:
      return general_gemm(gemm, stream);
  }
}

bool run_activated_gemm(const ActivatedGemm& activated, const Stream& stream) {
  const GemmPlan plan = plan_of(activated);
  if (!plan.activates || plan.quantizes != (activated.codes != nullptr)) {
    return false;
  }
  ExpertGemm gemm = activated.gemm;
  gemm.out = activated.out.values;
  if (plan.multiplier == Multiplier::kThin) {
    run_thin(gemm, plan, stream);
    return true;
  }
  GroupedGemm grouped = as_grouped_gemm(gemm, plan);
  grouped.activates = true;
  if (activated.codes != nullptr) {
    grouped.out_scale = activated.out.scale;
    grouped.power_of_two_scale = activated.codes->power_of_two_scale;
  }
  run_sm90(gemm, grouped, plan, stream);
  return true;
}

}  // namespace moebius::cuda
