// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/experts.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "c_api/convert.h"
#include "c_api/expert_weights.h"
#include "c_api/handles.h"
#include "c_api/status.h"
#include "c_api/streams.h"
#include "c_api/structs.h"
#include "core/overlap.h"
#include "layer/run_experts.h"
#include "moebius/modular_kernel.h"

namespace moebius::c_api {

namespace {

struct ExpertsObject : Object {
  static constexpr std::string_view kKind = "experts object";
  using Handle = moebius_experts;

  explicit ExpertsObject(std::unique_ptr<Experts> made) {
    weight_and_reduce = make_weight_and_reduce(made->traits().weight_and_reduce);
    if (made->desc().format == ActivationFormat::kStandard) {
      kernel = std::make_unique<ModularKernel>(make_no_ep(), std::move(made));
    } else {
      batched = std::move(made);
    }
  }

  const Experts& experts() const { return batched ? *batched : kernel->experts(); }
  CallContext context(const Stream& stream) {
    CallContext result;
    result.stream = stream;
    result.workspaces = &workspaces;
    return result;
  }

  WorkspacePool workspaces;
  std::unique_ptr<WeightAndReduce> weight_and_reduce;
  // One of these two.
  std::unique_ptr<ModularKernel> kernel;
  std::unique_ptr<Experts> batched;
};

ExpertsDesc describe(const ExpertWeights& weights, const moebius_experts_options& options) {
  expect_described(weights);
  ExpertsDesc desc;
  desc.num_local_experts = weights.w1.dim(0);
  desc.num_experts =
      options.num_experts == 0 ? desc.num_local_experts : read_num_experts(options.num_experts);
  desc.topk = options.topk;
  desc.hidden = weights.w1.dim(2);
  desc.intermediate = weights.w2.dim(2);
  desc.in_dtype = read_in_dtype(options.in_dtype);
  desc.activation = read_activation(options.activation);
  desc.format = read_activation_format(options.format);
  desc.num_adapters = weights.lora.num_adapters();
  desc.lora_rank = weights.lora.rank();
  desc.weight_memory = read_weight_memory(options.lends_weights);
  return desc;
}

void apply_batched(ExpertsObject& object,
                   const ExpertsInput& input,
                   const Tensor& output,
                   const CallContext& context) {
  expect(input.x.num_dims() == 3, [&] {
    return fmt::format("shape of x is {}, expected [experts, rows, hidden]",
                       to_string(input.x.shape()));
  });
  const Experts& experts = object.experts();
  expect_dtype(output, experts.desc().in_dtype, "output");
  run_experts(experts, input, default_chunk_tokens(), context, output);
}

void apply_standard(ExpertsObject& object,
                    const ExpertsInput& input,
                    const Tensor& output,
                    const CallContext& context) {
  const Experts& experts = object.experts();
  const ExpertsDesc& desc = experts.desc();
  expect(input.x.num_dims() == 2, [&] {
    return fmt::format("shape of x is {}, expected [rows, hidden]", to_string(input.x.shape()));
  });
  const int64_t rows = input.x.dim(0);
  expect_shape(input.topk_ids, {rows, desc.topk}, "topk_ids");
  expect_shape(input.topk_weights, {rows, desc.topk}, "topk_weights");
  expect_shape(output, {rows, desc.hidden}, "output");
  expect_dtype(output, desc.in_dtype, "output");
  if (rows == 0) {
    return;
  }
  const bool is_final = experts.traits().weight_and_reduce == WeightAndReduceKind::kNoOp;
  const Tensor made =
      run_experts(experts, input, default_chunk_tokens(), context, is_final ? output : Tensor());
  if (!is_final) {
    object.weight_and_reduce->apply(
        {.expert_output = made, .topk_weights = input.topk_weights, .topk_ids = input.topk_ids},
        output, context.stream);
  }
}

}  // namespace

}  // namespace moebius::c_api

using namespace moebius;
using namespace moebius::c_api;

moebius_status moebius_experts_create(const moebius_expert_weights* weights,
                                      const moebius_experts_options* options,
                                      moebius_stream stream,
                                      moebius_experts* experts) {
  return giving(experts, "experts", [&] {
    const moebius_experts_options given = read_struct(options, "options");
    const Stream on = read_stream(stream);
    expect(weights != nullptr, "weights are null, expected w1 and w2");
    ExpertWeights tensors = read_expert_weights(weights, on);
    const ExpertsDesc desc = describe(tensors, given);
    const std::string name = given.implementation == nullptr ? "" : given.implementation;
    return make_handle(
        std::make_shared<ExpertsObject>(make_experts(desc, std::move(tensors), on, name)));
  });
}

