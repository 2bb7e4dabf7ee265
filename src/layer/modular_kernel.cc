// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/modular_kernel.h"

#include <optional>
#include <utility>

#include "layer/kernel_checks.h"
#include "layer/row_ops.h"
#include "layer/run_experts.h"

namespace moebius {

struct ModularKernel::State {
  std::unique_ptr<PrepareFinalize> prepare_finalize;
  std::unique_ptr<Experts> experts;
  std::shared_ptr<const SharedExperts> shared_experts;
  std::shared_ptr<const Router> router;
  std::unique_ptr<WeightAndReduce> weight_and_reduce;
  int64_t chunk_tokens = 0;
  Tensor load;                   // i32 [L], rows of the last call per local expert, where it ran
  Stream load_stream;            // of the last call
  std::optional<Stream> beside;  // a GPU's: for the shared experts

  Pending<PrepareResult> start_prepare(const KernelInput& input, const CallContext& context);
  PrepareResult finish_prepare(const KernelInput& input,
                               Pending<PrepareResult> pending,
                               const CallContext& context);
  Tensor lora_ids_to_send(const KernelInput& input, const CallContext& context) const;
  void route(const KernelInput& input, PrepareResult& prepared, const CallContext& context);
  void record_load(const PrepareResult& prepared, const Tensor& map, const CallContext& context);
  Tensor map_of(const KernelInput& input) const {
    return prepare_finalize->localizes_ids() ? Tensor() : input.expert_map;
  }
  Tensor compute(const KernelInput& input,
                 const PrepareResult& prepared,
                 const CallContext& context);
  void finalize(const KernelInput& input,
                const FinalizeInput& done,
                const Tensor& shared_output,
                const CallContext& context);
  void run_shared(const Tensor& hidden, const Tensor& output, const CallContext& context) const;
  Event run_shared_beside(const Event& before,
                          const Tensor& hidden,
                          const Tensor& output,
                          const CallContext& context);
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
  expect_composable(*prepare_finalize, *experts, shared_experts.get(), router.get());
  state_->weight_and_reduce = make_weight_and_reduce(experts->weight_and_reduce());
  state_->load = Tensor::zeros({experts->desc().num_local_experts}, DType::kI32);
  state_->chunk_tokens = options.chunk_tokens > 0 ? options.chunk_tokens : default_chunk_tokens();
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
  return state_->load.device().is_cpu()
             ? state_->load.clone()
             : to_device(state_->load, Device::cpu(), state_->load_stream);
}
const Tensor& ModularKernel::expert_load_on_device() const {
  return state_->load;
}

void ModularKernel::forward(const KernelInput& input,
                            const Tensor& output,
                            const Tensor& shared_output,
                            const CallContext& context) {
  expect_kernel_input(input, output, shared_output, *state_->prepare_finalize, *state_->experts,
                      state_->shared_experts.get(), context);

  const bool shares_beside = shared_output.defined() && context.stream.device().is_cuda();
  const Event before = shares_beside ? context.stream.record() : Event();
  Pending<PrepareResult> pending = state_->start_prepare(input, context);
  // Why only now: what other ranks wait for is launched first.
  const Event shared_done =
      shares_beside ? state_->run_shared_beside(before, input.hidden, shared_output, context)
                    : Event();
  const PrepareResult prepared = state_->finish_prepare(input, std::move(pending), context);
  FinalizeInput done;
  done.expert_output = state_->compute(input, prepared, context);
  done.output = output;
  done.topk_ids = prepared.topk_ids;
  done.topk_weights = prepared.topk_weights;
  done.apply_router_weight_on_input = input.apply_router_weight_on_input;
  done.weight_and_reduce = state_->weight_and_reduce.get();
  state_->finalize(input, done, shares_beside ? Tensor() : shared_output, context);
  context.stream.wait(shared_done);
}

Pending<PrepareResult> ModularKernel::State::start_prepare(const KernelInput& input,
                                                           const CallContext& context) {
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
  if (!prepare_finalize->supports_async()) {
    return {nullptr,
            [this, request, context] { return prepare_finalize->prepare(request, context); }};
  }
  const Profile::Span span(context.profile, "prepare", context.stream);
  return prepare_finalize->prepare_async(request, context);
}

// Rows for the local experts, always with the ids and weights that belong to them.
PrepareResult ModularKernel::State::finish_prepare(const KernelInput& input,
                                                   Pending<PrepareResult> pending,
                                                   const CallContext& context) {
  PrepareResult prepared;
  {
    const Profile::Span span(context.profile, "prepare", context.stream);
    prepared = pending.finish();
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
  record_load(prepared, map_of(input), context);
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
  const Tensor none = context.get(WorkspaceSlot::kLoraIds, {input.hidden.dim(0)}, DType::kI32);
  fill(none, -1, context.stream);
  return none;
}

// Monolithic: the logits travelled, so the rows are routed where they arrived.
void ModularKernel::State::route(const KernelInput& input,
                                 PrepareResult& prepared,
                                 const CallContext& context) {
  const Profile::Span span(context.profile, "router", context.stream);
  const Tensor& logits = prepared.router_logits ? prepared.router_logits : input.router_logits;
  const Shape shape{logits.dim(0), router->config().topk};
  const auto space =
      context.get(WorkspaceSlot::kRouter, {{shape, DType::kI32}, {shape, DType::kF32}});
  router->select(logits, space[0], space[1], context.stream);
  prepared.topk_ids = space[0];
  prepared.topk_weights = space[1];
}

void ModularKernel::State::record_load(const PrepareResult& prepared,
                                       const Tensor& map,
                                       const CallContext& context) {
  const Device device = context.stream.device();
  if (load.device() != device) {
    load = Tensor::zeros(load.shape(), DType::kI32, device);
  }
  load_stream = context.stream;
  if (prepared.expert_num_tokens) {
    copy(prepared.expert_num_tokens, load, context.stream);
  } else {
    count_expert_tokens(prepared.topk_ids, map, load, context.stream);
  }
}

Tensor ModularKernel::State::compute(const KernelInput& input,
                                     const PrepareResult& prepared,
                                     const CallContext& context) {
  const Profile::Span span(context.profile, "experts", context.stream);
  ExpertsInput rows;
  rows.x = prepared.x;
  rows.x_scale = prepared.x_scale;
  rows.topk_ids = prepared.topk_ids;
  rows.topk_weights = prepared.topk_weights;
  rows.expert_num_tokens = prepared.expert_num_tokens;
  rows.expert_map = map_of(input);
  rows.lora_ids = prepared.lora_ids;
  rows.apply_router_weight_on_input = input.apply_router_weight_on_input;
  return run_experts(*experts, rows, chunk_tokens, context);
}

// Shared experts (not on a GPU) run while the combined rows are on their way, or after a combine
// that waits.
void ModularKernel::State::finalize(const KernelInput& input,
                                    const FinalizeInput& done,
                                    const Tensor& shared_output,
                                    const CallContext& context) {
  if (!prepare_finalize->supports_async()) {
    {
      const Profile::Span span(context.profile, "finalize", context.stream);
      prepare_finalize->finalize(done, context);
    }
    run_shared(input.hidden, shared_output, context);
    return;
  }
  Pending<void> pending;
  {
    const Profile::Span span(context.profile, "finalize", context.stream);
    pending = prepare_finalize->finalize_async(done, context);
  }
  run_shared(input.hidden, shared_output, context);
  const Profile::Span span(context.profile, "finalize", context.stream);
  pending.finish();
}

void ModularKernel::State::run_shared(const Tensor& hidden,
                                      const Tensor& output,
                                      const CallContext& context) const {
  if (output) {
    const Profile::Span span(context.profile, "shared", context.stream);
    shared_experts->forward(hidden, output, context);
  }
}

// They begin after `before`; returns their end, for the call's stream to wait for.
Event ModularKernel::State::run_shared_beside(const Event& before,
                                              const Tensor& hidden,
                                              const Tensor& output,
                                              const CallContext& context) {
  if (!beside || beside->device() != context.stream.device()) {
    beside = Stream::cuda(context.stream.device().index);
  }
  beside->wait(before);
  CallContext own = context;
  own.stream = *beside;
  run_shared(hidden, output, own);
  return beside->record();
}

}  // namespace moebius
