// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A MoeLayer as its callers see it: how it is made, what it answers, and what it refuses before a
// call begins.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/group/captured_exchanges.h"
#include "comm/group/given_up.h"
#include "core/device_traits.h"
#include "core/ids.h"
#include "core/overlap.h"
#include "core/same_device.h"
#include "experts/validate.h"
#include "experts/weight_tensors.h"
#include "layer/kernel_checks.h"
#include "layer/layer_parts.h"
#include "layer/layer_state.h"
#include "layer/rows/row_ops.h"
#include "layer/rows/token_slices.h"

namespace moebius {

namespace {

// A copy on the CPU that shares no memory with `counts` and is complete on return.
Tensor on_host(const Tensor& counts, const Stream& stream) {
  const Tensor there = to_device(counts, Device::cpu(), stream);
  return there.raw() == counts.raw() ? there.clone() : there;
}

bool is_given(const ExpertWeights& weights) {
  bool any = false;
  for_each_tensor(weights, [&](const Tensor& tensor, const auto&) { any = any || tensor; });
  return any;
}

bool is_given(const RouterWeights& weights) {
  return weights.gate || weights.bias || weights.correction_bias || weights.expert_scale;
}

Tensor widened(const Tensor& counts) {
  Tensor wide = Tensor::empty(counts.shape(), DType::kI64);
  std::copy_n(counts.data<int32_t>(), counts.numel(), wide.data<int64_t>());
  return wide;
}

}  // namespace

MoeLayer::MoeLayer(MoeLayerWeights weights,
                   const MoeLayerOptions& options,
                   const Stream& stream,
                   Group* group,
                   MoeLayerParts parts) {
  expect_consistent(weights, options, group, parts);
  if (group != nullptr && device_traits(stream.device()).enqueues) {
    expect_eq(to_string(stream.device()), to_string(group->device()),
              "device of the stream (this rank's of the group)");
  }
  const MoeConfig config = weights.config;
  const Device device = stream.device();
  const ExpertsDesc desc = routed_desc(weights, options, parts);
  if (parts.router != nullptr) {
    expect_eq(to_string(parts.router->config().device), to_string(device), "device of the router");
  }

  const bool makes_all_parts = parts.router == nullptr && !parts.routing &&
                               parts.experts == nullptr && parts.prepare_finalize == nullptr &&
                               parts.shared_experts == nullptr;
  state_ = std::make_unique<State>();
  state_->shared_experts = parts.shared_experts;
  if (parts.shared_experts == nullptr) {
    state_->shared_experts = state_->own_shared =
        make_shared_experts(weights, desc, options, stream);
  }
  if (parts.experts == nullptr) {
    parts.experts = make_experts(desc, std::move(weights.experts), stream, options.experts);
  }
  state_->config = config;
  state_->group = group;
  state_->device = device;
  state_->sequence_parallel = options.sequence_parallel;
  state_->has_capacity = options.capacity.has_value();
  state_->has_own_transport = parts.prepare_finalize != nullptr;
  state_->apply_router_weight_on_input = weights.apply_router_weight_on_input;
  state_->routing = std::move(parts.routing);
  state_->router = std::move(parts.router);
  if (state_->router == nullptr && !state_->routing) {
    state_->router = state_->own_router = make_router(weights, device);
  }
  if (parts.prepare_finalize == nullptr) {
    parts.prepare_finalize = make_prepare_finalize(weights, desc, options, group);
  }
  state_->kernel = std::make_unique<ModularKernel>(
      std::move(parts.prepare_finalize), std::move(parts.experts), state_->shared_experts,
      options.monolithic ? state_->router : nullptr, options.kernel);
  if (config.parallel.ep_size > 1) {
    const Tensor map = placement_of(weights).expert_map(config.parallel.ep_rank);
    state_->expert_map = to_device(map, device, stream);
    stream.synchronize();  // the map has been read
  }
  state_->counts = Tensor::zeros({config.num_experts}, DType::kI32, device);
  state_->computed_rows = Tensor::zeros({config.num_local_experts}, DType::kI64, device);
  state_->stream = stream;
  // Parts of the caller's and transports may do something on the host in every call.
  state_->can_replay = makes_all_parts && device_traits(device).enqueues &&
                       state_->num_ranks() == 1 && config.parallel.backend == All2AllBackend::kNone;
}

MoeLayer::~MoeLayer() = default;

void MoeLayer::set_dead(int rank, bool dead) {
  state_->kernel->set_dead(rank, dead);
}

bool MoeLayer::retains_weights() const {
  const Experts* shared =
      state_->shared_experts != nullptr ? state_->shared_experts->experts() : nullptr;
  return state_->kernel->experts().retains_weights() ||
         (shared != nullptr && shared->retains_weights());
}

void MoeLayer::update_weights(const MoeLayerWeights& weights, const Stream& stream) {
  State& state = *state_;
  expect_eq(to_string(stream.device()), to_string(state.device), "device of the stream");
  const bool has_experts = is_given(weights.experts);
  const bool has_shared = is_given(weights.shared) || weights.shared_gate;
  const bool has_router = is_given(weights.router);
  // All checks come before the first write.
  if (has_experts) {
    state.kernel->experts().expect_update(weights.experts);
  }
  if (has_shared) {
    expect(state.shared_experts != nullptr,
           "shared experts are given, expected none as the layer has");
    if (state.own_shared == nullptr) {
      throw Unsupported("the shared experts are the caller's, who replaces their weights");
    }
    state.own_shared->expect_update(weights.shared, weights.shared_gate);
  }
  if (has_router) {
    if (state.own_router == nullptr) {
      throw Unsupported("the layer has no router of its own whose weights it could replace");
    }
    state.own_router->expect_update(weights.router);
  }
  if (has_experts) {
    state.kernel->update_weights(weights.experts, stream);
  }
  if (has_shared) {
    state.own_shared->update_weights(weights.shared, weights.shared_gate, stream);
  }
  if (has_router) {
    state.own_router->update_weights(weights.router, stream);
  }
}

const Router* MoeLayer::router() const {
  return state_->router.get();
}
const ModularKernel& MoeLayer::kernel() const {
  return *state_->kernel;
}
const MoeConfig& MoeLayer::config() const {
  return state_->config;
}
Tensor MoeLayer::expert_load() const {
  return state_->counts_own() ? widened(on_host(state_->counts, state_->stream))
                              : local_expert_load();
}
Tensor MoeLayer::local_expert_load() const {
  return state_->took_pieces ? on_host(state_->computed_rows, state_->stream)
                             : widened(state_->kernel->last_expert_load());
}

int MoeLayer::last_microbatches() const {
  return state_->num_microbatches;
}

void MoeLayer::check() const {
  state_->kernel->prepare_finalize().check();
  if (state_->group != nullptr && state_->group->has_given_up()) {
    comm::throw_given_up(*state_->group, "layer");
  }
}

Support MoeLayer::can_be_captured() const {
  if (state_->sums_over_ranks() || state_->slices_tokens()) {
    if (const Support exchanges = comm::can_capture_exchanges(*state_->group); !exchanges.ok) {
      return exchanges;
    }
  }
  return state_->kernel->prepare_finalize().traits().can_be_captured;
}

void MoeLayer::forward(const Tensor& hidden, const Tensor& output, const CallContext& context) {
  forward(MoeLayerInput{.hidden = hidden}, output, context);
}

void MoeLayer::forward(const MoeLayerInput& input,
                       const Tensor& output,
                       const CallContext& context) {
  State& state = *state_;
  state.expect_call({input, output}, context.stream);
  const std::shared_ptr<void> mark = state.one_call.begin("a layer");
  if (!state.replay({input, output}, context)) {
    state.call_once({input, output}, context);
  }
}

LayerCall MoeLayer::start(const MoeLayerInput& input,
                          const Tensor& output,
                          const CallContext& context) {
  State& state = *state_;
  state.expect_call({input, output}, context.stream);
  context.pool();  // throws where there is none
  std::shared_ptr<void> mark = state.one_call.begin("a layer");
  // Where the kernel has peers, its own call tells them.
  std::function<void(std::string_view)> tell;
  if (state.sums_over_ranks()) {
    tell = [&state](std::string_view why) { tell_others(*state.group, why); };
  }
  return LayerCall(std::make_unique<LayerCall::State>(
      state.run({input, output}, context, /*in_steps=*/true), std::move(mark), std::move(tell)));
}

LayerCall MoeLayer::start(const Tensor& hidden, const Tensor& output, const CallContext& context) {
  return start(MoeLayerInput{.hidden = hidden}, output, context);
}

// Checks the whole call before it is cut into slices and pieces, since some of those would run
// before a later one is refused.
void MoeLayer::State::expect_call(const Call& call, const Stream& call_stream) const {
  const auto& [input, output] = call;
  const auto& [hidden, ids, weights, lora_ids, a2_scale, options] = input;
  expect_hidden_dtype(hidden, "hidden");
  expect_eq(hidden.num_dims(), 2, "dimensions of hidden");
  expect_eq(hidden.dim(1), config.hidden, "hidden.dim(1)");
  expect_on(hidden, device, "hidden");
  expect_hidden_dtype(output, "output");
  expect_shape(output, hidden.shape(), "output");
  expect_on(output, device, "output");
  expect_writable(output, "output");
  expect_apart(output, ids, "output", "topk_ids");
  expect_apart(output, weights, "output", "topk_weights");
  expect_apart(output, lora_ids, "output", "lora_ids");
  expect_apart(output, a2_scale, "output", "a2_scale");
  if (lora_ids) {
    expect_lora_ids(lora_ids, hidden.dim(0), kernel->experts().desc().num_adapters);
    expect_on(lora_ids, device, "lora_ids");
  }
  expect_a2_scale(kernel->experts(), a2_scale, {hidden.dim(0)});
  if (a2_scale) {
    expect_on(a2_scale, device, "a2_scale");
  }
  expect_ids(input);
  if (options) {
    expect_kernel_options(*options);
    if (!has_own_transport) {
      expect_fits_backend(*options, config.parallel.backend, has_capacity);
    }
  }
  // This matters for a layer on the CPU, too, because workspaces are on the stream's device.
  if (call_stream.device() != device) {
    expect_eq(to_string(call_stream.device()), to_string(device), "device of the stream");
  }
}

void MoeLayer::State::expect_ids(const MoeLayerInput& input) const {
  const auto& [hidden, ids, weights, lora_ids, a2_scale, options] = input;
  expect(ids.defined() == weights.defined(), [&] {
    return ids ? "topk_ids are given without topk_weights"
               : "topk_weights are given without topk_ids";
  });
  if (!ids) {
    expect(router != nullptr || routing,
           "topk_ids are missing, and the layer has neither a router nor a routing");
    return;
  }
  expect(!kernel->prepare_finalize().traits().is_monolithic, [&] {
    return fmt::format("topk_ids are given, but {} is monolithic and routes rows where they arrive",
                       kernel->prepare_finalize().name());
  });
  expect_id_dtype(ids, "topk_ids");
  const Shape selections{hidden.dim(0), config.experts_per_token};
  expect_shape(ids, selections, "topk_ids");
  expect_on(ids, device, "topk_ids");
  expect_dtype(weights, DType::kF32, "topk_weights");
  expect_shape(weights, selections, "topk_weights");
  expect_on(weights, device, "topk_weights");
  if (device_traits(device).host_reads) {
    expect_expert_ids(ids, config.num_experts);
  }
}

}  // namespace moebius
