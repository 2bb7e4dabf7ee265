// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "core/device_traits.h"
#include "layer/call_plan.h"
#include "layer/call_state.h"
#include "layer/kernel_checks.h"
#include "layer/load_counter.h"
#include "layer/rows/row_ops.h"
#include "layer/rows/token_slices.h"
#include "layer/run_experts.h"
#include "layer/shared_schedule.h"
#include "layer/side_stream.h"
#include "layer/transfer.h"
#include "layer/turns.h"
#include "moebius/log.h"
#include "moebius/modular_kernel.h"

namespace moebius {

namespace {

// One micro-batch's share of a call.
struct Microbatch {
  int index = 0;
  KernelInput input;
  Tensor output;
  Tensor shared_output;
  CallContext context;
};

}  // namespace

struct ModularKernel::State {
  std::unique_ptr<PrepareFinalize> prepare_finalize;
  std::unique_ptr<Experts> experts;
  std::shared_ptr<const SharedExperts> shared_experts;
  std::shared_ptr<const Router> router;
  std::unique_ptr<WeightAndReduce> weight_and_reduce;
  KernelOptions options;  // with chunk_tokens > 0
  LoadCounter loads;
  OneCall one_call;
  // These three describe the current call, or the last one.
  CallPlan plan;
  int combine_parts = 1;
  bool rows_came_in_waves = false;
  SideStream beside{SideStream::Use::kBeside};        // for shared experts and for counting loads
  SideStream transfers{SideStream::Use::kTransfers};  // for micro-batches, waves and parts

  void expect_call(const KernelInput& input,
                   const Tensor& output,
                   const Tensor& shared_output,
                   const CallContext& context) const;
  // What a call was given.
  struct Call {
    KernelInput input;
    Tensor output;
    Tensor shared_output;
    CallContext context;
    bool in_steps = false;
  };
  // A call that ends early, because it fails or is dropped: forgets what was kept for its other
  // half, and makes the call's stream wait for the others.
  struct Tidy {
    State& state;
    const CallContext& context;
    int count = 0;  // micro-batches
    mutable bool is_whole = false;
    ~Tidy();
  };
  Task run(Call call);
  CallPlan plan_of(const Call& call) const;
  Microbatch microbatch(int index, const Call& call);
  KernelOptions options_of(const KernelInput& input) const;
  int slot(const CallContext& context, int index) const {
    return context.microbatch * options.microbatches + index;
  }
  Task run_microbatch(Microbatch microbatch, Turns& turns);
  Pending<PrepareResult> start_prepare(const KernelInput& input,
                                       OwnRows* own_rows,
                                       const CallContext& there);
  PrepareResult finish_prepare(const KernelInput& input,
                               const Pending<PrepareResult>& pending,
                               const CallContext& there);
  Tensor lora_ids_to_send(const KernelInput& input, const CallContext& context) const;
  void route(const KernelInput& input, PrepareResult& prepared, const CallContext& context);
  Tensor map_of(const KernelInput& input) const {
    return prepare_finalize->traits().localizes_ids ? Tensor() : input.expert_map;
  }
  // Whether the experts write the load of a micro-batch themselves, which costs no kernel.
  bool experts_count_rows(const PrepareResult& prepared) const {
    return experts->traits().counts_rows &&
           runs_once(*experts, prepared.x.dim(0), plan.options.chunk_tokens);
  }
  Tensor compute(const Microbatch& microbatch,
                 const PrepareResult& prepared,
                 const Tensor& output,
                 const ColumnParts& parts);
  Pending<void> compute_in_parts(const Microbatch& microbatch,
                                 const PrepareResult& prepared,
                                 const FinalizeInput& done,
                                 const SharedSchedule& shared,
                                 const CallContext& back);
  Pending<void> start_finalize(const FinalizeInput& done,
                               const SharedSchedule& shared,
                               const CallContext& back);
  void join_streams(const CallContext& context) const noexcept;
};

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
  State& state = *state_;
  state.expect_call(input, output, shared_output, context);
  const std::shared_ptr<void> mark = state.one_call.begin("a kernel");
  Task call = state.run({input, output, shared_output, context});
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

Microbatch ModularKernel::State::microbatch(int index, const Call& call) {
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
    cut.context.transfers = transfers.on(context.stream.device());
  }
  return cut;
}

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
    way_there.transfers = transfers.on(context.stream.device());
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
      back.transfers = transfers.on(context.stream.device());
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
    const Stream& stream = beside.on(context.stream.device());
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
  const PrepareInput request{
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
  const auto prepare = [this, request](const CallContext& own) {
    return prepare_finalize->prepare(request, own);
  };
  if (!prepare_finalize->traits().is_async && !context.transfers) {
    return {nullptr, [prepare, context] { return prepare(context); }};
  }
  begin_after_compute(context);
  const Profile::Span span = transfer_span("prepare", context);
  return prepare_finalize->traits().is_async ? prepare_finalize->prepare_async(request, context)
                                             : start_all<PrepareResult>(context, prepare);
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
      .row_counts = experts_count_rows(prepared) ? loads.of(microbatch.index) : Tensor()};
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
