// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "c_api/router.h"

#include <memory>
#include <string_view>
#include <utility>

#include "c_api/convert.h"
#include "c_api/handles.h"
#include "c_api/status.h"
#include "c_api/streams.h"
#include "c_api/structs.h"

namespace moebius::c_api {

namespace {

struct RouterObject : Object {
  static constexpr std::string_view kKind = "router";
  using Handle = moebius_router;

  explicit RouterObject(Router r) : router(std::move(r)) {}
  Router router;
};

}  // namespace

RouterConfig read_router_config(const moebius_router_config* given, Device device) {
  const moebius_router_config config = read_struct(given, "router config");
  const auto or_one = [](auto value) { return value == 0 ? decltype(value){1} : value; };
  RouterConfig result;
  result.num_experts = read_num_experts(config.num_experts);
  result.topk = config.topk;
  result.scoring =
      static_cast<Scoring>(read_choice(config.scoring, MOEBIUS_SPARSE_MIXER, "scoring"));
  result.score_after_topk = read_flag(config.score_after_topk, "score_after_topk");
  result.renormalize = read_flag(config.renormalize, "renormalize");
  result.num_groups = or_one(config.num_groups);
  result.topk_groups = or_one(config.topk_groups);
  result.routed_scaling_factor = or_one(config.routed_scaling_factor);
  if (read_flag(config.tensor_core_logits, "tensor_core_logits")) {
    result.logit_sums = LogitSums::kTensorCores;
  }
  result.mixer_epsilon = config.mixer_epsilon;
  result.device = device;
  return result;
}

RouterWeights read_router_weights(const moebius_router_weights* given, const Stream& stream) {
  const moebius_router_weights weights = read_optional(given, "router weights");
  return {
      .gate = read_optional_tensor(weights.gate, "gate", stream),
      .bias = read_optional_tensor(weights.bias, "bias", stream),
      .correction_bias = read_optional_tensor(weights.correction_bias, "correction_bias", stream),
      .expert_scale = read_optional_tensor(weights.expert_scale, "expert_scale", stream)};
}

}  // namespace moebius::c_api

using namespace moebius;
using namespace moebius::c_api;

moebius_status moebius_router_create(const moebius_router_config* config,
                                     const moebius_router_weights* weights,
                                     moebius_device device,
                                     moebius_router* router) {
  return giving(router, "router", [&] {
    const Device where = read_device(device);
    const Stream stream = where.is_cuda() ? Stream::cuda(where.index) : Stream();
    RouterWeights given = read_router_weights(weights, stream);
    stream.synchronize();  // strided weights are copied on it
    return make_handle(std::make_shared<RouterObject>(
        Router(read_router_config(config, where), std::move(given))));
  });
}

moebius_status moebius_router_logits(moebius_router router,
                                     const moebius_tensor* hidden,
                                     const moebius_tensor* logits,
                                     moebius_stream stream) {
  return guarded_on(stream, [&](const Stream& on) {
    const Using<RouterObject> used(router);
    used->router.logits(read_tensor(hidden, "hidden", on), read_tensor(logits, "logits", on), on);
  });
}

moebius_status moebius_router_select(moebius_router router,
                                     const moebius_tensor* logits,
                                     const moebius_tensor* ids,
                                     const moebius_tensor* weights,
                                     moebius_stream stream) {
  return guarded_on(stream, [&](const Stream& on) {
    const Using<RouterObject> used(router);
    used->router.select(read_tensor(logits, "logits", on), read_tensor(ids, "ids", on),
                        read_tensor(weights, "weights", on), on);
  });
}

moebius_status moebius_router_update(moebius_router router,
                                     const moebius_router_weights* weights,
                                     moebius_stream stream) {
  return guarded_on(stream, [&](const Stream& on) {
    const Using<RouterObject> used(router);
    used->router.update_weights(read_router_weights(weights, on), on);
  });
}

moebius_status moebius_router_destroy(moebius_router router) {
  return guarded([&] { destroy_handle<RouterObject>(router); });
}

moebius_status moebius_count_expert_tokens(const moebius_tensor* ids,
                                           const moebius_tensor* expert_map,
                                           const moebius_tensor* counts,
                                           moebius_stream stream) {
  return guarded_on(stream, [&](const Stream& on) {
    count_expert_tokens(read_tensor(ids, "ids", on),
                        read_optional_tensor(expert_map, "expert_map", on),
                        read_tensor(counts, "counts", on), on);
  });
}
