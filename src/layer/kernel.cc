// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "layer/kernel_checks.h"
#include "layer/rows/row_ops.h"
#include "layer/rows/token_slices.h"
#include "layer/run_experts.h"
#include "layer/side_stream.h"
#include "layer/transfer.h"
#include "layer/turns.h"
#include "moebius/log.h"
#include "moebius/modular_kernel.h"

namespace moebius {

namespace {

// What one micro-batch works on.
struct Microbatch {
  int index = 0;
  KernelInput input;
  Tensor output;
  Tensor shared_output;
  CallContext context;
  bool shares_early = false;  // shared experts during prepare, else during finalize
  Event shared_done;          // where they run beside
  OwnRows own_rows = {};
};

// What is left of a call's SMs for GEMMs while rows travel by `comm_sms` of the GPU's; 0: all.
int sms_beside(int comm_sms, const CallContext& context) {
  if (comm_sms == 0) {
    return context.max_sms;
  }
  const int all = cuda_device_info(context.stream.device().index).num_sms;
  const int left = std::max(2, all - comm_sms);
  return context.max_sms > 0 ? std::min(context.max_sms, left) : left;
}

}  // namespace

struct ModularKernel::State {
  std::unique_ptr<PrepareFinalize> prepare_finalize;
  std::unique_ptr<Experts> experts;
  std::shared_ptr<const SharedExperts> shared_experts;
  std::shared_ptr<const Router> router;
  std::unique_ptr<WeightAndReduce> weight_and_reduce;
  KernelOptions options;
  // i32 [N, L], rows by micro-batch and expert, where calls run: one for all calls, since graphs
  // keep its address.
  Tensor loads;
  int microbatches_of_call = 1;   // of this one, or of the last
  int combine_parts_of_call = 1;  // the same
  bool rows_came_in_waves = false;
  Stream load_stream;  // of the last call
  Tensor load() const { return loads.slice(0, microbatches_of_call); }
  // Of the shared experts, and of what counts loads.
  SideStream beside{SideStream::Use::kBeside};
  SideStream transfers{SideStream::Use::kTransfers};  // of micro-batches and of parts

