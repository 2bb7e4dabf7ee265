// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/experts_base.h"

#include <fmt/format.h>

#include <cstring>

#include "core/parallel.h"
#include "experts/validate.h"
#include "moebius/error.h"

namespace moebius {

namespace {

// mx and nvfp4 rows are multiplied as quantized and dequantized values; kF64 does not quantize.
bool quantizes_rows_itself(const ExpertsDesc& desc, const QuantDesc& a1) {
  return a1.format && (desc.precision == Precision::kF64 || !takes_codes(*a1.format));
}

// Whether rows can travel as codes nonetheless.  Not where the code of a row depends on its expert,
// each of which has a global scale.
bool takes_quantized_transfers(const ExpertsDesc& desc, const QuantDesc& a1) {
  if (!a1.format || takes_codes(*a1.format) || desc.precision == Precision::kF64) {
    return false;
  }
  return *a1.format != QuantFormat::kNvfp4 || !a1.alpha_or_gscale ||
         a1.alpha_or_gscale.numel() == 1;
}

ExpertsTraits traits_of(const ExpertsDesc& desc, const QuantDesc& a1, const ExpertsKind& kind) {
  const bool is_standard = desc.format == ActivationFormat::kStandard;
  ExpertsTraits traits;
  traits.name = kind.name;
  traits.weight_and_reduce = is_standard ? kind.standard_rows : WeightAndReduceKind::kDelegate;
  traits.supports_chunking = is_standard;
  traits.expects_unquantized_inputs = quantizes_rows_itself(desc, a1);
  traits.takes_quantized_transfers = takes_quantized_transfers(desc, a1);
  traits.retains_weights = desc.weight_memory == WeightMemory::kLent;
  return traits;
}

}  // namespace

ExpertsBase::ExpertsBase(const ExpertsDesc& desc,
                         ExpertWeights weights,
                         const Stream& stream,
                         const ExpertsKind& kind)
    : Experts(traits_of(desc, weights.quant.a1, kind)),
      desc_(desc),
      given_(weights),
      weights_(kind.place(std::move(weights), desc, stream)),
      quantize_a1_(weights_.quant.a1, desc.format),
      quantize_a2_(weights_.quant.a2, desc.format),
      stream_(stream) {}

ExpertsWorkspace ExpertsBase::workspace(int64_t rows) const {
  const bool is_final = traits_.weight_and_reduce == WeightAndReduceKind::kNoOp;
  const Shape output = is_final ? Shape{rows, desc_.hidden} : slots_shape(rows, desc_.hidden);
  return {{0}, output, desc_.in_dtype, scratch_bytes(rows)};
}

void ExpertsBase::apply(const ExpertsInput& input,
                        const Tensor& output,
                        const Tensor& intermediate,
                        const Tensor& scratch,
                        const Stream& stream) const {
  expect(stream.device() == stream_.device(), [&] {
    return fmt::format("stream is on {}, expected {} for experts {}", to_string(stream.device()),
                       to_string(stream_.device()), name());
  });
  validate_call(*this, input, output, intermediate, scratch, stream_.device());
  run(input, output, Scratch(scratch.bytes(), stream_.device()), stream);
}

void ExpertsBase::expect_update(const ExpertWeights& weights) const {
  given_.expect_update(desc_, weights, stream_.device());
  expect_holds(weights);
}

void ExpertsBase::update_weights(const ExpertWeights& weights, const Stream& stream) {
  expect_eq(to_string(stream.device()), to_string(stream_.device()), "device of the stream");
  expect_update(weights);
  copy_values(weights, weights_, stream);
  repack(weights, stream);
}

Shape ExpertsBase::slots_shape(int64_t rows, int64_t width) const {
  return is_batched() ? Shape{desc_.num_local_experts, rows, width}
                      : Shape{rows, desc_.topk, width};
}

RowOrder ExpertsBase::take_order(Scratch& scratch, int64_t slots) const {
  RowOrder order;
  order.expert_offsets = scratch.take<int32_t>(desc_.num_local_experts + 1);
  order.output_rows = scratch.take<int32_t>(slots);
  return order;
}

void ExpertsBase::fill_order(const ExpertsInput& input, RowOrder& order) const {
  if (is_batched()) {
    order_batched(input.expert_num_tokens, input.x.dim(1), order);
  } else {
    order_selections(input.topk_ids, input.expert_map, desc_.num_experts, desc_.num_local_experts,
                     order);
  }
  if (input.lora_ids) {
    validate_lora_ids(desc_, input.lora_ids, order);
  }
  if (input.a2_scale) {
    validate_a2_scale(input.a2_scale, order);
  }
}

void ExpertsBase::clear_skipped(const RowOrder& order,
                                const Tensor& output,
                                const Stream& stream) const {
  if (is_batched()) {
    return;
  }
  const size_t row_bytes = static_cast<size_t>(desc_.hidden * bits(desc_.in_dtype) / 8);
  constexpr int64_t kGrain = 64;
  parallel_for(stream, order.num_slots - order.num_rows, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = order.num_rows + begin; r < order.num_rows + end; ++r) {
      std::memset(output.bytes() + static_cast<size_t>(order.output_rows[r]) * row_bytes, 0,
                  row_bytes);
    }
  });
}

}  // namespace moebius
