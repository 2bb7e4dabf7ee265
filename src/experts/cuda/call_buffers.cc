// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/call_buffers.h"

#include <algorithm>
#include <cstddef>

namespace moebius::cuda {

CallBuffers::CallBuffers(const BufferFacts& facts, const RowPlan& plan, Scratch& scratch) {
  const ExpertsDesc& d = facts.desc;
  const int64_t rows = plan.rows;
  const int64_t slots = plan.slots;
  next_item = scratch.take({2}, DType::kI32);
  if (!facts.is_batched()) {
    expert_offsets = scratch.take({d.num_local_experts + 1}, DType::kI32);
    row_of_slot = scratch.take({rows, d.topk}, DType::kI32);
    token_of_row = scratch.take({slots}, DType::kI32);
  }
  // GEMM2's result lies where GEMM1's operand was.
  Scratch operand_size;
  Scratch result_size;
  take_operand(facts, plan, operand_size);
  take_result(facts, plan, result_size);
  auto* shared = scratch.take<std::byte>(std::max(operand_size.bytes(), result_size.bytes()));
  Scratch operand(shared, facts.device);
  Scratch result(shared, facts.device);
  take_operand(facts, plan, operand);
  take_result(facts, plan, result);

  expected = plan.expected;
  fuses_activation = plan.gemm1.activates;
  fuses_codes = plan.gemm1.quantizes;
  const bool is_plain = !fuses_activation && d.num_adapters == 0;
  gemm1_codes = is_plain && facts.a1.active() && facts.a1.can_defer(d.in_dtype) &&
                (facts.is_batched() || !facts.a1.needs_groups()) &&
                plan.gemm1.takes_uncoded(facts.w1, facts.a1.spec());
  const bool takes_unactivated = is_plain && plan.gemm2.takes_unactivated();
  gemm2_activates = takes_unactivated && !facts.a2.active();
  gemm2_codes = takes_unactivated && facts.a2.active() && facts.a2.can_defer(d.in_dtype) &&
                plan.gemm2.takes_uncoded(facts.w2, facts.a2.spec());
  gemm1 = scratch.take({plan.is_always_fused ? 0 : slots, d.w1_rows()}, d.in_dtype);
  const bool needs_act = !facts.activates_to_codes() || (fuses_activation && !fuses_codes);
  // Batched rows always have room for GEMM1's result, which it does not store where it activates.
  Scratch room_of_gemm1(gemm1.bytes(), facts.device);
  Scratch& room = facts.is_batched() && facts.activates_to_codes() ? room_of_gemm1 : scratch;
  act = room.take({needs_act ? slots : 0, d.intermediate}, d.in_dtype);
  if (facts.a2.active()) {
    hidden = facts.a2.take(scratch, slots, d.intermediate);
  } else {
    hidden.values = act;
  }
  const Tensor decoded = scratch.take({plan.decoded_elements}, DType::kBF16);
  w1_decoded = plan.gemm1.decodes() ? decoded : Tensor();
  w2_decoded = plan.gemm2.decodes() ? decoded : Tensor();
  if (d.num_adapters > 0) {
    sums = scratch.take<float>(slots * std::max(d.w1_rows(), d.hidden));
    shrunk = scratch.take<float>(slots * facts.lora_halves * d.lora_rank);
  }
}

void CallBuffers::take_order(const SlotOrder& order) {
  next_item = order.counters;
  expert_offsets = order.expert_offsets;
  row_of_slot = order.row_of_slot;
  token_of_row = order.token_of_row;
}

void CallBuffers::take_operand(const BufferFacts& facts, const RowPlan& plan, Scratch& scratch) {
  const ExpertsDesc& d = facts.desc;
  const int64_t slots = plan.slots;
  const RowCoder& a1 = facts.a1;
  if (a1.active()) {
    const bool is_in_place = facts.is_batched() || a1.needs_groups();
    coded = a1.take(scratch, is_in_place ? slots : plan.rows, d.hidden);
  }
  if (facts.is_batched()) {
    return;
  }
  if (a1.active() && !a1.needs_groups()) {
    gathered = a1.take(scratch, slots, d.hidden);
  } else {
    gathered.values = scratch.take({slots, d.hidden}, d.in_dtype);
  }
}

void CallBuffers::take_result(const BufferFacts& facts, const RowPlan& plan, Scratch& scratch) {
  gemm2 =
      scratch.take({facts.is_batched() ? 0 : plan.slots, facts.desc.hidden}, facts.desc.in_dtype);
}

}  // namespace moebius::cuda