  int num_microbatches(int64_t num_tokens, Device device);
  int combine_parts(int64_t most_rows) const;
  int64_t early_rows_of(const KernelInput& input, Device device) const;
  bool shares_early(int64_t num_tokens, Device device) const;
  Task run_microbatch(Microbatch microbatch, Turns& turns);
  Pending<PrepareResult> start_prepare(Microbatch& microbatch,
                                       const CallContext& there,
                                       int64_t early_rows);
  PrepareResult finish_prepare(const KernelInput& input,
                               const Pending<PrepareResult>& pending,
                               const CallContext& there);
  Tensor lora_ids_to_send(const KernelInput& input, const CallContext& context) const;
  void route(const KernelInput& input, PrepareResult& prepared, const CallContext& context);
  void record_load(const PrepareResult& prepared,
                   const Microbatch& microbatch,
                   const Stream& stream);
  void count_own(const KernelInput& input, const Stream& stream);
  // Loads are counted beside the rest, and enqueued after it: nobody in the call waits for them,
  // and their kernels would take 2 us each.  Not of several micro-batches, whose rows and counts
  // may lie where the next one's come.  Why no stream of their own: see kQueuesPerRank.
  bool counts_beside(Device device) const { return device.is_cuda() && microbatches_of_call == 1; }
  Tensor map_of(const KernelInput& input) const {
    return prepare_finalize->localizes_ids() ? Tensor() : input.expert_map;
  }
  Tensor compute(const KernelInput& input,
                 const PrepareResult& prepared,
                 const Tensor& output,
                 const ColumnParts& parts,
                 const CallContext& context);
  Pending<void> compute_in_parts(const Microbatch& microbatch,
                                 const PrepareResult& prepared,
                                 const FinalizeInput& done,
                                 const CallContext& back);
  Pending<void> start_finalize(const FinalizeInput& done,
                               const Microbatch& microbatch,
                               const CallContext& back);
  void run_shared(const Microbatch& microbatch, const CallContext& context) const;
  void join_streams(const Stream& stream) const noexcept;
  Event run_shared_beside(const Event& before, int comm_sms, const Microbatch& microbatch);
};

ModularKernel::ModularKernel(std::unique_ptr<PrepareFinalize> prepare_finalize,
                             std::unique_ptr<Experts> experts,
                             std::shared_ptr<const SharedExperts> shared_experts,
                             std::shared_ptr<const Router> router,
                             KernelOptions options)
    : state_(std::make_unique<State>()) {
  expect(prepare_finalize != nullptr, "prepare_finalize is missing");
  expect(experts != nullptr, "experts are missing");
  expect_ge(options.chunk_tokens, 0, "chunk_tokens");
  expect_ge(options.microbatches, 1, "microbatches");
  expect_ge(options.min_microbatch_tokens.value_or(0), 0, "min_microbatch_tokens");
  expect_ge(options.combine_parts, 0, "combine_parts");
  expect_ge(options.early_rows.value_or(0), 0, "early_rows");
  expect_composable(*prepare_finalize, *experts, shared_experts.get(), router.get());
  state_->weight_and_reduce = make_weight_and_reduce(experts->weight_and_reduce());
  state_->loads =
      Tensor::zeros({options.microbatches, experts->desc().num_local_experts}, DType::kI32);
  state_->options = options;
  if (options.chunk_tokens == 0) {
    state_->options.chunk_tokens = default_chunk_tokens();
  }
  state_->prepare_finalize = std::move(prepare_finalize);
  state_->experts = std::move(experts);
  state_->shared_experts = std::move(shared_experts);
  state_->router = std::move(router);
}

ModularKernel::~ModularKernel() = default;

void ModularKernel::set_dead(int rank, bool dead) {
  state_->prepare_finalize->set_dead(rank, dead);
}

const PrepareFinalize& ModularKernel::prepare_finalize() const {
  return *state_->prepare_finalize;
}
const Experts& ModularKernel::experts() const {
  return *state_->experts;
}
Tensor ModularKernel::last_expert_load() const {
  const Tensor load = state_->load();
  const Tensor by_microbatch =
      load.device().is_cpu() ? load : to_device(load, Device::cpu(), state_->load_stream);
  Tensor sum = Tensor::zeros({by_microbatch.dim(1)}, DType::kI32);
  for (int64_t i = 0; i < by_microbatch.numel(); ++i) {
    sum.data<int32_t>()[i % sum.numel()] += by_microbatch.data<int32_t>()[i];
  }
  return sum;
}
int ModularKernel::last_microbatches() const {
  return state_->microbatches_of_call;
}
int ModularKernel::last_combine_parts() const {
  return state_->combine_parts_of_call;
}
bool ModularKernel::last_rows_came_in_waves() const {
  return state_->rows_came_in_waves;
}
Tensor ModularKernel::expert_load_on_device() const {
  return state_->load();
}

void ModularKernel::forward(const KernelInput& input,
                            const Tensor& output,
                            const Tensor& shared_output,
                            const CallContext& context) {
  expect_kernel_input(input, output, shared_output, *state_->prepare_finalize, *state_->experts,
                      state_->shared_experts.get(), context);

  State& state = *state_;
  const int64_t num_tokens = input.hidden.dim(0);
  const Device device = context.stream.device();
  const bool on_gpu = device.is_cuda();
  const int count = state.num_microbatches(num_tokens, device);
  if (state.loads.device() != device) {
    state.loads = Tensor::zeros(state.loads.shape(), DType::kI32, device);
  }
  state.microbatches_of_call = count;
  state.load_stream = context.stream;

  const auto number_of = [&](int i) { return context.microbatch * state.options.microbatches + i; };
  const auto microbatch = [&](int i) {
    const TokenSlice own = token_slice(num_tokens, count, i);
    const auto rows = [&](const Tensor& all) {
      return all && count > 1 ? all.slice(own.begin, own.end) : all;
    };
    Microbatch cut{i,
                   input,
                   rows(output),
                   rows(shared_output),
                   context,
                   count == 1 ? state.shares_early(num_tokens, device) : 2 * i + 1 < count,
                   /*shared_done=*/{},
                   /*own_rows=*/{}};
    cut.input.hidden = rows(input.hidden);
    cut.input.topk_ids = rows(input.topk_ids);
    cut.input.topk_weights = rows(input.topk_weights);
    cut.input.router_logits = rows(input.router_logits);
    cut.input.lora_ids = rows(input.lora_ids);
    cut.context.microbatch = number_of(i);
    if (count > 1 && on_gpu) {
      cut.context.transfers = state.transfers.on(device);
      cut.context.max_sms = sms_beside(state.prepare_finalize->comm_sms(), context);
    }
    return cut;
  };
  for (int i = 0; count > 1 && !on_gpu && i < count; ++i) {
    const TokenSlice own = token_slice(num_tokens, count, i);
    state.prepare_finalize->expect_room(input.topk_ids.slice(own.begin, own.end), input.expert_map);
  }
  Turns turns(state.prepare_finalize->max_in_flight(), on_gpu);
  try {
    if (!state.counts_beside(device)) {
      state.count_own(input, context.stream);
    }
    turns.run(count, [&](int i) { return state.run_microbatch(microbatch(i), turns); });
    if (state.counts_beside(device)) {
      state.beside.join(context.stream);
    }
  } catch (...) {
    for (int i = 0; i < count; ++i) {
      state.prepare_finalize->forget(number_of(i));
    }
    state.join_streams(context.stream);
    throw;
  }
}

int ModularKernel::State::num_microbatches(int64_t num_tokens, Device device) {
  if (options.microbatches == 1 || options.min_microbatch_tokens == 0) {
    return options.microbatches;
  }
  const ExpertsDesc& desc = experts->desc();
  const int64_t least = options.min_microbatch_tokens.value_or(default_min_microbatch_tokens(
      desc.num_experts, desc.topk, prepare_finalize->num_dispatchers(), device));
  const int64_t fewest = prepare_finalize->fewest_tokens(num_tokens);
  return static_cast<int>(std::clamp<int64_t>(fewest / least, 1, options.microbatches));
}

// Of a single micro-batch, where the rank with most has so many rows: the same on every rank, since
// all of it is told or set alike.
int ModularKernel::State::combine_parts(int64_t most_rows) const {
  const ExpertsDesc& desc = experts->desc();
  const bool can = prepare_finalize->takes_columns() && experts->gives_parts() &&
                   most_rows <= options.chunk_tokens;
  return can ? num_combine_parts(options.combine_parts, most_rows, desc.hidden, desc.in_dtype,
                                 prepare_finalize->num_dispatchers())
             : 1;
}

// 0: this call's rows do not come in waves.
int64_t ModularKernel::State::early_rows_of(const KernelInput& input, Device device) const {
  constexpr int64_t kRows = 16384;  // measured on H200s: 8 thousand do not gain, 32 thousand do
  const bool can = device.is_cuda() && microbatches_of_call == 1 && !input.lora_ids &&
                   experts->takes_arriving_rows() &&
                   prepare_finalize->sends_in_waves(experts->quant(), defers_input_quant(*experts));
  if (!can || options.early_rows) {
    return can ? *options.early_rows : 0;
  }
  // Shared experts that begin with the dispatch, as they do where results go in parts, hide it as
  // well.  A rank with few tokens wants no waves by itself, since they cost each call their
  // preparation, and so all ranks do without; if all have as many, none would get so many rows.
  const bool is_hidden = shared_experts != nullptr && experts->gives_parts();
  const bool has_few = input.hidden.dim(0) * prepare_finalize->num_dispatchers() < kRows;
  return is_hidden || has_few ? 0 : kRows;
}

// Of a single micro-batch.  High throughput's rows are longest in flight on their way back, where
// ranks that are done wait for others, too, unless they go in parts: then little is left to hide.
// A rank may judge by its own tokens, since nobody else minds.
bool ModularKernel::State::shares_early(int64_t num_tokens, Device device) const {
  const int num_ranks = prepare_finalize->num_dispatchers();
  if (device.is_cpu()) {
    return false;
  }
  return num_ranks == 1 || !prepare_finalize->takes_columns() ||
         combine_parts(num_tokens * std::min<int64_t>(experts->desc().topk, num_ranks)) > 1;
}

// Half of the micro-batches compute their shared experts while the first rows come, the others
// while the last are on their way back: then nobody else has anything left to compute.  Early on a
// GPU is when the transfer begins, where prepare tells, else after what it has enqueued: sooner,
// their GEMMs would leave no SM to the transfer.
Task ModularKernel::State::run_microbatch(Microbatch microbatch, Turns& turns) {
  const CallContext& context = microbatch.context;
  const bool shares_beside =
      microbatch.shared_output.defined() && context.stream.device().is_cuda();
  const std::function<void()> share = [this, &microbatch] {
    run_shared(microbatch, microbatch.context);
  };
  const bool shares = microbatch.shared_output.defined() && !shares_beside;
  Event share_after = shares_beside ? context.stream.record() : Event();

  CallContext way_there = context;
  const int64_t early_rows = early_rows_of(microbatch.input, context.stream.device());
  rows_came_in_waves = false;
  if (early_rows > 0) {
    way_there.transfers = transfers.on(context.stream.device());
  }
  turns.before_send();
  const Pending<PrepareResult> sent = start_prepare(microbatch, way_there, early_rows);
  if (microbatch.own_rows.transfer_begin) {
    share_after = *microbatch.own_rows.transfer_begin;
  }
  // Why only now: what other ranks wait for is launched first.
  if (shares_beside && microbatch.shares_early) {
    int comm_sms = prepare_finalize->comm_sms();
    if (!microbatch.own_rows.transfer_begin) {
      share_after = context.stream.record();
      comm_sms = 0;
    }
    microbatch.shared_done = run_shared_beside(share_after, comm_sms, microbatch);
  }
  Travel there{timed("prepare", sent.hook, way_there), {}};
  if (shares && microbatch.shares_early) {
    there.meanwhile = share;
  }
  co_yield std::move(there);
  const PrepareResult prepared = finish_prepare(microbatch.input, sent, way_there);
  rows_came_in_waves = static_cast<bool>(prepared.arrivals);
  const bool counts_later = counts_beside(context.stream.device());
  const Event arrived = rows_came_in_waves ? prepared.arrivals.complete
                        : counts_later     ? context.stream.record()
                                           : Event();
  if (!counts_later) {
    record_load(prepared, microbatch, context.stream);
  }
  FinalizeInput done;
  done.output = microbatch.output;
  done.topk_ids = prepared.topk_ids;
  done.topk_weights = prepared.topk_weights;
  done.apply_router_weight_on_input = microbatch.input.apply_router_weight_on_input;
  done.weight_and_reduce = weight_and_reduce.get();
  if (microbatch.input.add_shared && shares_beside && microbatch.shares_early &&
      prepare_finalize->takes_addend()) {
    done.addend = microbatch.shared_output;
  }
  CallContext back = context;
  Pending<void> returned;
  combine_parts_of_call =
      microbatches_of_call == 1 && prepared.most_rows ? combine_parts(*prepared.most_rows) : 1;
  if (combine_parts_of_call > 1) {
    if (context.stream.device().is_cuda()) {
      back.transfers = transfers.on(context.stream.device());
    }
    returned = compute_in_parts(microbatch, prepared, done, back);
  } else {
    done.expert_output = compute(microbatch.input, prepared, microbatch.output, {}, context);
    turns.before_send();
    if (shares_beside && !microbatch.shares_early) {
      share_after = context.stream.record();
    }
    returned = start_finalize(done, microbatch, context);
  }
  if (shares_beside && !microbatch.shares_early) {
    microbatch.shared_done =
        run_shared_beside(share_after, prepare_finalize->finalize_sms(), microbatch);
  }
  if (counts_later) {
    const Stream& stream = beside.on(context.stream.device());
    stream.wait(arrived);
    count_own(microbatch.input, stream);
    record_load(prepared, microbatch, stream);
  }
  Travel home{timed("finalize", returned.hook, back), {}};
  if (shares && !microbatch.shares_early) {
    home.meanwhile = share;
  }
  co_yield std::move(home);
  {
    const Profile::Span span = transfer_span("finalize", back);
    returned.receive();
  }
  context.stream.wait(microbatch.shared_done);
  if (microbatch.input.add_shared && !done.addend) {
    add_rows(microbatch.output, microbatch.shared_output, microbatch.output, context.stream);
  }
}

Pending<PrepareResult> ModularKernel::State::start_prepare(Microbatch& microbatch,
                                                           const CallContext& context,
                                                           int64_t early_rows) {
  const KernelInput& input = microbatch.input;
  PrepareInput request;
  request.hidden = input.hidden;
  request.topk_ids = input.topk_ids;
  request.topk_weights = input.topk_weights;
  request.router_logits = input.router_logits;
  request.num_experts = experts->desc().num_experts;
  request.expert_map = input.expert_map;
  request.apply_router_weight_on_input = input.apply_router_weight_on_input;
  request.quant = &experts->quant();
  request.defer_input_quant = defers_input_quant(*experts);
  request.lora_ids = lora_ids_to_send(input, context);
  request.own_rows = microbatch.shared_output ? &microbatch.own_rows : nullptr;
  request.early_rows = early_rows;
  request.most_early_rows = options.chunk_tokens;  // chunks await all of them
  const auto prepare = [this, request](const CallContext& own) {
    return prepare_finalize->prepare(request, own);
  };
  if (!prepare_finalize->supports_async() && !context.transfers) {
    return {nullptr, [prepare, context] { return prepare(context); }};
  }
  begin_after_compute(context);
  const Profile::Span span = transfer_span("prepare", context);
  return prepare_finalize->supports_async() ? prepare_finalize->prepare_async(request, context)
                                            : start_all<PrepareResult>(context, prepare);
}

// Sums on their way back, as `back` says.
Pending<void> ModularKernel::State::start_finalize(const FinalizeInput& done,
                                                   const Microbatch& microbatch,
                                                   const CallContext& back) {
  if (done.addend) {
    transfer_stream(back).wait(microbatch.shared_done);
  }
  begin_after_compute(back);
  const Profile::Span span = transfer_span("finalize", back);
  return prepare_finalize->supports_async() ? prepare_finalize->finalize_async(done, back)
                                            : start_all<void>(back, [&](const CallContext& own) {
                                                prepare_finalize->finalize(done, own);
                                              });
}

// Rows for the local experts, always with the ids and weights that belong to them.
PrepareResult ModularKernel::State::finish_prepare(const KernelInput& input,
                                                   const Pending<PrepareResult>& pending,
                                                   const CallContext& context) {
  PrepareResult prepared;
  {
    const Profile::Span span = transfer_span("prepare", context);
    prepared = pending.receive();
  }
  if (prepare_finalize->is_monolithic()) {
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
  expect_prepared(prepared, prepared.topk_ids, prepared.topk_weights, *experts);
  return prepared;
}

// Ranks may give ids or not, each by itself, but all must send the same kinds of rows: where there
// are adapters, ids always travel.
Tensor ModularKernel::State::lora_ids_to_send(const KernelInput& input,
                                              const CallContext& context) const {
  if (input.lora_ids || experts->desc().num_adapters == 0 ||
      prepare_finalize->num_dispatchers() == 1) {
    return input.lora_ids;
  }
  Tensor none = context.get(WorkspaceSlot::kLoraIds, {input.hidden.dim(0)}, DType::kI32);
  fill(none, -1, context.stream);
  return none;
}

// Monolithic: the logits travelled, so the rows are routed where they arrived.
void ModularKernel::State::route(const KernelInput& input,
                                 PrepareResult& prepared,
                                 const CallContext& context) {
  const Profile::Span span(context.profile, "router", context.stream, context.microbatch);
  const Tensor& logits = prepared.router_logits ? prepared.router_logits : input.router_logits;
  const Shape shape{logits.dim(0), router->config().topk};
  const auto [ids, weights] =
      context.get(WorkspaceSlot::kRouter, {{shape, DType::kI32}, {shape, DType::kF32}});
  router->select(logits, ids, weights, context.stream);
  prepared.topk_ids = ids;
  prepared.topk_weights = weights;
}

void ModularKernel::State::record_load(const PrepareResult& prepared,
                                       const Microbatch& microbatch,
                                       const Stream& stream) {
  const Tensor own = loads[microbatch.index];
  if (prepared.expert_num_tokens) {
    copy_counts(prepared.expert_num_tokens, own, stream);
  } else {
    count_expert_tokens(prepared.topk_ids, map_of(microbatch.input), own, stream);
  }
}

void ModularKernel::State::count_own(const KernelInput& input, const Stream& stream) {
  if (input.own_load) {
    count_expert_tokens(input.topk_ids, {}, input.own_load, stream);
  }
}

// Final rows go where they belong at once, unless the experts read there.
Tensor ModularKernel::State::compute(const KernelInput& input,
                                     const PrepareResult& prepared,
                                     const Tensor& output,
                                     const ColumnParts& parts,
                                     const CallContext& context) {
  const Profile::Span span(context.profile, "experts", context.stream, context.microbatch);
  ExpertsInput rows;
  rows.x = prepared.x;
  rows.x_scale = prepared.x_scale;
  rows.topk_ids = prepared.topk_ids;
  rows.topk_weights = prepared.topk_weights;
  rows.expert_num_tokens = prepared.expert_num_tokens;
  rows.expert_map = map_of(input);
  rows.lora_ids = prepared.lora_ids;
  rows.expected_rows = prepared.expected_rows;
  rows.apply_router_weight_on_input = input.apply_router_weight_on_input;
  rows.max_sms = context.max_sms;
  rows.parts = parts;
  rows.arrivals = prepared.arrivals;
  const bool is_final = experts->weight_and_reduce() == WeightAndReduceKind::kNoOp &&
                        prepare_finalize->takes_final_output() && prepared.x.raw() != output.raw();
  return run_experts(*experts, rows, options.chunk_tokens, context,
                     is_final || parts.count > 1 ? output : Tensor());
}

// Each part is on its way, as `back` says, while the next is computed.
Pending<void> ModularKernel::State::compute_in_parts(const Microbatch& microbatch,
                                                     const PrepareResult& prepared,
                                                     const FinalizeInput& done,
                                                     const CallContext& back) {
  const CallContext& context = microbatch.context;
  const int64_t num_rows = prepared.x.dim(0);
  const int64_t hidden = experts->desc().hidden;
  const Tensor rows =
      context.get(WorkspaceSlot::kFusedOutput, {num_rows, hidden}, experts->desc().in_dtype);
  const Tensor by_part =
      rows.view({combine_parts_of_call, num_rows, hidden / combine_parts_of_call});
  std::vector<Pending<void>> sent;
  const auto send_next = [&] {
    const auto index = static_cast<int64_t>(sent.size());
    FinalizeInput columns = done;
    columns.expert_output = by_part[index];
    columns.first_column = index * by_part.dim(2);
    Pending<void>& way = sent.emplace_back(start_finalize(columns, microbatch, back));
    // It enqueues the end of this part, which is to come before the next one's begin.
    if (back.transfers && way.hook) {
      timed("finalize", std::exchange(way.hook, nullptr), back)();
    }
  };
  compute(microbatch.input, prepared, rows,
          {combine_parts_of_call, sms_beside(prepare_finalize->finalize_sms(), context),
           [&](int) { send_next(); }},
          context);
  // Where no rows came, nobody told of parts.
  while (static_cast<int>(sent.size()) < combine_parts_of_call) {
    send_next();
  }
  return joined(std::move(sent));
}

void ModularKernel::State::run_shared(const Microbatch& microbatch,
                                      const CallContext& context) const {
  const Profile::Span span(context.profile, "shared", context.stream, context.microbatch,
                           Profile::Track::kShared);
  // Specs tell all: what is quantized before it travels has scales of its own, no static ones.
  const auto& spec = shared_experts->quant_spec();
  const bool has_rows =
      microbatch.own_rows.x && spec && spec == activation_spec(experts->quant().a1);
  shared_experts->forward(microbatch.input.hidden, microbatch.shared_output, context,
                          has_rows ? microbatch.own_rows.x : Tensor(),
                          has_rows ? microbatch.own_rows.x_scale : Tensor());
}

// They begin after `before`, beside a transfer that holds comm_sms (0: none to mind): were all SMs
// theirs, it would wait for them.  Returns their end, for the call's stream to wait for.
Event ModularKernel::State::run_shared_beside(const Event& before,
                                              int comm_sms,
                                              const Microbatch& microbatch) {
  CallContext own = microbatch.context;
  own.stream = beside.on(own.stream.device());
  own.max_sms = sms_beside(comm_sms, own);
  own.stream.wait(before);
  run_shared(microbatch, own);
  return own.stream.record();
}

// After a failure: what the call has enqueued elsewhere comes before what its stream gets next, so
// that the caller may wait for that one and drop the tensors.
void ModularKernel::State::join_streams(const Stream& stream) const noexcept {
  for (const SideStream* side : {&beside, &transfers}) {
    try {
      side->join(stream);
    } catch (const std::exception& error) {  // the failure under way says more
      log(LogLevel::kError, error.what());
    }
  }
}

}  // namespace moebius
