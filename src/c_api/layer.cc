// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "c_api/checkpoints.h"
#include "c_api/convert.h"
#include "c_api/expert_weights.h"
#include "c_api/groups.h"
#include "c_api/layer_options.h"
#include "c_api/router.h"
#include "c_api/status.h"
#include "c_api/streams.h"
#include "c_api/structs.h"
#include "moebius/moe_layer.h"

namespace moebius::c_api {

namespace {

struct LayerObject : Object {
  static constexpr std::string_view kKind = "layer";
  using Handle = moebius_layer;

  LayerObject(MoeLayerWeights weights,
              LayerPlan plan,
              const Stream& stream,
              std::shared_ptr<GroupObject> of)
      : Object(of ? of->usage : std::make_shared<Usage>()),
        group(std::move(of)),
        workspaces(std::move(plan.workspaces)),
        layer(std::move(weights),
              plan.options,
              stream,
              group ? &group->get() : nullptr,
              std::move(plan.parts)) {
    backend = layer.kernel().prepare_finalize().name();
    experts = layer.kernel().experts().name();
  }

  CallContext context(const Stream& stream, int microbatch) const {
    return {.stream = stream, .workspaces = &workspaces->pool, .microbatch = microbatch};
  }

  std::shared_ptr<GroupObject> group;  // null for one rank
  std::shared_ptr<WorkspacesObject> workspaces;
  MoeLayer layer;
  // What infos point to.
  std::string backend, experts, why_not_captured;
};

struct CallObject : Object {
  static constexpr std::string_view kKind = "call";
  using Handle = moebius_call;

  CallObject(std::shared_ptr<LayerObject> of, LayerCall started)
      : Object(of->usage), layer(std::move(of)), call(std::move(started)) {}
  std::shared_ptr<LayerObject> layer;
  LayerCall call;
};

// Each has workspaces of its own, so a number that is no index would take all memory.
constexpr int32_t kMostMicrobatches = 256;

// A call's tensors and options.
struct Call {
  MoeLayerInput input;
  Tensor output;
  CallContext context;
};

Call read_call(const LayerObject& layer,
               const moebius_layer_input* input,
               const moebius_tensor* output,
               moebius_stream stream) {
  const moebius_layer_input given = read_struct(input, "input");
  expect_ge(given.microbatch, 0, "microbatch");
  expect_le(given.microbatch, kMostMicrobatches - 1, "microbatch");
  const Stream on = read_stream(stream);
  Call call{.input = {.hidden = read_tensor(given.hidden, "hidden", on)},
            .output = read_tensor(output, "output", on),
            .context = layer.context(on, given.microbatch)};
  call.input.topk_ids = read_optional_tensor(given.topk_ids, "topk_ids", on);
  call.input.topk_weights = read_optional_tensor(given.topk_weights, "topk_weights", on);
  call.input.lora_ids = read_optional_tensor(given.lora_ids, "lora_ids", on);
  call.input.a2_scale = read_optional_tensor(given.a2_scale, "a2_scale", on);
  if (given.kernel != nullptr) {
    call.input.kernel = read_kernel_options(given.kernel);
  }
  return call;
}

// What a layer is made from, or what is updated, of the caller's tensors.
MoeLayerWeights read_tensors(const moebius_layer_weights& given, const Stream& stream) {
  MoeLayerWeights weights;
  weights.router = read_router_weights(given.router, stream);
  weights.experts = read_expert_weights(given.experts, stream);
  weights.shared = read_expert_weights(given.shared, stream);
  weights.shared_gate = read_optional_tensor(given.shared_gate, "shared_gate", stream);
  return weights;
}

MoeLayerWeights read_weights(const moebius_layer_weights& given,
                             const LayerPlan& plan,
                             const Stream& stream) {
  MoeLayerWeights weights = read_tensors(given, stream);
  expect_described(weights.experts);
  weights.shared.quant.validate();
  const RouterConfig router = read_router_config(given.router_config, stream.device());
  if (given.router != nullptr) {  // otherwise calls bring ids, or the caller's routing chooses
    weights.router_config = router;
  }
  weights.apply_router_weight_on_input =
      read_flag(given.apply_router_weight_on_input, "apply_router_weight_on_input");
  weights.activation = read_activation(given.activation);
  MoeConfig& config = weights.config;
  config.num_experts = router.num_experts;
  config.experts_per_token = router.topk;
  config.hidden = given.hidden == 0 ? weights.experts.w1.dim(2) : given.hidden;
  config.intermediate = given.intermediate == 0 ? weights.experts.w2.dim(2) * plan.parallel.tp_size
                                                : given.intermediate;
  config.parallel = plan.parallel;
  config.in_dtype = read_in_dtype(given.in_dtype);
  config.max_num_tokens = plan.max_num_tokens;
  if (given.placement != nullptr) {
    weights.placement = read_placement(given.placement, config.num_experts, plan.parallel.ep_size);
    config.num_local_experts = weights.placement->num_local(plan.parallel.ep_rank);
  }
  if (given.shared != nullptr) {
    expect_defined(weights.shared.w1, "w1 of the shared experts");
    expect_defined(weights.shared.w2, "w2 of the shared experts");
    expect_eq(weights.shared.w2.num_dims(), 3, "dimensions of the shared w2");
    weights.shared_intermediate = weights.shared.w2.dim(2);
  }
  return weights;
}

// Makes a layer while the group, if there is one, is in use by this call alone.
void make_layer(moebius_layer* layer,
                const moebius_layer_options* options,
                moebius_group group,
                moebius_stream stream,
                const auto& load) {
  moebius_layer& place = expect_out(layer, "layer");
  std::optional<Using<GroupObject>> used;
  if (group != nullptr) {
    used.emplace(group);
  }
  LayerPlan plan = read_layer_options(options, used ? &**used : nullptr);
  const Stream on = read_stream(stream);
  MoeLayerWeights weights = load(plan, on);
  place = make_handle(std::make_shared<LayerObject>(std::move(weights), std::move(plan), on,
                                                    used ? used->object() : nullptr));
}

}  // namespace

}  // namespace moebius::c_api

