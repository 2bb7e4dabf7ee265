// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/info/layer_choice.h"

#include <algorithm>
#include <array>

#include "app/run/subject.h"
#include "experts/choose.h"
#include "experts/cuda/limits.h"
#include "layer/layer_parts.h"
#include "moebius/error.h"
#include "moebius/quantize.h"
#include "plan/gemm.h"

namespace moebius::app {

namespace {

MoeLayerWeights load(const Checkpoint& checkpoint,
                     int64_t layer,
                     const std::vector<int64_t>& experts) {
  const int64_t num_experts = checkpoint.info().num_experts;
  LoadOptions options;
  if (static_cast<int64_t>(experts.size()) < num_experts) {
    std::vector<int> rank_of(static_cast<size_t>(num_experts), 1);
    for (const int64_t e : experts) {
      rank_of[static_cast<size_t>(e)] = 0;
    }
    options.ep_size = 2;
    options.placement = ExpertPlacement::from_ranks(std::move(rank_of), options.ep_size);
  }
  return checkpoint.load_layer(layer, options);
}

template <typename Name>
Choice ask(const Name& name) {
  try {
    return {std::string(name()), ""};
  } catch (const Error& error) {
    return {"", error.what()};
  }
}

plan::Deployment deployment_of(const MoeLayerWeights& weights, const ExpertsDesc& desc) {
  const QuantConfig& quant = weights.experts.quant;
  plan::Deployment d;
  d.layer.routing.num_experts = desc.num_experts;
  d.layer.routing.topk = desc.topk;
  d.layer.hidden = desc.hidden;
  d.layer.intermediate = desc.intermediate;
  d.layer.is_gated = desc.activation.gated;
  d.layer.dtype = desc.in_dtype;
  d.formats = {.name = describe(quant),
               .weights = weight_spec(quant.w1),
               .activations = activation_spec(quant.a1),
               .quant = quant};
  d.device = Device::cuda(0);
  return d;
}

Choice gpu_kernels(const MoeLayerWeights& weights, const ExpertsDesc& desc, double rows) {
  if (const Support support = cuda::within_limits(desc); !support.ok) {
    return {"", support.reason};
  }
  return ask([&] {
    const auto lines = plan::gemm_lines(deployment_of(weights, desc), desc.num_experts, rows);
    const std::array<std::string, 2> kernels = {kernel_of(lines[0]), kernel_of(lines[1])};
    return kernels[0].starts_with(kernels[1]) ? kernels[0] : kernels[0] + " / " + kernels[1];
  });
}

}  // namespace

std::string kernel_of(const std::string& gemm_line) {
  const size_t begin = gemm_line.find(": ") + 2;
  return gemm_line.substr(begin, gemm_line.find(';') - begin);
}

LayerChoice choose_for(const Checkpoint& checkpoint,
                       int64_t layer,
                       const std::vector<int64_t>& experts) {
  MoeLayerWeights weights = load(checkpoint, layer, experts);
  ExpertsDesc desc = routed_desc(weights, MoeLayerOptions());
  desc.num_local_experts = desc.num_experts;  // on one rank
  LayerChoice choice;
  choice.format = describe_weights(weights.experts);
  choice.computed_in = describe(weights.experts.quant);
  choice.cpu = ask([&] { return choose_experts(desc, weights.experts, Device::cpu()).name; });
  choice.gpu_one_row = gpu_kernels(weights, desc, 1);
  choice.gpu_many_rows = gpu_kernels(weights, desc, kManyRows);
  choice.router = ask([&] {
    const auto router = make_router(weights, Device::cpu());
    return router == nullptr ? std::string("of the caller") : std::string(router->implementation());
  });
  return choice;
}

}  // namespace moebius::app
