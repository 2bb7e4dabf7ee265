// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/moe_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "layer/row_ops.h"

namespace moebius {

struct MoeLayer::State {
  MoeConfig config;
  Router router;
  std::unique_ptr<ModularKernel> kernel;
  bool has_shared = false;
  bool apply_router_weight_on_input = false;
  Tensor load;    // i64 [E], selections of the last call
  Tensor counts;  // i32 [E], scratch

  DType in_dtype() const { return kernel->experts().desc().in_dtype; }
  void route(const Tensor& hidden,
             const Tensor& logits,
             const Tensor& ids,
             const Tensor& weights,
             const CallContext& context);
  void run_kernel(const Tensor& hidden,
                  const Tensor& ids,
                  const Tensor& weights,
                  const Tensor& routed,
                  const Tensor& shared,
                  const CallContext& context);
};

namespace {

ExpertsDesc routed_desc(const MoeLayerWeights& weights, const MoeLayerOptions& options) {
  ExpertsDesc desc;
  desc.num_experts = weights.config.num_experts;
  desc.num_local_experts = weights.config.num_local_experts;
  desc.topk = weights.config.experts_per_token;
  desc.hidden = weights.config.hidden;
  desc.intermediate = weights.config.intermediate;
  // The oracle must not be rounded to the model's dtype between the stages.
  desc.in_dtype = options.precision == Precision::kF64 ? DType::kF32 : weights.config.in_dtype;
  desc.activation = weights.activation;
  desc.format = options.format;
  desc.precision = options.precision;
  return desc;
}

std::shared_ptr<const SharedExperts> make_shared_experts(MoeLayerWeights& weights,
                                                         const ExpertsDesc& routed,
                                                         const MoeLayerOptions& options,
                                                         const Stream& stream) {
  if (!weights.shared.w1) {
    return nullptr;
  }
  ExpertsDesc desc = routed;
  desc.num_experts = 1;
  desc.num_local_experts = 1;
  desc.topk = 1;
  desc.intermediate = weights.shared_intermediate;
  desc.format = ActivationFormat::kStandard;
  return std::make_shared<SharedExperts>(
      make_experts(desc, std::move(weights.shared), stream, options.experts),
      std::move(weights.shared_gate), options.chunk_tokens);
}

void expect_consistent(MoeLayerWeights& weights) {
  MoeConfig& config = weights.config;
  config.validate();
  if (config.parallel.ep_size != 1 || config.parallel.tp_size != 1) {
    throw Unsupported(
        fmt::format("MoeLayer runs on one rank, its weights are for {} (ep) x {} (tp)",
                    config.parallel.ep_size, config.parallel.tp_size));
  }
  expect_eq(config.num_local_experts, config.num_experts, "num_local_experts (num_experts)");
  expect_eq(weights.router_config.num_experts, config.num_experts,
            "experts of the router (num_experts)");
  expect_eq(weights.router_config.topk, config.experts_per_token,
            "topk of the router (experts_per_token)");
  expect(weights.router.gate || weights.router_config.simulation != Simulation::kNone,
         "gate of the router is missing");
  if (weights.router.gate) {
    expect_shape(weights.router.gate, {config.num_experts, config.hidden}, "gate of the router");
  }
  expect(weights.shared.w1 || !weights.shared_gate, "shared_gate is given, but no shared experts");
  if (weights.apply_router_weight_on_input) {
    expect_eq(config.experts_per_token, 1, "topk with apply_router_weight_on_input");
  }
}

}  // namespace

MoeLayer::MoeLayer(MoeLayerWeights weights, const MoeLayerOptions& options, const Stream& stream) {
  expect_consistent(weights);
  const ExpertsDesc desc = routed_desc(weights, options);
  auto shared = make_shared_experts(weights, desc, options, stream);
  auto experts = make_experts(desc, std::move(weights.experts), stream, options.experts);
  auto prepare_finalize =
      options.format == ActivationFormat::kBatched
          ? make_no_ep_batched(weights.config.max_num_tokens, desc.num_local_experts)
          : make_no_ep();
  const bool has_shared = shared != nullptr;
  const int64_t num_experts = desc.num_experts;
  state_ = std::unique_ptr<State>(new State{
      weights.config, Router(std::move(weights.router_config), std::move(weights.router)),
      std::make_unique<ModularKernel>(std::move(prepare_finalize), std::move(experts),
                                      std::move(shared), nullptr,
                                      KernelOptions{options.chunk_tokens}),
      has_shared, weights.apply_router_weight_on_input, Tensor::zeros({num_experts}, DType::kI64),
      Tensor::zeros({num_experts}, DType::kI32)});
}

MoeLayer::~MoeLayer() = default;

const Router& MoeLayer::router() const {
  return state_->router;
}
const ModularKernel& MoeLayer::kernel() const {
  return *state_->kernel;
}
const MoeConfig& MoeLayer::config() const {
  return state_->config;
}
Tensor MoeLayer::expert_load() const {
  return state_->load.clone();
}

void MoeLayer::forward(const Tensor& hidden, const Tensor& output, const CallContext& context) {
  expect_hidden_dtype(hidden, "hidden");
  expect_eq(hidden.num_dims(), 2, "dimensions of hidden");
  expect_eq(hidden.dim(1), state_->config.hidden, "hidden.dim(1)");
  expect_hidden_dtype(output, "output");
  expect_shape(output, hidden.shape(), "output");
  expect(context.workspaces != nullptr, "workspaces are missing");

  const int64_t num_tokens = hidden.dim(0);
  const DType model_dtype = state_->config.in_dtype;
  const DType in_dtype = state_->in_dtype();
  const bool has_shared = state_->has_shared;
  const Shape selections{num_tokens, state_->config.experts_per_token};
  const auto rows_if = [&](bool needed, DType dtype) {
    return TensorSpec{needed ? hidden.shape() : Shape{0}, dtype};
  };
  const bool rounds_input = hidden.dtype() != model_dtype;
  const bool widens_input = model_dtype != in_dtype;  // for the float64 oracle
  const bool writes_to_output = !has_shared && output.dtype() == in_dtype;
  const auto space =
      context.workspaces->get(context.microbatch, WorkspaceSlot::kLayer,
                              {{{num_tokens, state_->config.num_experts}, DType::kF32},
                               {selections, DType::kI32},
                               {selections, DType::kF32},
                               rows_if(rounds_input, model_dtype),
                               rows_if(widens_input, in_dtype),
                               rows_if(!writes_to_output, in_dtype),
                               rows_if(has_shared, in_dtype)},
                              context.stream.device());

  Tensor x = hidden;
  if (rounds_input) {
    copy_rows(x, space[3], context.stream);
    x = space[3];
  }
  if (widens_input) {
    copy_rows(x, space[4], context.stream);
    x = space[4];
  }
  const Tensor& ids = space[1];
  const Tensor& weights = space[2];
  const Tensor routed = writes_to_output ? output : space[5];
  const Tensor shared = has_shared ? space[6] : Tensor();
  state_->route(x, space[0], ids, weights, context);
  state_->run_kernel(x, ids, weights, routed, shared, context);
  if (has_shared) {
    add_rows(routed, shared, output, context.stream);
  } else if (!writes_to_output) {
    copy_rows(routed, output, context.stream);
  }
}

void MoeLayer::State::route(const Tensor& hidden,
                            const Tensor& logits,
                            const Tensor& ids,
                            const Tensor& weights,
                            const CallContext& context) {
  const Profile::Span span(context.profile, "router");
  if (router.weights().gate) {
    router.logits(hidden, logits, context.stream);
  }
  router.select(logits, ids, weights, context.stream);
  count_expert_tokens(ids, {}, counts, context.stream);
  std::copy_n(counts.data<int32_t>(), counts.numel(), load.data<int64_t>());
}

// In pieces of what prepare takes at once; one call even for no tokens, since it may be collective.
void MoeLayer::State::run_kernel(const Tensor& hidden,
                                 const Tensor& ids,
                                 const Tensor& weights,
                                 const Tensor& routed,
                                 const Tensor& shared,
                                 const CallContext& context) {
  const int64_t num_tokens = hidden.dim(0);
  const int64_t limit =
      std::max<int64_t>(1, kernel->prepare_finalize().max_tokens_per_rank().value_or(num_tokens));
  int64_t begin = 0;
  do {
    const int64_t end = std::min(begin + limit, num_tokens);
    KernelInput input;
    input.hidden = hidden.slice(begin, end);
    input.topk_ids = ids.slice(begin, end);
    input.topk_weights = weights.slice(begin, end);
    input.num_experts = config.num_experts;
    input.apply_router_weight_on_input = apply_router_weight_on_input;
    kernel->forward(input, routed.slice(begin, end), has_shared ? shared.slice(begin, end) : shared,
                    context);
    begin = end;
  } while (begin < num_tokens);
}

}  // namespace moebius
