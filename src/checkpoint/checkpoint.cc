// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "checkpoint/expert_loader.h"
#include "checkpoint/expert_source.h"
#include "checkpoint/model_config.h"
#include "checkpoint/safetensors_header.h"
#include "moebius/error.h"

namespace moebius {

using namespace checkpoint;
namespace fs = std::filesystem;

struct Checkpoint::State {
  fs::path directory;
  ModelConfig config;
  Safetensors files;

  explicit State(const fs::path& path)
      : directory(path), config(read_model_config(path)), files(path) {}

  void expect_moe_layer(int64_t layer) const;
  std::string prefix(int64_t layer) const;
  void expect_small(const std::string& name, const Shape& shape) const;
  // Copies a tensor whose elements must be finite, see expect_finite_tensor().
  Tensor load_small(const std::string& name, const Shape& shape, bool masks = false) const;
  void load_router(const std::string& block, MoeLayerWeights& result) const;
};

void Checkpoint::State::expect_moe_layer(int64_t layer) const {
  const std::vector<int64_t>& layers = config.info.moe_layers;
  if (std::find(layers.begin(), layers.end(), layer) != layers.end()) {
    return;
  }
  throw InvalidArgument(
      layers.empty()
          ? fmt::format("{}: layer is {}, but no layer has experts", directory.string(), layer)
          : fmt::format("{}: layer is {}, but layers with experts are {} of {}, from {} to {}",
                        directory.string(), layer, layers.size(), config.info.num_layers,
                        layers.front(), layers.back()));
}

// The language model has another root where it is part of a larger model.
std::string Checkpoint::State::prefix(int64_t layer) const {
  const Family& family = *config.family;
  std::string first;
  for (const std::string_view root :
       {"model", "language_model.model", "model.language_model", "language_model"}) {
    for (const std::string_view block : {family.block, family.other_block}) {
      if (block.empty()) {
        continue;
      }
      const std::string candidate = fmt::format("{}.layers.{}.{}", root, layer, block);
      if (files.contains(fmt::format("{}.{}.weight", candidate, family.router))) {
        return candidate;
      }
      first = first.empty() ? candidate : first;
    }
  }
  throw InvalidArgument(
      fmt::format("{}: tensor {} is missing: layer {} has no router", directory.string(),
                  in_quotes(fmt::format("{}.{}.weight", first, family.router)), layer));
}

void Checkpoint::State::expect_small(const std::string& name, const Shape& shape) const {
  const SafetensorsEntry& entry = files.entry(name);
  const std::string label = tensor_label(files, name);
  if (!is_float(entry.dtype)) {
    throw InvalidArgument(
        fmt::format("{} has dtype {}, expected BF16, F16 or F32", label, entry.dtype_name));
  }
  expect_file_shape(entry, shape, label);
}

Tensor Checkpoint::State::load_small(const std::string& name,
                                     const Shape& shape,
                                     bool masks) const {
  expect_small(name, shape);
  expect_finite_tensor(files, name, masks);
  const Tensor copy = files.bytes(name).clone();
  files.release(name);
  return copy.reinterpret(files.entry(name).dtype, shape);
}

void Checkpoint::State::load_router(const std::string& block, MoeLayerWeights& result) const {
  const int64_t num_experts = config.info.num_experts;
  const std::string router = fmt::format("{}.{}", block, config.family->router);
  result.router_config = config.router;
  result.router.gate = load_small(router + ".weight", {num_experts, config.info.hidden});
  if (config.has_router_bias) {
    result.router.bias = load_small(router + ".bias", {num_experts});
  }
  if (config.has_correction_bias) {
    result.router.correction_bias =
        load_small(router + ".e_score_correction_bias", {num_experts}, /*masks=*/true);
  }
}

Checkpoint::Checkpoint(const fs::path& directory) : state_(std::make_unique<State>(directory)) {}
Checkpoint::~Checkpoint() = default;

const ModelInfo& Checkpoint::info() const {
  return state_->config.info;
}

const Safetensors& Checkpoint::tensors() const {
  return state_->files;
}

std::string Checkpoint::block_prefix(int64_t layer) const {
  state_->expect_moe_layer(layer);
  std::string block = state_->prefix(layer);
  const ModelConfig& config = state_->config;
  state_->expect_small(fmt::format("{}.{}.weight", block, config.family->router),
                       {config.info.num_experts, config.info.hidden});
  return block;
}

namespace {

ExpertIds own_experts(int64_t num_experts, const LoadOptions& options) {
  const ExpertPlacement placement = options.placement
                                        ? *options.placement
                                        : ExpertPlacement::linear(num_experts, options.ep_size);
  expect_eq(placement.num_experts(), num_experts, "experts of the placement (of the checkpoint)");
  expect_eq(placement.num_ranks(), options.ep_size, "ranks of the placement (ep_size)");
  std::vector<int64_t> ids;
  for (int64_t e = 0; e < num_experts; ++e) {
    if (placement.rank_of(e) == options.ep_rank) {
      ids.push_back(e);
    }
  }
  return ExpertIds(std::move(ids));
}

}  // namespace

MoeLayerWeights Checkpoint::load_layer(int64_t layer, const LoadOptions& options) const {
  const ModelConfig& config = state_->config;
  const ModelInfo& info = config.info;
  const std::string block = block_prefix(layer);

  MoeLayerWeights result;
  MoeConfig& moe = result.config;
  moe.num_experts = info.num_experts;
  moe.experts_per_token = info.topk;
  moe.hidden = info.hidden;
  moe.intermediate = info.intermediate;
  moe.parallel.tp_size = options.tp_size;
  moe.parallel.tp_rank = options.tp_rank;
  moe.parallel.ep_size = options.ep_size;
  moe.parallel.ep_rank = options.ep_rank;
  moe.parallel.use_ep = options.ep_size > 1;
  moe.validate();
  const int64_t shard = moe.tp_shard_intermediate();
  const ExpertIds local = own_experts(info.num_experts, options);
  expect_ge(local.size(), int64_t{1}, "experts of this rank");
  moe.num_local_experts = local.size();
  result.placement = options.placement;

  state_->load_router(block, result);
  moe.in_dtype = info.dtype.value_or(result.router.gate.dtype());
  result.apply_router_weight_on_input = config.apply_router_weight_on_input;
  result.activation = config.activation;
  const bool allows = allows_nonfinite(options);
  const auto load = [&](const ExpertSource& source, const ExpertSlice& slice) {
    return options.quant == "auto" || options.quant == "none"
               ? load_experts(source, slice, options.quant == "auto", allows)
               : quantize_experts(source, slice, options.quant, allows);
  };
  const int64_t rank = options.tp_rank;
  result.experts = load(ExpertSource::routed(state_->files, config, block, local[0]),
                        {.experts = local,
                         .intermediate = {rank * shard, (rank + 1) * shard},
                         .adds_w2_bias = rank == 0});
  if (info.num_shared_experts > 0) {
    result.shared =
        load(ExpertSource::shared(state_->files, config, block),
             {.experts = ExpertIds({0}), .intermediate = {0, info.shared_intermediate}});
    result.shared_intermediate = info.shared_intermediate;
  }
  if (config.has_shared_gate) {
    result.shared_gate =
        state_->load_small(fmt::format("{}.shared_expert_gate.weight", block), {1, info.hidden});
  }
  return result;
}

}  // namespace moebius
