// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Computes a call of a MoeLayer: it routes this rank's tokens, lets the kernel compute them in one
// call or more, and sums and gathers over ranks where the kernel's backend does not.
#include <algorithm>

#include "core/is_captured.h"
#include "core/overlap.h"
#include "layer/flight.h"
#include "layer/kernel_checks.h"
#include "layer/layer_state.h"
#include "layer/rows/row_ops.h"

namespace moebius {

namespace {

// The context of a span that belongs to all micro-batches.
CallContext whole(CallContext context) {
  context.microbatch = Profile::kAll;
  return context;
}

// The input of these tokens alone.
MoeLayerInput slice_tokens(const MoeLayerInput& input, const TokenSlice& slice) {
  MoeLayerInput some = input;
  some.hidden = slice.of(input.hidden);
  some.topk_ids = slice.of(input.topk_ids);
  some.topk_weights = slice.of(input.topk_weights);
  some.lora_ids = slice.of(input.lora_ids);
  some.a2_scale = slice.of(input.a2_scale);
  return some;
}

}  // namespace

void MoeLayer::State::call_once(const Call& call, const CallContext& context) {
  Task steps = run(call, context, /*in_steps=*/false);
  while (steps.step()) {
  }
}

bool MoeLayer::State::replay(const Call& call, const CallContext& context) {
  if (!can_replay || !replays.are_on() || context.profile != nullptr || context.transfers ||
      is_captured(context.stream)) {
    return false;
  }
  const std::shared_ptr<const Graph> graph = replays.graph_of(
      {call.input, call.output, context}, context, [&](const CallContext& recorded) {
        call_once(call, recorded);
        if (took_pieces || num_microbatches > 1) {
          throw Unsupported("it is made in parts");
        }
      });
  if (graph == nullptr) {
    return false;
  }
  const std::shared_ptr<void> held = context.pool().hold(context.microbatch, WorkspaceSlot::kLayer);
  kernel->note_replay(context);
  context.pool().used_on(context.microbatch, WorkspaceSlot::kLayer, context.stream);
  took_pieces = false;
  num_microbatches = 1;
  stream = context.stream;
  graph->launch(context.stream);
  return true;
}

Task MoeLayer::State::run(Call call, CallContext context, bool in_steps) {
  const std::shared_ptr<void> held = context.pool().hold(context.microbatch, WorkspaceSlot::kLayer);
  const Call own = slices_tokens() ? slice_of(call) : call;
  Work work = begin(own, context);
  work.input.order = work.order ? &work.order : nullptr;
  Task kernel_calls = run_kernel(work, context, in_steps);
  while (kernel_calls.step()) {
    co_yield Sent{};
  }
  add_up(own, work, context);
  if (slices_tokens()) {
    gather(call.output, context);
  }
}

MoeLayer::State::Call MoeLayer::State::slice_of(const Call& call) const {
  const TokenSlice own =
      token_slice(call.input.hidden.dim(0), tp_size(), group->rank() % tp_size());
  return {slice_tokens(call.input, own), own.of(call.output)};
}

void MoeLayer::State::gather(const Tensor& output, const CallContext& context) const {
  const int first = group->rank() - group->rank() % tp_size();
  in_flight("combine", whole(context), context.stream,
            [&] { gather_slices(*group, output, first, tp_size(), context.stream); });
}

MoeLayer::State::Work MoeLayer::State::begin(const Call& call, const CallContext& context) {
  const auto& [hidden, given_ids, given_weights, lora_ids, a2_scale, options] = call.input;
  const Tensor& output = call.output;
  const bool has_shared = shared_experts != nullptr;
  const bool routes = !given_ids;
  const int64_t num_tokens = hidden.dim(0);
  const DType model_dtype = config.in_dtype;
  const DType in_dtype = this->in_dtype();
  const auto selections_if = [&](bool needed, DType dtype) {
    return TensorSpec{needed ? Shape{num_tokens, config.experts_per_token} : Shape{0}, dtype};
  };
  const auto rows_if = [&](bool needed, DType dtype) {
    return TensorSpec{needed ? hidden.shape() : Shape{0}, dtype};
  };
  const bool rounds_input = hidden.dtype() != model_dtype;
  const bool widens_input = model_dtype != in_dtype;  // for the float64 oracle
  const bool sums = sums_over_ranks();
  const bool writes_to_output =
      !sums && output.dtype() == in_dtype && !(has_shared && overlap(output, hidden));
  const bool has_logits = routes && router != nullptr;
  const auto [logits, ids, weights, rounded, widened, routed_rows, shared_rows, summed] =
      context.get(WorkspaceSlot::kLayer,
                  {{has_logits ? Shape{num_tokens, config.num_experts} : Shape{0}, DType::kF32},
                   selections_if(routes, DType::kI32),
                   selections_if(routes, DType::kF32),
                   rows_if(rounds_input, model_dtype),
                   rows_if(widens_input, in_dtype),
                   rows_if(!writes_to_output, in_dtype),
                   rows_if(has_shared, in_dtype),
                   rows_if(sums, in_dtype)});

  Tensor x = hidden;
  if (rounds_input) {
    copy_rows(x, rounded, context.stream);
    x = rounded;
  }
  if (widens_input) {
    copy_rows(x, widened, context.stream);
    x = widened;
  }
  Work work;
  work.input = {.hidden = x,
                .topk_ids = routes ? ids : given_ids,
                .topk_weights = routes ? weights : given_weights,
                .router_logits = has_logits ? logits : Tensor(),
                .num_experts = config.num_experts,
                .expert_map = expert_map,
                .apply_router_weight_on_input = apply_router_weight_on_input,
                .lora_ids = lora_ids,
                .a2_scale = a2_scale,
                .add_shared = has_shared && writes_to_output,
                .own_load = counts_own() ? counts : Tensor(),
                .options = options};
  work.routed = writes_to_output ? output : routed_rows;
  work.shared = has_shared ? shared_rows : Tensor();
  work.summed = summed;
  work.writes_to_output = writes_to_output;
  stream = context.stream;
  if (routes) {
    route(work, context);
  }
  return work;
}

void MoeLayer::State::add_up(const Call& call, const Work& work, const CallContext& context) const {
  Tensor routed = work.routed;
  if (sums_over_ranks()) {
    const Profile::Span span(context.profile, "finalize", context.stream);
    in_flight("combine", whole(context), context.stream,
              [&] { sum_over_ranks(*group, routed, work.summed, context.stream); });
    routed = work.summed;
  }
  if (work.writes_to_output) {
    return;
  }
  if (work.shared) {
    add_rows(routed, work.shared, call.output, context.stream);
  } else {
    copy_rows(routed, call.output, context.stream);
  }
}

void MoeLayer::State::route(Work& work, const CallContext& context) {
  const KernelInput& input = work.input;
  const Profile::Span span(context.profile, "router", context.stream);
  if (routing) {
    return routing(input.hidden, input.topk_ids, input.topk_weights, context);
  }
  if (!router->has_gate()) {
    return router->select(input.router_logits, input.topk_ids, input.topk_weights, context.stream);
  }
  work.order = kernel->room_for_order(input, context);
  router->route(input.hidden,
                {.logits = input.router_logits,
                 .ids = input.topk_ids,
                 .weights = input.topk_weights,
                 .order = work.order ? &work.order : nullptr},
                context.stream);
}

// The number of calls of the kernel: as many as the rank with most tokens needs, and at least one,
// since the call may be collective.
int64_t MoeLayer::State::num_pieces(int64_t num_tokens, int64_t limit) const {
  const int64_t pieces = std::max<int64_t>(1, (num_tokens + limit - 1) / limit);
  if (has_dead_ranks()) {
    expect_le(num_tokens, limit, "tokens of a layer that has given ranks up");
    return 1;
  }
  if (group == nullptr && kernel->prepare_finalize().traits().num_dispatchers > 1) {
    expect_le(num_tokens, limit, "tokens of ranks that are no group");
  }
  return group == nullptr || sums_over_ranks()
             ? pieces
             : all_reduce_max(*group, "pieces of a batched call", pieces);
}

Task MoeLayer::State::run_kernel(const Work& work, const CallContext& context, bool in_steps) {
  const auto limit = kernel->prepare_finalize().traits().max_tokens_per_rank;
  const int64_t num_tokens = work.input.hidden.dim(0);
  const int64_t pieces = limit ? num_pieces(num_tokens, *limit) : 1;
  took_pieces = pieces > 1;
  num_microbatches = 1;
  if (took_pieces && work.input.own_load) {
    count_expert_tokens(work.input.topk_ids, {}, work.input.own_load, context.stream);
  }
  if (took_pieces) {
    fill(computed_rows.view_as(DType::kI32), 0, context.stream);  // both halves of every i64
  }
  Work some;
  for (int64_t piece = 0; piece < pieces; ++piece) {
    if (took_pieces) {
      const int64_t begin = std::min(piece * *limit, num_tokens);
      some = piece_of(work, {begin, std::min(begin + *limit, num_tokens)});
    }
    const Work& part = took_pieces ? some : work;
    if (in_steps) {
      LayerCall call = kernel->start(part.input, part.routed, part.shared, context);
      while (call.step()) {
        co_yield Sent{};
      }
    } else {
      kernel->forward(part.input, part.routed, part.shared, context);
    }
    num_microbatches = std::max(num_microbatches, kernel->last_microbatches());
    if (took_pieces) {
      count_computed(context.stream);
    }
  }
}

MoeLayer::State::Work MoeLayer::State::piece_of(const Work& work, const TokenSlice& own) {
  Work piece;
  piece.input = slice_tokens(work.input, own);
  piece.input.own_load = {};
  piece.routed = own.of(work.routed);
  piece.shared = own.of(work.shared);
  return piece;
}

// Adds the rows of the kernel's last call.
void MoeLayer::State::count_computed(const Stream& call_stream) const {
  const Tensor load = kernel->expert_load_on_device();
  for (int64_t microbatch = 0; microbatch < load.dim(0); ++microbatch) {
    add_counts(load[microbatch], computed_rows, call_stream);
  }
}

}  // namespace moebius
