// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Computes one micro-batch of a ModularKernel: it sends rows to their experts, lets those compute,
// and sends the results back, in as many parts as the plan of the call says.
#include <utility>
#include <vector>

#include "layer/kernel_checks.h"
#include "layer/kernel_state.h"
#include "layer/rows/row_ops.h"
#include "layer/transfer.h"

namespace moebius {

Task ModularKernel::State::run_microbatch(Microbatch microbatch, Turns& turns) {
  const CallContext& context = microbatch.context;
  const KernelInput& input = microbatch.input;
  SharedSchedule shared(
      {shared_experts.get(), &experts->quant(), input.hidden, microbatch.shared_output, &beside,
       input.options ? plan.options.chunk_tokens : 0},
      plan, microbatch.index, context);

  CallContext way_there = context;
  rows_came_in_waves = false;
  if (plan.early_rows > 0) {
    way_there.transfers = transfers.of(context.stream);
  }
  turns.before_send();
  const Pending<PrepareResult> sent = start_prepare(input, shared.own_rows(), way_there);
  shared.prepare_sent();
  // Why a name: GCC 12 destroys parts of a temporary twice where it is yielded.
  Travel there{timed("prepare", sent.hook, way_there), shared.during_prepare()};
  co_yield std::move(there);

  const PrepareResult prepared = finish_prepare(input, sent, way_there);
  rows_came_in_waves = static_cast<bool>(prepared.arrivals);
  const bool experts_count = experts_count_rows(prepared);
  const bool counts_beside = plan.counts_beside && (!experts_count || input.own_load);
  const Event arrived = rows_came_in_waves ? prepared.arrivals.complete
                        : counts_beside    ? context.stream.record()
                                           : Event();
  if (!plan.counts_beside && !experts_count) {
    loads.count(microbatch.index, prepared, map_of(input), context.stream);
  }
  FinalizeInput done;
  done.output = microbatch.output;
  done.topk_ids = prepared.topk_ids;
  done.topk_weights = prepared.topk_weights;
  done.apply_router_weight_on_input = input.apply_router_weight_on_input;
  done.weight_and_reduce = weight_and_reduce.get();
  if (input.add_shared && plan.finalize_adds_shared && shared.is_done_before_finalize()) {
    done.addend = microbatch.shared_output;
  }
  CallContext back = context;
  Pending<void> returned;
  combine_parts = plan.num_microbatches == 1 && prepared.most_rows
                      ? plan.combine_parts(*prepared.most_rows)
                      : 1;
  if (combine_parts > 1) {
    if (plan.transfers_beside) {
      back.transfers = transfers.of(context.stream);
    }
    returned = compute_in_parts(microbatch, prepared, done, shared, back);
  } else {
    done.expert_output = compute(microbatch, prepared, microbatch.output, {});
    turns.before_send();
    shared.results_computed();
    returned = start_finalize(done, shared, context);
  }
  shared.finalize_sent();
  if (counts_beside) {
    const Stream& stream = beside.of(context.stream);
    stream.wait(arrived);
    LoadCounter::count_own(input, stream);
    if (!experts_count) {
      loads.count(microbatch.index, prepared, map_of(input), stream);
    }
  }
  Travel home{timed("finalize", returned.hook, back), shared.during_finalize()};
  co_yield std::move(home);

  {
    const Profile::Span span = transfer_span("finalize", back);
    returned.receive();
  }
  shared.join(context.stream);
  if (input.add_shared && !done.addend) {
    add_rows(microbatch.output, microbatch.shared_output, microbatch.output, context.stream);
  }
  if (counts_beside) {
    beside.join(context.stream);
  }
}

Pending<PrepareResult> ModularKernel::State::start_prepare(const KernelInput& input,
                                                           OwnRows* own_rows,
                                                           const CallContext& context) {
  PrepareInput request{
      .hidden = input.hidden,
      .topk_ids = input.topk_ids,
      .topk_weights = input.topk_weights,
      .router_logits = input.router_logits,
      .num_experts = experts->desc().num_experts,
      .expert_map = input.expert_map,
      .apply_router_weight_on_input = input.apply_router_weight_on_input,
      .quant = &experts->quant(),
      .defer_input_quant = defers_input_quant(*experts),
      .may_quantize_transfers = experts->traits().takes_quantized_transfers,
      .lora_ids = lora_ids_to_send(input, context),
      .extras = input.a2_scale ? std::vector<Tensor>{input.a2_scale} : std::vector<Tensor>(),
      .own_rows = own_rows,
      .early_rows = plan.early_rows,
      .most_early_rows = plan.options.chunk_tokens};  // chunks await all rows
  if (!prepare_finalize->traits().is_async && !context.transfers) {
    return {nullptr, [this, request = std::move(request), context] {
              return prepare_finalize->prepare(request, context);
            }};
  }
  begin_after_compute(context);
  const Profile::Span span = transfer_span("prepare", context);
  return prepare_finalize->traits().is_async
             ? prepare_finalize->prepare_async(request, context)
             : start_all<PrepareResult>(context, [&](const CallContext& own) {
                 return prepare_finalize->prepare(request, own);
               });
}

// Sends results back, on the stream that `back` names.
Pending<void> ModularKernel::State::start_finalize(const FinalizeInput& done,
                                                   const SharedSchedule& shared,
                                                   const CallContext& back) {
  if (done.addend) {
    shared.join(transfer_stream(back));
  }
  begin_after_compute(back);
  const Profile::Span span = transfer_span("finalize", back);
  return prepare_finalize->traits().is_async ? prepare_finalize->finalize_async(done, back)
                                             : start_all<void>(back, [&](const CallContext& own) {
                                                 prepare_finalize->finalize(done, own);
                                               });
}

// Receives the rows for the local experts, and completes them with the ids and weights that belong
// to them.
PrepareResult ModularKernel::State::finish_prepare(const KernelInput& input,
                                                   const Pending<PrepareResult>& pending,
                                                   const CallContext& context) {
  PrepareResult prepared;
  {
    const Profile::Span span = transfer_span("prepare", context);
    prepared = pending.receive();
  }
  if (prepare_finalize->traits().is_monolithic) {
    route(input, prepared, context);
  } else if (!prepared.topk_ids) {
    prepared.topk_ids = input.topk_ids;
  }
  if (!prepared.topk_weights) {
    prepared.topk_weights = input.topk_weights;
  }
  if (!prepared.lora_ids) {
    prepared.lora_ids = input.lora_ids;
  }
  expect_prepared(prepared, *experts);
  return prepared;
}

// Each rank may give ids or not, but all ranks must send the same kinds of rows.  So ids always
// travel if the experts have adapters.
Tensor ModularKernel::State::lora_ids_to_send(const KernelInput& input,
                                              const CallContext& context) const {
  if (input.lora_ids || experts->desc().num_adapters == 0 ||
      prepare_finalize->traits().num_dispatchers == 1) {
    return input.lora_ids;
  }
  Tensor none = context.get(WorkspaceSlot::kLoraIds, {input.hidden.dim(0)}, DType::kI32);
  fill(none, -1, context.stream);
  return none;
}

// In a monolithic call the logits have travelled, and the rows are routed where they have arrived.
void ModularKernel::State::route(const KernelInput& input,
                                 PrepareResult& prepared,
                                 const CallContext& context) {
  const Profile::Span span(context.profile, "router", context.stream, context.microbatch);
  const Tensor& logits = prepared.router_logits ? prepared.router_logits : input.router_logits;
  const Shape shape{logits.dim(0), router->config().topk};
  const bool is_wide = logits.dtype() == DType::kF32;
  const auto [ids, weights, wide] =
      context.get(WorkspaceSlot::kRouter, {{shape, DType::kI32},
                                           {shape, DType::kF32},
                                           {is_wide ? Shape{0} : logits.shape(), DType::kF32}});
  if (!is_wide) {
    copy_rows(logits, wide, context.stream);
  }
  router->select(is_wide ? logits : wide, ids, weights, context.stream);
  prepared.topk_ids = ids;
  prepared.topk_weights = weights;
}

// Experts write final rows directly to the output, unless they also read from there.
Tensor ModularKernel::State::compute(const Microbatch& microbatch,
                                     const PrepareResult& prepared,
                                     const Tensor& output,
                                     const ColumnParts& parts) {
  const KernelInput& input = microbatch.input;
  const CallContext& context = microbatch.context;
  const Profile::Span span(context.profile, "experts", context.stream, context.microbatch);
  // An order belongs to the ids that the call came with.
  const SlotOrder* order = prepared.topk_ids.raw() == input.topk_ids.raw() ? input.order : nullptr;
  const bool counts_rows = order == nullptr && experts_count_rows(prepared);
  const ExpertsInput rows{
      .x = prepared.x,
      .x_scale = prepared.x_scale,
      .topk_ids = prepared.topk_ids,
      .topk_weights = prepared.topk_weights,
      .expert_num_tokens = prepared.expert_num_tokens,
      .expert_map = map_of(input),
      .lora_ids = prepared.lora_ids,
      .a2_scale = prepared.extras.empty() ? input.a2_scale : prepared.extras.front(),
      .apply_router_weight_on_input = input.apply_router_weight_on_input,
      .max_sms = context.max_sms,
      .expected_rows = prepared.expected_rows,
      .parts = parts,
      .arrivals = prepared.arrivals,
      .row_counts = counts_rows ? loads.of(microbatch.index) : Tensor(),
      .order = order};
  const bool is_final = experts->traits().weight_and_reduce == WeightAndReduceKind::kNoOp &&
                        prepare_finalize->traits().takes_final_output &&
                        prepared.x.raw() != output.raw();
  return run_experts(*experts, rows, plan.options.chunk_tokens, context,
                     is_final || parts.count > 1 ? output : Tensor());
}

// Sends each part of the results, on the stream that `back` names, while the next part is computed.
Pending<void> ModularKernel::State::compute_in_parts(const Microbatch& microbatch,
                                                     const PrepareResult& prepared,
                                                     const FinalizeInput& done,
                                                     const SharedSchedule& shared,
                                                     const CallContext& back) {
  const CallContext& context = microbatch.context;
  const int64_t num_rows = prepared.x.dim(0);
  const int64_t hidden = experts->desc().hidden;
  const Tensor rows =
      context.get(WorkspaceSlot::kFusedOutput, {num_rows, hidden}, experts->desc().in_dtype);
  const Tensor by_part = rows.view({combine_parts, num_rows, hidden / combine_parts});
  std::vector<Pending<void>> sent;
  const auto send_next = [&] {
    const auto index = static_cast<int64_t>(sent.size());
    FinalizeInput columns = done;
    columns.expert_output = by_part[index];
    columns.first_column = index * by_part.dim(2);
    Pending<void>& way = sent.emplace_back(start_finalize(columns, shared, back));
    // The hook enqueues the end of this part's transfer, which must precede the start of the next.
    if (back.transfers && way.hook) {
      timed("finalize", std::exchange(way.hook, nullptr), back)();
    }
  };
  compute(microbatch, prepared, rows,
          {combine_parts, plan.sms_beside_finalize, [&](int) { send_next(); }});
  // Experts without rows do not report parts, but the other ranks wait for all of them.
  while (static_cast<int>(sent.size()) < combine_parts) {
    send_next();
  }
  return joined(std::move(sent));
}

}  // namespace moebius