using namespace moebius;
using namespace moebius::c_api;

moebius_status moebius_layer_load(moebius_checkpoint checkpoint,
                                  int64_t layer_index,
                                  const moebius_load_options* load,
                                  const moebius_layer_options* options,
                                  moebius_group group,
                                  moebius_stream stream,
                                  moebius_layer* layer) {
  return guarded([&] {
    const auto object = find<CheckpointObject>(checkpoint);
    const moebius_load_options given = read_optional(load, "load options");
    make_layer(layer, options, group, stream, [&](const LayerPlan& plan, const Stream&) {
      const ModelInfo& model = object->checkpoint.info();
      expect(layer_index != -1 || !model.moe_layers.empty(), "the model has no layer of experts");
      LoadOptions how;
      how.quant = given.quant == nullptr ? "auto" : given.quant;
      how.ep_size = plan.parallel.ep_size;
      how.ep_rank = plan.parallel.ep_rank;
      how.tp_size = plan.parallel.tp_size;
      how.tp_rank = plan.parallel.tp_rank;
      if (given.placement != nullptr) {
        how.placement = read_placement(given.placement, model.num_experts, plan.parallel.ep_size);
      }
      if (read_flag(given.allow_nonfinite, "allow_nonfinite")) {
        how.allow_nonfinite = true;
      }
      MoeLayerWeights weights = object->checkpoint.load_layer(
          layer_index == -1 ? model.moe_layers.front() : layer_index, how);
      weights.config.parallel = plan.parallel;
      weights.config.max_num_tokens = plan.max_num_tokens;
      return weights;
    });
  });
}

moebius_status moebius_layer_create(const moebius_layer_weights* weights,
                                    const moebius_layer_options* options,
                                    moebius_group group,
                                    moebius_stream stream,
                                    moebius_layer* layer) {
  return guarded([&] {
    const moebius_layer_weights given = read_struct(weights, "weights");
    make_layer(layer, options, group, stream, [&](const LayerPlan& plan, const Stream& on) {
      return read_weights(given, plan, on);
    });
  });
}