moebius_status moebius_experts_get_info(moebius_experts experts, moebius_experts_info* info) {
  return guarded([&] {
    const Experts& of = find<ExpertsObject>(experts)->experts();
    const ExpertsDesc& desc = of.desc();
    write_struct(info, "info",
                 {.struct_size = 0,
                  .name = of.name().data(),
                  .num_experts = desc.num_experts,
                  .num_local_experts = desc.num_local_experts,
                  .topk = desc.topk,
                  .hidden = desc.hidden,
                  .intermediate = desc.intermediate,
                  .in_dtype = static_cast<int32_t>(desc.in_dtype),
                  .format = static_cast<int32_t>(desc.format),
                  .retains_weights = of.retains_weights() ? 1 : 0});
  });
}

moebius_status moebius_experts_forward(moebius_experts experts,
                                       const moebius_tensor* hidden,
                                       const moebius_tensor* topk_ids,
                                       const moebius_tensor* topk_weights,
                                       const moebius_tensor* expert_map,
                                       const moebius_tensor* output,
                                       moebius_stream stream) {
  return guarded([&] {
    const Using<ExpertsObject> used(experts);
    expect(used->kernel != nullptr, "format of these experts is batched, expected standard");
    const Stream on = read_stream(stream);
    KernelInput input;
    input.hidden = read_tensor(hidden, "hidden", on);
    input.topk_ids = read_tensor(topk_ids, "topk_ids", on);
    input.topk_weights = read_tensor(topk_weights, "topk_weights", on);
    input.expert_map = read_optional_tensor(expert_map, "expert_map", on);
    input.num_experts = used->experts().desc().num_experts;
    used->kernel->forward(input, read_tensor(output, "output", on), {}, used->context(on));
  });
}

moebius_status moebius_experts_apply(moebius_experts experts,
                                     const moebius_experts_input* input,
                                     const moebius_tensor* output,
                                     moebius_stream stream) {
  return guarded([&] {
    const Using<ExpertsObject> used(experts);
    const moebius_experts_input given = read_struct(input, "input");
    const Stream on = read_stream(stream);
    ExpertsInput rows;
    rows.x = read_tensor(given.x, "x", on);
    rows.x_scale = read_optional_tensor(given.x_scale, "x_scale", on);
    rows.topk_ids = read_optional_tensor(given.topk_ids, "topk_ids", on);
    rows.topk_weights = read_optional_tensor(given.topk_weights, "topk_weights", on);
    rows.expert_num_tokens = read_optional_tensor(given.expert_num_tokens, "expert_num_tokens", on);
    rows.expert_map = read_optional_tensor(given.expert_map, "expert_map", on);
    rows.lora_ids = read_optional_tensor(given.lora_ids, "lora_ids", on);
    rows.a2_scale = read_optional_tensor(given.a2_scale, "a2_scale", on);
    const Tensor out = read_tensor(output, "output", on);
    expect_writable(out, "output");
    // Sums of tokens may replace the rows that they come from; rows of experts may not, since a
    // row is written while its expert still reads it.
    if (used->batched || out.raw() != rows.x.raw() || out.dtype() != rows.x.dtype()) {
      expect_apart(out, rows.x, "output", "x");
    }
    for (const auto& [tensor, what] : {std::pair(&rows.x_scale, "x_scale"),
                                       {&rows.topk_ids, "topk_ids"},
                                       {&rows.topk_weights, "topk_weights"},
                                       {&rows.expert_num_tokens, "expert_num_tokens"},
                                       {&rows.expert_map, "expert_map"},
                                       {&rows.lora_ids, "lora_ids"},
                                       {&rows.a2_scale, "a2_scale"}}) {
      expect_apart(out, *tensor, "output", what);
    }
    if (used->batched) {
      apply_batched(*used, rows, out, used->context(on));
    } else {
      expect_defined(rows.topk_ids, "topk_ids");
      expect_defined(rows.topk_weights, "topk_weights");
      apply_standard(*used, rows, out, used->context(on));
    }
  });
}

moebius_status moebius_experts_update(moebius_experts experts,
                                      const moebius_expert_weights* weights,
                                      moebius_stream stream) {
  return guarded_on(stream, [&](const Stream& on) {
    const Using<ExpertsObject> used(experts);
    const ExpertWeights given = read_expert_weights(weights, on);
    if (used->batched) {
      used->batched->update_weights(given, on);
    } else {
      used->kernel->update_weights(given, on);
    }
  });
}

moebius_status moebius_experts_destroy(moebius_experts experts) {
  return guarded([&] { destroy_handle<ExpertsObject>(experts); });
}
