// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A ModularKernel as its callers see it: how it is made, what it answers, and how it plans a call
// and cuts it into micro-batches.
#include <utility>
#include <vector>

#include "core/device_traits.h"
#include "layer/kernel_checks.h"
#include "layer/kernel_state.h"
#include "layer/rows/token_slices.h"
#include "moebius/log.h"

namespace moebius {

ModularKernel::ModularKernel(std::unique_ptr<PrepareFinalize> prepare_finalize,
                             std::unique_ptr<Experts> experts,
                             std::shared_ptr<const SharedExperts> shared_experts,
                             std::shared_ptr<const Router> router,
                             KernelOptions options)
    : state_(std::make_unique<State>()) {
  expect(prepare_finalize != nullptr, "prepare_finalize is missing");
  expect(experts != nullptr, "experts are missing");
  expect_kernel_options(options);
  expect_composable({*prepare_finalize, *experts, shared_experts.get(), router.get()});
  if (options.chunk_tokens == 0) {
    options.chunk_tokens = default_chunk_tokens();
  }
  state_->weight_and_reduce = make_weight_and_reduce(experts->traits().weight_and_reduce);
  state_->loads = LoadCounter(options.microbatches, experts->desc().num_local_experts);
  state_->options = options;
  const bool is_apart = prepare_finalize->traits().has_streams_beside;
  state_->beside = SideStream(SideStream::Use::kBeside, is_apart);
  state_->transfers = SideStream(SideStream::Use::kTransfers, is_apart);
  state_->prepare_finalize = std::move(prepare_finalize);
  state_->experts = std::move(experts);
  state_->shared_experts = std::move(shared_experts);
  state_->router = std::move(router);
}

ModularKernel::~ModularKernel() = default;

void ModularKernel::set_dead(int rank, bool dead) {
  state_->prepare_finalize->set_dead(rank, dead);
}

void ModularKernel::update_weights(const ExpertWeights& weights, const Stream& stream) {
  state_->experts->update_weights(weights, stream);
}

const PrepareFinalize& ModularKernel::prepare_finalize() const {
  return *state_->prepare_finalize;
}
const Experts& ModularKernel::experts() const {
  return *state_->experts;
}
Tensor ModularKernel::last_expert_load() const {
  return state_->loads.total();
}
int ModularKernel::last_microbatches() const {
  return state_->plan.num_microbatches;
}
int ModularKernel::last_combine_parts() const {
  return state_->combine_parts;
}
bool ModularKernel::last_rows_came_in_waves() const {
  return state_->rows_came_in_waves;
}
Tensor ModularKernel::expert_load_on_device() const {
  return state_->loads.by_microbatch();
}

void ModularKernel::forward(const KernelInput& input,
                            const Tensor& output,
                            const Tensor& shared_output,
                            const CallContext& context) {
  state_->expect_call(input, output, shared_output, context);
  const std::shared_ptr<void> mark = state_->one_call.begin("a kernel");
  Task call = state_->run({input, output, shared_output, context});
  while (call.step()) {
  }
}

LayerCall ModularKernel::start(const KernelInput& input,
                               const Tensor& output,
                               const Tensor& shared_output,
                               const CallContext& context) {
  State& state = *state_;
  state.expect_call(input, output, shared_output, context);
  std::shared_ptr<void> mark = state.one_call.begin("a kernel");
  return LayerCall(std::make_unique<LayerCall::State>(
      state.run({input, output, shared_output, context, /*in_steps=*/true}), std::move(mark),
      [&state](std::string_view why) { state.prepare_finalize->give_up(why); }));
}

SlotOrder ModularKernel::room_for_order(const KernelInput& input, const CallContext& context) {
  return state_->room_for_order(input, context);
}

void ModularKernel::note_replay(const CallContext& context) {
  State& state = *state_;
  const int slot = state.slot(context, 0);
  const std::shared_ptr<void> mark = state.one_call.begin("a kernel");
  const std::shared_ptr<void> held = context.pool().hold(slot, WorkspaceSlot::kPrepare);
  for (int which = 0; which < kNumWorkspaceSlots; ++which) {
    const auto used = static_cast<WorkspaceSlot>(which);
    if (used != WorkspaceSlot::kLayer) {  // whose buffers have other numbers
      context.pool().used_on(slot, used, context.stream);
    }
  }
  state.plan.num_microbatches = 1;
  state.combine_parts = 1;
  state.rows_came_in_waves = false;
  state.loads.begin(1, context.stream);
}

// The experts can use an order where they compute the tokens of this rank, all of them at once.
SlotOrder ModularKernel::State::room_for_order(const KernelInput& input,
                                               const CallContext& context) {
  const KernelOptions& chosen = input.options ? *input.options : options;
  const PrepareFinalizeTraits& backend = prepare_finalize->traits();
  const ExpertsDesc& desc = experts->desc();
  const int64_t num_tokens = input.hidden.dim(0);
  const int64_t chunk_tokens =
      chosen.chunk_tokens == 0 ? default_chunk_tokens() : chosen.chunk_tokens;
  const bool keeps_tokens = backend.num_dispatchers == 1 && !backend.is_monolithic &&
                            backend.activation_format == ActivationFormat::kStandard;
  if (!keeps_tokens || !experts->traits().takes_order || chosen.microbatches > 1 ||
      !runs_once(*experts, num_tokens, chunk_tokens)) {
    return {};
  }
  CallContext own = context;
  own.microbatch = slot(context, 0);
  const auto [expert_offsets, row_of_slot, token_of_row, counters] =
      own.get(WorkspaceSlot::kOrder, {{{desc.num_local_experts + 1}, DType::kI32},
                                      {{num_tokens, desc.topk}, DType::kI32},
                                      {{num_tokens * desc.topk}, DType::kI32},
                                      {{2}, DType::kI32}});
  loads.begin(1, context.stream);
  return {.expert_map = map_of(input),
          .first_weights = experts->first_weights(num_tokens),
          .expert_offsets = expert_offsets,
          .expert_counts = loads.of(0),
          .row_of_slot = row_of_slot,
          .token_of_row = token_of_row,
          .counters = counters};
}

void ModularKernel::State::expect_call(const KernelInput& input,
                                       const Tensor& output,
                                       const Tensor& shared_output,
                                       const CallContext& context) const {
  expect_kernel_input({*prepare_finalize, *experts, shared_experts.get()}, input, output,
                      shared_output, context);
}

Task ModularKernel::State::run(Call call) {
  const auto& [input, output, shared_output, context, in_steps] = call;
  plan = plan_of(call);
  const DeviceTraits device = device_traits(context.stream.device());
  const int count = plan.num_microbatches;
  loads.begin(count, context.stream);
  for (int i = 0; count > 1 && device.host_reads && i < count; ++i) {
    const TokenSlice own = token_slice(input.hidden.dim(0), count, i);
    prepare_finalize->expect_room(own.of(input.topk_ids), input.expert_map);
  }
  const Tidy tidy{*this, context, count};
  std::vector<std::shared_ptr<void>> held;
  for (int i = 0; i < count; ++i) {
    held.push_back(context.pool().hold(slot(context, i), WorkspaceSlot::kPrepare));
  }
  Turns turns(prepare_finalize->traits().max_in_flight, device.enqueues);
  if (!plan.counts_beside) {
    LoadCounter::count_own(input, context.stream);
  }
  turns.begin(count, [&](int i) { return run_microbatch(microbatch(i, call), turns); });
  while (turns.step()) {
    co_yield Sent{};
  }
  tidy.is_whole = true;
}

ModularKernel::State::Tidy::~Tidy() {
  for (int i = 0; !is_whole && i < count; ++i) {
    state.prepare_finalize->forget(state.slot(context, i));
  }
  if (!is_whole) {
    state.join_streams(context);
  }
}

// The options of this call, with chunk_tokens > 0.
KernelOptions ModularKernel::State::options_of(const KernelInput& input) const {
  if (!input.options) {
    return options;
  }
  KernelOptions own = *input.options;
  expect_kernel_options(own);
  expect_le(own.microbatches, options.microbatches,
            "microbatches of the call (those that the kernel was made for)");
  own.chunk_tokens = own.chunk_tokens == 0 ? default_chunk_tokens() : own.chunk_tokens;
  return own;
}

CallPlan ModularKernel::State::plan_of(const Call& call) const {
  const KernelInput& input = call.input;
  const CallContext& context = call.context;
  PrepareFinalize& transport = *prepare_finalize;
  const KernelOptions chosen = options_of(input);
  const ExpertsDesc& desc = experts->desc();
  CallFacts facts;
  facts.num_tokens = input.hidden.dim(0);
  facts.fewest_tokens =
      asks_for_fewest_tokens(chosen) ? transport.fewest_tokens(facts.num_tokens) : facts.num_tokens;
  facts.device = context.stream.device();
  facts.max_sms = context.max_sms;
  facts.num_sms = num_sms(facts.device);
  if (facts.num_sms > 0) {
    facts.comm_sms = transport.traits().comm_sms;
    facts.finalize_sms = transport.traits().finalize_sms;
  }
  facts.num_ranks = transport.traits().num_dispatchers;
  facts.num_experts = desc.num_experts;
  facts.topk = desc.topk;
  facts.hidden = desc.hidden;
  facts.dtype = desc.in_dtype;
  facts.in_steps = call.in_steps;
  facts.has_shared = shared_experts != nullptr;
  facts.takes_addend = transport.traits().takes_addend;
  facts.takes_columns = transport.traits().takes_columns;
  facts.gives_parts = experts->traits().gives_parts;
  facts.can_come_in_waves =
      !input.lora_ids && !input.a2_scale && experts->traits().takes_arriving_rows &&
      transport.sends_in_waves(experts->quant(), defers_input_quant(*experts));
  return plan_call(chosen, facts);
}

ModularKernel::State::Microbatch ModularKernel::State::microbatch(int index, const Call& call) {
  const auto& [input, output, shared_output, context, in_steps] = call;
  const int count = plan.num_microbatches;
  Microbatch cut{index, input, output, shared_output, context};
  if (count > 1) {
    const TokenSlice own = token_slice(input.hidden.dim(0), count, index);
    cut.input = slice_tokens(input, own);
    cut.output = own.of(output);
    cut.shared_output = own.of(shared_output);
  }
  cut.context.microbatch = slot(context, index);
  cut.context.max_sms = plan.gemm_sms;
  if (plan.transfers_beside && (count > 1 || (in_steps && !context.transfers))) {
    cut.context.transfers = transfers.of(context.stream);
  }
  return cut;
}

// After a failure: makes the call's stream wait for what the call has enqueued on other streams, so
// that the caller can wait for that stream and then drop the tensors.
void ModularKernel::State::join_streams(const CallContext& context) const noexcept {
  const auto join = [](const auto& one) {
    try {
      one();
    } catch (const std::exception& error) {  // the failure under way says more
      log(LogLevel::kError, error.what());
    }
  };
  join([&] { beside.join(context.stream); });
  join([&] { transfers.join(context.stream); });
  if (context.transfers) {
    join([&] { context.stream.wait(context.transfers->record()); });
  }
}

}  // namespace moebius
