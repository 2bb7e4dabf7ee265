// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/group/given_up.h"
#include "core/device_traits.h"
#include "core/ids.h"
#include "core/same_device.h"
#include "experts/validate.h"
#include "experts/weight_tensors.h"
#include "layer/call_state.h"
#include "layer/flight.h"
#include "layer/kernel_checks.h"
#include "layer/layer_parts.h"
#include "layer/rows/row_ops.h"
#include "layer/rows/token_slices.h"
#include "moebius/moe_layer.h"

namespace moebius {

struct MoeLayer::State {
  MoeConfig config;
  Group* group = nullptr;  // null: one rank
  bool sequence_parallel = false;
  bool has_capacity = false;
  bool has_own_transport = false;        // prepare_finalize is the caller's
  std::shared_ptr<const Router> router;  // these two: at most one is set
  Routing routing;
  // The layer's own parts, whose weights it may replace; null where the caller brought them.
  std::shared_ptr<Router> own_router;
  std::shared_ptr<SharedExperts> own_shared;
  std::shared_ptr<const SharedExperts> shared_experts;
  std::unique_ptr<ModularKernel> kernel;
  Tensor expert_map;  // undefined: all experts are local
  bool apply_router_weight_on_input = false;
  Device device;
  // Both are on that device.
  Tensor counts;         // i32 [E], selections of the last call
  Tensor computed_rows;  // i64 [L], of the last call if it took several calls of the kernel
  bool took_pieces = false;
  int num_microbatches = 1;
  Stream stream;  // of the last call
  OneCall one_call;

  DType in_dtype() const { return kernel->experts().desc().in_dtype; }
  int num_ranks() const { return group == nullptr ? 1 : group->size(); }
  // The number of ranks that hold the same tokens as this one, itself included.
  int tp_size() const { return group == nullptr ? 1 : num_ranks() / config.parallel.dp_size; }
  // Whether this class has to sum the partial outputs of all ranks, which backends do themselves.
  bool sums_over_ranks() const {
    return num_ranks() > 1 && config.parallel.backend == All2AllBackend::kNone &&
           !has_own_transport;
  }
  bool has_dead_ranks() const {
    for (int rank = 0; rank < num_ranks(); ++rank) {
      if (group != nullptr && group->is_dead(rank)) {
        return true;
      }
    }
    return false;
  }
  // Whether the selections of this rank's own tokens are counted apart.  Otherwise they are the
  // rows that its experts compute.
  bool counts_own() const {
    return expert_map || kernel->prepare_finalize().traits().num_dispatchers > 1;
  }
  bool slices_tokens() const { return tp_size() > 1 && !sums_over_ranks() && !sequence_parallel; }

  // The arguments of forward(), or this rank's slices of them.
  struct Call {
    MoeLayerInput input;
    Tensor output;
  };
  // What the kernel computes for a call.
  struct Work {
    KernelInput input;
    Tensor routed;
    Tensor shared;
    Tensor summed;  // room for the sums over ranks, if there are any
    bool writes_to_output = false;
  };
  void expect_call(const Call& call, const Stream& call_stream) const;
  void expect_ids(const MoeLayerInput& input) const;
  Call slice_of(const Call& call) const;
  // A whole call.  It gives up its turn where the kernel has sent rows, if it is `in_steps`.
  Task run(Call call, CallContext context, bool in_steps);
  // The beginning of a call, from hidden states to routed tokens, and its end.
  Work begin(const Call& call, const CallContext& context);
  void add_up(const Call& call, const Work& work, const CallContext& context) const;
  void gather(const Tensor& output, const CallContext& context) const;
  void route(const KernelInput& input, const CallContext& context);
  int64_t num_pieces(int64_t num_tokens, int64_t limit) const;
  // It takes references to what outlives it, the arguments of run().
  Task run_kernel(const Work& work, const CallContext& context, bool in_steps);
  static Work piece_of(const Work& work, const TokenSlice& own);
  void count_computed(const Stream& call_stream) const;
};

namespace {

// A copy on the CPU that shares no memory with `counts` and is complete on return.
Tensor on_host(const Tensor& counts, const Stream& stream) {
  const Tensor there = to_device(counts, Device::cpu(), stream);
  return there.raw() == counts.raw() ? there.clone() : there;
}

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
  if (state_->sums_over_ranks()) {
    return Support::no("outputs of the ranks are summed by copies that hosts agree on");
  }
  if (state_->slices_tokens()) {
    return Support::no("tokens of a TP group are gathered by copies that hosts agree on");
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
  Task call = state.run({input, output}, context, /*in_steps=*/false);
  while (call.step()) {
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

Task MoeLayer::State::run(Call call, CallContext context, bool in_steps) {
  const std::shared_ptr<void> held = context.pool().hold(context.microbatch, WorkspaceSlot::kLayer);
  const Call own = slices_tokens() ? slice_of(call) : call;
  const Work work = begin(own, context);
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
    route(work.input, context);
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

void MoeLayer::State::route(const KernelInput& input, const CallContext& context) {
  const Profile::Span span(context.profile, "router", context.stream);
  if (routing) {
    return routing(input.hidden, input.topk_ids, input.topk_weights, context);
  }
  if (router->has_gate()) {
    router->logits(input.hidden, input.router_logits, context.stream);
  }
  router->select(input.router_logits, input.topk_ids, input.topk_weights, context.stream);
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