moebius_status moebius_layer_get_info(moebius_layer layer, moebius_layer_info* info) {
  return guarded([&] {
    const Using<LayerObject> used(layer);
    const MoeConfig& config = used->layer.config();
    const Support capture = used->layer.can_be_captured();
    used->why_not_captured = capture.reason;
    write_struct(info, "info",
                 {.struct_size = 0,
                  .num_experts = config.num_experts,
                  .num_local_experts = config.num_local_experts,
                  .topk = config.experts_per_token,
                  .hidden = config.hidden,
                  .intermediate = config.intermediate,
                  .in_dtype = static_cast<int32_t>(config.in_dtype),
                  .has_router = used->layer.router() != nullptr ? 1 : 0,
                  .retains_weights = used->layer.retains_weights() ? 1 : 0,
                  .can_be_captured = capture.ok ? 1 : 0,
                  .experts = used->experts.c_str(),
                  .backend = used->backend.c_str(),
                  .why_not_captured = used->why_not_captured.c_str()});
  });
}

moebius_status moebius_layer_forward(moebius_layer layer,
                                     const moebius_layer_input* input,
                                     const moebius_tensor* output,
                                     moebius_stream stream) {
  return guarded([&] {
    const Using<LayerObject> used(layer);
    const Using<WorkspacesObject> workspaces(used->workspaces);
    const Call call = read_call(*used, input, output, stream);
    used->layer.forward(call.input, call.output, call.context);
  });
}

moebius_status moebius_layer_start(moebius_layer layer,
                                   const moebius_layer_input* input,
                                   const moebius_tensor* output,
                                   moebius_stream stream,
                                   moebius_call* call) {
  return giving(call, "call", [&] {
    const Using<LayerObject> used(layer);
    const Call begun = read_call(*used, input, output, stream);
    return make_handle(std::make_shared<CallObject>(
        used.object(), used->layer.start(begun.input, begun.output, begun.context)));
  });
}

moebius_status moebius_call_step(moebius_call call, int32_t* has_more) {
  return giving(has_more, "has_more", [&] {
    const Using<CallObject> used(call);
    const Using<WorkspacesObject> workspaces(used->layer->workspaces);
    return used->call.step() ? 1 : 0;
  });
}

moebius_status moebius_call_destroy(moebius_call call) {
  return guarded([&] { destroy_handle<CallObject>(call); });
}

moebius_status moebius_layer_update(moebius_layer layer,
                                    const moebius_layer_weights* weights,
                                    moebius_stream stream) {
  return guarded([&] {
    const Using<LayerObject> used(layer);
    const moebius_layer_weights given = read_struct(weights, "weights");
    const Stream on = read_stream(stream);
    used->layer.update_weights(read_tensors(given, on), on);
  });
}

moebius_status moebius_layer_set_dead(moebius_layer layer, int32_t rank, int32_t is_dead) {
  return guarded([&] {
    const bool dead = read_flag(is_dead, "is_dead");
    Using<LayerObject>(layer)->layer.set_dead(rank, dead);
  });
}

moebius_status moebius_layer_check(moebius_layer layer) {
  return guarded([&] { Using<LayerObject>(layer)->layer.check(); });
}

moebius_status moebius_layer_expert_load(moebius_layer layer,
                                         int32_t is_local,
                                         int64_t* load,
                                         int64_t count) {
  return guarded([&] {
    expect_out(load, "load");
    const Using<LayerObject> used(layer);
    const Tensor counts = read_flag(is_local, "is_local") ? used->layer.local_expert_load()
                                                          : used->layer.expert_load();
    expect_eq(count, counts.numel(), "count");
    std::copy_n(counts.data<int64_t>(), count, load);
  });
}

moebius_status moebius_layer_destroy(moebius_layer layer) {
  return guarded([&] { destroy_handle<LayerObject>(layer); });
}
