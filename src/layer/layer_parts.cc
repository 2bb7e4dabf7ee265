// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/layer_parts.h"

#include <fmt/format.h>

#include <utility>

#include "comm/routing/same_placement.h"
#include "core/device_traits.h"
#include "moebius/all2all.h"

namespace moebius {

namespace {

bool has_router(const MoeLayerWeights& weights) {
  return weights.router.gate || weights.router_config.num_experts != 0;
}

// Throws InvalidArgument unless the caller's experts are those of the layer.
void expect_like(const ExpertsDesc& own, const ExpertsDesc& layers) {
  expect_eq(own.num_experts, layers.num_experts, "num_experts of the experts (of the layer)");
  expect_eq(own.num_local_experts, layers.num_local_experts,
            "num_local_experts of the experts (of the layer)");
  expect_eq(own.topk, layers.topk, "topk of the experts (of the layer)");
  expect_eq(own.hidden, layers.hidden, "hidden of the experts (of the layer)");
  expect_eq(name(own.in_dtype), name(layers.in_dtype), "in_dtype of the experts (of the layer)");
  expect_eq(name(own.format), name(layers.format), "format of the experts (of the layer)");
}

}  // namespace

ExpertsDesc routed_desc(const MoeLayerWeights& weights,
                        const MoeLayerOptions& options,
                        const MoeLayerParts& parts) {
  ExpertsDesc desc;
  desc.num_experts = weights.config.num_experts;
  desc.num_local_experts = weights.config.num_local_experts;
  desc.topk = weights.config.experts_per_token;
  desc.hidden = weights.config.hidden;
  desc.intermediate = weights.config.tp_shard_intermediate();
  // The oracle must not be rounded to the model's dtype between the stages.
  desc.in_dtype = options.precision == Precision::kF64 ? DType::kF32 : weights.config.in_dtype;
  desc.activation = weights.activation;
  if (parts.prepare_finalize != nullptr) {
    desc.format = parts.prepare_finalize->traits().activation_format;
  } else if (weights.config.parallel.backend == All2AllBackend::kLowLatency) {
    desc.format = ActivationFormat::kBatched;
  } else {
    desc.format = options.format;
  }
  desc.precision = options.precision;
  desc.num_adapters = weights.experts.lora.num_adapters();
  desc.lora_rank = weights.experts.lora.rank();
  desc.weight_memory = options.weight_memory;
  desc.beside_others = weights.shared.w1 || parts.shared_experts != nullptr;
  if (parts.experts != nullptr) {
    expect_like(parts.experts->desc(), desc);
    return parts.experts->desc();
  }
  return desc;
}

std::shared_ptr<Router> make_router(MoeLayerWeights& weights, Device device) {
  if (!has_router(weights)) {
    return nullptr;
  }
  weights.router_config.device = device;
  return std::make_shared<Router>(std::move(weights.router_config), std::move(weights.router));
}

std::shared_ptr<SharedExperts> make_shared_experts(MoeLayerWeights& weights,
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
  desc.format = ActivationFormat::kBatched;
  desc.num_adapters = desc.lora_rank = 0;
  desc.activation = weights.activation;
  desc.precision = options.precision;
  desc.weight_memory = options.weight_memory;
  Tensor gate = std::move(weights.shared_gate);
  if (gate && gate.device() != stream.device()) {
    const Tensor original = gate;
    gate = to_device(original, stream.device(), stream);
    stream.synchronize();  // the original may go
  }
  return std::make_shared<SharedExperts>(
      make_experts(desc, std::move(weights.shared), stream, options.experts), std::move(gate),
      options.kernel.chunk_tokens);
}

namespace {

// Throws InvalidArgument unless config.parallel is about the ranks of the group.
void expect_ranks(const MoeConfig& config, const MoeLayerOptions& options, const Group* group) {
  const ParallelConfig& parallel = config.parallel;
  const int size = group == nullptr ? 1 : group->size();
  const int rank = group == nullptr ? 0 : group->rank();
  expect_eq(parallel.use_ep ? parallel.ep_size : parallel.tp_size, size,
            "ranks of the weights' parallel config (ranks of the group)");
  expect_eq(parallel.use_ep ? parallel.ep_rank : parallel.tp_rank, rank,
            "rank of the weights' parallel config (rank of the group)");
  expect_multiple_of(size, parallel.dp_size, "ranks of the group (dp_size)");
  expect(options.precision == Precision::kModel || size == 1,
         [&] { return fmt::format("the float64 oracle runs on one rank, not {}", size); });
}

// Without a group the layer cannot gather the tokens that ranks share.
void expect_no_shared_tokens(const MoeConfig& config, const MoeLayerOptions& options) {
  const ParallelConfig& parallel = config.parallel;
  const int size = parallel.use_ep ? parallel.ep_size : parallel.tp_size;
  expect(options.sequence_parallel || size == parallel.dp_size, [&] {
    return fmt::format(
        "{} ranks with dp_size {} share tokens, which takes a group of ranks to gather", size,
        parallel.dp_size);
  });
}

void expect_fits_group(const MoeConfig& config,
                       const MoeLayerOptions& options,
                       const Group* group) {
  const ParallelConfig& parallel = config.parallel;
  const int size = group == nullptr ? 1 : group->size();
  const auto backend = name(parallel.backend);
  const bool is_none = parallel.backend == All2AllBackend::kNone;
  const bool is_gather = parallel.backend == All2AllBackend::kAllGatherReduceScatter;
  const bool is_high_throughput = parallel.backend == All2AllBackend::kHighThroughput;
  const bool is_low_latency = parallel.backend == All2AllBackend::kLowLatency;
  const bool by_expert = is_high_throughput || is_low_latency;
  expect(!is_none || parallel.dp_size == 1, [&] {
    return fmt::format("all2all none leaves tokens where they are, but dp_size is {}",
                       parallel.dp_size);
  });
  expect(!is_none || size == 1 || !options.sequence_parallel, [&] {
    return fmt::format(
        "sequence_parallel: all2all none sums outputs for the same tokens on all {} "
        "ranks, not for tokens of each rank's own",
        size);
  });
  expect(is_none || group != nullptr,
         [&] { return fmt::format("all2all {} needs a group of ranks", backend); });
  expect(!by_expert || size == 1 || parallel.use_ep, [&] {
    return fmt::format(
        "all2all {} sends rows to the owners of experts, but without expert "
        "parallelism every expert is sharded over all {} ranks",
        backend, size);
  });
  expect(!options.monolithic || is_gather, [&] {
    return fmt::format("only all2all allgather_reducescatter can be monolithic, not {}", backend);
  });
  expect(options.format == ActivationFormat::kStandard || is_none || is_low_latency,
         [&] { return fmt::format("all2all {} has no batched format", backend); });
  if (options.comm_sms != 0) {
    expect_ge(options.comm_sms, 2, "comm_sms");
    expect_multiple_of(options.comm_sms, 2, "comm_sms");
    const int all_sms = group == nullptr ? 0 : num_sms(group->device());
    if (all_sms > 0) {
      expect_le(options.comm_sms, all_sms / 2, "comm_sms (half of the GPU's)");
    }
    expect(by_expert, [&] {
      return fmt::format("comm_sms {}: all2all {} has no kernels of its own to give SMs to",
                         options.comm_sms, backend);
    });
  }
  expect_fits_backend(options.kernel, parallel.backend, options.capacity.has_value());
  expect(options.low_latency_sum == LowLatencySum::kSelections || is_low_latency, [&] {
    return fmt::format(
        "low_latency_sum by ranks: all2all {} sums in its own way, only low_latency "
        "has a choice",
        backend);
  });
  expect(!options.capacity || is_high_throughput, [&] {
    return fmt::format("capacity {}: all2all {} has none, only high_throughput",
                       options.capacity.value_or(0), backend);
  });
  expect(!options.transports || &options.transports->group() == group, [&] {
    const Group& theirs = options.transports->group();
    return fmt::format(
        "transports are of another group ({}, {} ranks) than the layer's ({})", theirs.name(),
        theirs.size(),
        group == nullptr ? "none" : fmt::format("{}, {} ranks", group->name(), size));
  });
}

// Throws InvalidArgument unless a router of this config, with or without a gate, routes for the
// layer.
void expect_routes(const RouterConfig& router, bool has_gate, const MoeConfig& config) {
  expect_eq(router.num_experts, config.num_experts, "experts of the router (num_experts)");
  expect_eq(router.topk, config.experts_per_token, "topk of the router (experts_per_token)");
  expect(has_gate || router.simulation != Simulation::kNone, "gate of the router is missing");
  if (router.logit_sums == LogitSums::kTensorCores) {
    expect(config.in_dtype == DType::kBF16, [&] {
      return fmt::format("hidden states are {}, expected bf16 for logits summed by tensor cores",
                         name(config.in_dtype));
    });
  }
}

void expect_placed(MoeLayerWeights& weights) {
  MoeConfig& config = weights.config;
  const ParallelConfig& parallel = config.parallel;
  if (!weights.placement) {
    config.validate();
    expect_eq(config.num_local_experts,
              expert_range(config.num_experts, parallel.ep_size, parallel.ep_rank).size(),
              fmt::format("num_local_experts (of {}, on ep_rank {} of {})", config.num_experts,
                          parallel.ep_rank, parallel.ep_size));
    return;
  }
  const ExpertPlacement& placement = *weights.placement;
  expect_eq(placement.num_experts(), config.num_experts, "experts of the placement (num_experts)");
  expect_eq(placement.num_ranks(), parallel.ep_size, "ranks of the placement (ep_size)");
  for (int rank = 0; rank < placement.num_ranks(); ++rank) {
    expect_ge(placement.num_local(rank), 1, fmt::format("experts placed on rank {}", rank));
  }
  if (config.num_local_experts == 0 && parallel.ep_rank >= 0 &&
      parallel.ep_rank < placement.num_ranks()) {
    config.num_local_experts = placement.num_local(parallel.ep_rank);
  }
  config.validate();
  expect_eq(config.num_local_experts, placement.num_local(parallel.ep_rank),
            fmt::format("num_local_experts (placed on ep_rank {})", parallel.ep_rank));
}

void expect_fitting_parts(const MoeLayerWeights& weights,
                          const MoeLayerOptions& options,
                          const MoeLayerParts& parts) {
  const MoeConfig& config = weights.config;
  expect(parts.router == nullptr || parts.routing == nullptr,
         "a router and a routing are given, expected one of them");
  if (parts.router != nullptr) {
    expect_routes(parts.router->config(), parts.router->has_gate(), config);
  } else if (parts.routing == nullptr && has_router(weights)) {
    expect_routes(weights.router_config, weights.router.gate.defined(), config);
    if (weights.router.gate) {
      expect_shape(weights.router.gate, {config.num_experts, config.hidden}, "gate of the router");
    }
  } else {
    expect(!options.monolithic,
           "a monolithic backend routes rows where they arrive, and there is "
           "no router");
  }
  expect(parts.experts == nullptr || !weights.experts.w1,
         "experts are given twice, as weights and as a part");
  expect(parts.shared_experts == nullptr || !weights.shared.w1,
         "shared experts are given twice, as weights and as a part");
}

}  // namespace

void expect_fits_backend(const KernelOptions& options, All2AllBackend backend, bool has_capacity) {
  const bool is_high_throughput = backend == All2AllBackend::kHighThroughput;
  expect(options.combine_parts <= 1 || is_high_throughput, [&] {
    return fmt::format(
        "combine_parts {}: all2all {} returns results whole, only high_throughput in parts",
        options.combine_parts, name(backend));
  });
  const int64_t early_rows = options.early_rows.value_or(0);
  expect(early_rows == 0 || (is_high_throughput && !has_capacity), [&] {
    return fmt::format(
        "early_rows {}: all2all {}{} has all rows at once, only high_throughput that "
        "counts them has waves",
        early_rows, name(backend), has_capacity ? " with a capacity" : "");
  });
}

void expect_consistent(MoeLayerWeights& weights,
                       const MoeLayerOptions& options,
                       Group* group,
                       const MoeLayerParts& parts) {
  const MoeConfig& config = weights.config;
  expect_placed(weights);
  if (group != nullptr || parts.prepare_finalize == nullptr) {
    expect_ranks(config, options, group);
  } else {
    expect_no_shared_tokens(config, options);
  }
  if (parts.prepare_finalize == nullptr) {
    expect_fits_group(config, options, group);
  }
  expect_fitting_parts(weights, options, parts);
  expect(weights.shared.w1 || !weights.shared_gate, "shared_gate is given, but no shared experts");
  if (weights.apply_router_weight_on_input) {
    expect_eq(config.experts_per_token, 1, "topk with apply_router_weight_on_input");
  }
  if (group != nullptr && config.parallel.ep_size > 1) {
    expect_same_placement(*group, fmt::format("all2all {}", name(config.parallel.backend)),
                          placement_of(weights));
  }
}

ExpertPlacement placement_of(const MoeLayerWeights& weights) {
  return weights.placement
             ? *weights.placement
             : ExpertPlacement::linear(weights.config.num_experts, weights.config.parallel.ep_size);
}

std::unique_ptr<PrepareFinalize> make_prepare_finalize(const MoeLayerWeights& weights,
                                                       const ExpertsDesc& routed,
                                                       const MoeLayerOptions& options,
                                                       Group* group) {
  const MoeConfig& config = weights.config;
  const auto transports = [&] {
    return options.transports ? options.transports : std::make_shared<Transports>(*group);
  };
  const auto sms = options.comm_sms == 0
                       ? std::nullopt
                       : std::optional(DispatchConfig{.num_sms = options.comm_sms});
  switch (config.parallel.backend) {
    case All2AllBackend::kAllGatherReduceScatter:
      return make_allgather_reducescatter(*group, options.monolithic);
    case All2AllBackend::kHighThroughput:
      return make_high_throughput(transports()->high_throughput(placement_of(weights), sms, sms),
                                  options.capacity);
    case All2AllBackend::kLowLatency:
      return make_low_latency(transports()->low_latency(
          placement_of(weights), {config.max_num_tokens, config.hidden, config.experts_per_token,
                                  routed.in_dtype, options.comm_sms, options.low_latency_sum}));
    case All2AllBackend::kNone:
      break;
  }
  return options.format == ActivationFormat::kBatched
             ? make_no_ep_batched(config.max_num_tokens, routed.num_local_experts)
             : make_no_ep();
}

}  // namespace moebius
