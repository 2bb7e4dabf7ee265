// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/kernel_checks.h"

#include <fmt/format.h>

#include <utility>

#include "comm/routing/route.h"
#include "core/device_traits.h"
#include "core/ids.h"
#include "core/overlap.h"
#include "experts/validate.h"
#include "layer/rows/row_ops.h"
#include "moebius/quantize.h"

namespace moebius {

namespace {

void expect_support(const Support& support, std::string_view refuser, std::string_view what) {
  expect(support.ok,
         [&] { return fmt::format("{} does not accept {}: {}", refuser, what, support.reason); });
}

void expect_output(const Tensor& output,
                   const Tensor& hidden,
                   bool may_be_hidden,
                   std::string_view what) {
  expect_shape(output, hidden.shape(), what);
  expect_dtype(output, hidden.dtype(), what);
  expect_writable(output, what);
  expect(!overlap(output, hidden) || (may_be_hidden && output.raw() == hidden.raw()), [&] {
    return may_be_hidden ? fmt::format("{} overlaps hidden without being it", what)
                         : fmt::format("{} overlaps hidden, which the shared experts read", what);
  });
}

void expect_device(const Tensor& tensor, const CallContext& context, std::string_view what) {
  const Device device = context.stream.device();
  expect(!tensor.defined() || tensor.device() == device, [&] {
    return fmt::format("device of {} (stream's) is {}, expected {}", what,
                       to_string(tensor.device()), to_string(device));
  });
}

// If a placement of experts decides where rows go, the map must agree with it.
void expect_placed_so(const Tensor& map, const PrepareFinalize& prepare_finalize) {
  const Tensor placed = prepare_finalize.traits().placed_experts;
  for (int64_t e = 0; placed && e < map.numel(); ++e) {
    const int32_t local = map.data<int32_t>()[e];
    const int32_t expected = placed.data<int32_t>()[e];
    if (local != expected) {
      throw InvalidArgument(fmt::format("expert_map[{}] is {}, expected {} as {} places experts", e,
                                        local, expected, prepare_finalize.name()));
    }
  }
}

}  // namespace

void expect_expert_map(const Tensor& map, int64_t num_experts, int64_t num_local_experts) {
  expect_dtype(map, DType::kI32, "expert_map");
  expect_shape(map, {num_experts}, "expert_map");
  if (!device_traits(map.device()).host_reads) {
    return;
  }
  for (int64_t e = 0; e < num_experts; ++e) {
    const int32_t local = map.data<int32_t>()[e];
    if (local < -1 || local >= num_local_experts) {
      throw InvalidArgument(
          fmt::format("expert_map[{}] is {}, expected -1 to {}", e, local, num_local_experts - 1));
    }
  }
}

void expect_expert_ids(const Tensor& topk_ids, int64_t num_experts) {
  if (topk_ids.dtype() != DType::kI64) {
    return expect_ids(topk_ids, num_experts);
  }
  const auto* ids = topk_ids.data<int64_t>();
  const int64_t topk = topk_ids.dim(1);
  for (int64_t i = 0; i < topk_ids.numel(); ++i) {
    if (ids[i] < -1 || ids[i] >= num_experts) {
      throw InvalidArgument(fmt::format("topk_ids of token {}, slot {} is {}, expected -1 to {}",
                                        i / topk, i % topk, ids[i], num_experts - 1));
    }
  }
}

void expect_lora_ids(const Tensor& ids, int64_t num_tokens, int64_t num_adapters) {
  expect_dtype(ids, DType::kI32, "lora_ids");
  expect_shape(ids, {num_tokens}, "lora_ids");
  expect(num_adapters > 0, "lora_ids are given, but the experts have no adapters");
  for (int64_t t = 0; device_traits(ids.device()).host_reads && t < num_tokens; ++t) {
    const int32_t id = ids.data<int32_t>()[t];
    if (id < -1 || id >= num_adapters) {
      throw InvalidArgument(
          fmt::format("lora_ids[{}] is {}, expected -1 to {}: there are {} adapters", t, id,
                      num_adapters - 1, num_adapters));
    }
  }
}

void expect_kernel_options(const KernelOptions& options) {
  expect_ge(options.chunk_tokens, 0, "chunk_tokens");
  expect_ge(options.microbatches, 1, "microbatches");
  expect_ge(options.min_microbatch_tokens.value_or(0), 0, "min_microbatch_tokens");
  expect_ge(options.combine_parts, 0, "combine_parts");
  expect_ge(options.early_rows.value_or(0), 0, "early_rows");
}

bool defers_input_quant(const Experts& experts) {
  return experts.traits().expects_unquantized_inputs || experts.desc().precision == Precision::kF64;
}

void expect_composable(const KernelParts& parts) {
  const auto& [prepare_finalize, experts, shared_experts, router] = parts;
  const ExpertsDesc& desc = experts.desc();
  const ActivationFormat format = prepare_finalize.traits().activation_format;
  const std::string_view pf = prepare_finalize.name();
  const std::string_view ex = experts.name();
  expect(format == desc.format, [&] {
    return fmt::format("{} hands over {} rows, experts {} take {} rows", pf, name(format), ex,
                       name(desc.format));
  });
  const bool has_limit = prepare_finalize.traits().max_tokens_per_rank.has_value();
  expect(has_limit == (format == ActivationFormat::kBatched), [&] {
    return fmt::format(
        "{} is {} and has {} row limit: a batched format needs one, a standard one "
        "has none",
        pf, name(format), has_limit ? "a" : "no");
  });
  const WeightAndReduceKind kind = experts.traits().weight_and_reduce;
  expect_support(prepare_finalize.accepts(kind), pf,
                 fmt::format("the {} weight-and-reduce of experts {}", name(kind), ex));
  const bool defer = defers_input_quant(experts);
  const std::string quant =
      experts.quant().is_quantized() ? std::string(name(*experts.quant().a1.format)) : "no";
  expect_support(
      prepare_finalize.accepts(experts.quant(), defer), pf,
      fmt::format("the {} quantization{} of experts {}", quant, defer ? " (deferred)" : "", ex));
  if (const auto spec = activation_spec(experts.quant().a1); spec && !defer) {
    expect_support(quantize_supported(*spec, 1, desc.hidden), fmt::format("{} quantization", quant),
                   fmt::format("hidden {}", desc.hidden));
  }
  if (experts.quant().a2.calls_bring_scales) {
    expect_support(prepare_finalize.traits().carries_extras, pf,
                   fmt::format("the a2_scale of each row that the calls of experts {} bring", ex));
  }
  expect(router != nullptr || !prepare_finalize.traits().is_monolithic,
         [&] { return fmt::format("{} is monolithic and needs a router, and none is given", pf); });
  if (router != nullptr) {
    expect_eq(router->config().num_experts, desc.num_experts, "experts of the router (of experts)");
    expect_eq(router->config().topk, desc.topk, "topk of the router (of experts)");
  }
  if (shared_experts != nullptr && shared_experts->experts() != nullptr) {
    const ExpertsDesc& shared = shared_experts->experts()->desc();
    expect_eq(shared.hidden, desc.hidden, "hidden of the shared experts (of the routed ones)");
    expect_eq(name(shared.in_dtype), name(desc.in_dtype),
              "in_dtype of the shared experts (of the routed ones)");
  }
}

void expect_kernel_input(const KernelParts& parts,
                         const KernelInput& input,
                         const Tensor& output,
                         const Tensor& shared_output,
                         const CallContext& context) {
  const PrepareFinalize& prepare_finalize = parts.prepare_finalize;
  const SharedExperts* shared_experts = parts.shared_experts;
  const ExpertsDesc& desc = parts.experts.desc();
  context.pool();  // refuses a missing one
  expect_hidden_dtype(input.hidden, "hidden");
  expect_dtype(input.hidden, desc.in_dtype, "hidden");
  expect_eq(input.hidden.num_dims(), 2, "dimensions of hidden");
  expect_eq(input.hidden.dim(1), desc.hidden, "hidden.dim(1)");
  const int64_t num_tokens = input.hidden.dim(0);
  const int64_t num_experts = input.num_experts == -1 ? desc.num_local_experts : input.num_experts;
  expect_eq(num_experts, desc.num_experts, "num_experts");
  if (input.own_load) {
    expect_dtype(input.own_load, DType::kI32, "own_load");
    expect_shape(input.own_load, {num_experts}, "own_load");
    expect_id_dtype(input.topk_ids, "topk_ids");
  }

  if (prepare_finalize.traits().is_monolithic) {
    expect(!input.apply_router_weight_on_input, [&] {
      return fmt::format("{} is monolithic: there is no router weight to put on its input yet",
                         prepare_finalize.name());
    });
    expect_hidden_dtype(input.router_logits, "router_logits");
    expect_shape(input.router_logits, {num_tokens, num_experts}, "router_logits");
  } else {
    expect_id_dtype(input.topk_ids, "topk_ids");
    expect_shape(input.topk_ids, {num_tokens, desc.topk}, "topk_ids");
    expect_dtype(input.topk_weights, DType::kF32, "topk_weights");
    expect_shape(input.topk_weights, {num_tokens, desc.topk}, "topk_weights");
    if (input.apply_router_weight_on_input) {
      expect_eq(desc.topk, 1, "topk with apply_router_weight_on_input");
    }
    if (device_traits(input.topk_ids.device()).host_reads) {
      expect_ids(input.topk_ids, num_experts);
    }
  }
  if (input.expert_map) {
    expect_expert_map(input.expert_map, num_experts, desc.num_local_experts);
    if (device_traits(input.expert_map.device()).host_reads) {
      expect_placed_so(input.expert_map, prepare_finalize);
    }
  } else if (prepare_finalize.traits().num_dispatchers == 1 ||
             !prepare_finalize.traits().localizes_ids) {
    expect_eq(desc.num_local_experts, num_experts, "local experts without an expert_map");
  }
  if (input.lora_ids) {
    expect_lora_ids(input.lora_ids, num_tokens, desc.num_adapters);
  }
  expect_a2_scale(parts.experts, input.a2_scale, {num_tokens});
  const auto limit = prepare_finalize.traits().max_tokens_per_rank;
  expect(!limit || num_tokens <= *limit, [&] {
    return fmt::format("tokens for {} is {}, expected at most {}", prepare_finalize.name(),
                       num_tokens, *limit);
  });

  expect_output(output, input.hidden, /*may_be_hidden=*/shared_experts == nullptr, "output");
  expect(shared_output.defined() == (shared_experts != nullptr), [&] {
    return fmt::format("shared_output is {}, but there are {} shared experts",
                       shared_output.defined() ? "given" : "missing",
                       shared_experts != nullptr ? "some" : "no");
  });
  expect(!input.add_shared || shared_experts != nullptr,
         "add_shared is set, but there are no shared experts");
  if (shared_output) {
    expect_output(shared_output, input.hidden, /*may_be_hidden=*/false, "shared_output");
    expect(!overlap(shared_output, output), "shared_output overlaps output");
  }
  for (const auto& [tensor, what] : {std::pair(&input.topk_ids, "topk_ids"),
                                     {&input.topk_weights, "topk_weights"},
                                     {&input.router_logits, "router_logits"},
                                     {&input.expert_map, "expert_map"},
                                     {&input.lora_ids, "lora_ids"},
                                     {&input.a2_scale, "a2_scale"}}) {
    expect_device(*tensor, context, what);
    expect_apart(output, *tensor, "output", what);
    expect_apart(shared_output, *tensor, "shared_output", what);
  }
  expect_device(input.hidden, context, "hidden");
  expect_device(output, context, "output");
  expect_device(shared_output, context, "shared_output");
}

void expect_prepared(const PrepareResult& prepared, const Experts& experts) {
  const ExpertsDesc& desc = experts.desc();
  const Tensor& topk_ids = prepared.topk_ids;
  expect_defined(prepared.x, "x from prepare");
  expect_id_dtype(topk_ids, "topk_ids from prepare");
  expect_eq(topk_ids.num_dims(), 2, "dimensions of topk_ids from prepare");
  expect_shape(prepared.topk_weights, topk_ids.shape(), "topk_weights from prepare");
  if (prepared.expert_num_tokens) {
    expect_dtype(prepared.expert_num_tokens, DType::kI32, "expert_num_tokens from prepare");
    expect_shape(prepared.expert_num_tokens, {desc.num_local_experts},
                 "expert_num_tokens from prepare");
  }
  if (desc.format == ActivationFormat::kStandard) {
    expect_shape(prepared.x, {topk_ids.dim(0), desc.hidden}, "x from prepare");
  } else {
    expect_eq(prepared.x.num_dims(), 3, "dimensions of x from prepare");
    expect_shape(prepared.x, {desc.num_local_experts, prepared.x.dim(1), desc.hidden},
                 "x from prepare");
    expect_defined(prepared.expert_num_tokens, "expert_num_tokens from prepare");
  }
}

}  // namespace moebius
