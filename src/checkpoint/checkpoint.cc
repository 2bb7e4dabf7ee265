// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "checkpoint/expert_loader.h"
#include "checkpoint/expert_source.h"
#include "checkpoint/layer_names.h"
#include "checkpoint/model_config.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/weight_scheme.h"
#include "moebius/error.h"
#include "moebius/log.h"

namespace moebius {

using namespace checkpoint;
namespace fs = std::filesystem;

// Why hidden: its functions take types that no public header declares.
struct __attribute__((visibility("hidden"))) Checkpoint::State {
  fs::path directory;
  ModelConfig config;
  Safetensors files;

  explicit State(const fs::path& path)
      : directory(path), config(read_model_config(path)), files(path) {}

  void expect_moe_layer(int64_t layer) const;
  LayerNames names(int64_t layer) const;
  void expect_small(const std::string& name, const Shape& shape) const;
  // Copies a tensor whose elements must be finite, see expect_finite_tensor().
  Tensor load_small(const std::string& name, const Shape& shape, bool masks = false) const;
  void load_router(const LayerNames& names, int64_t layer, MoeLayerWeights& result) const;
  void load_normed_router(const LayerNames& names, RouterWeights& router) const;
  void warn_of_unread(const LayerNames& names, int64_t layer) const;
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

LayerNames Checkpoint::State::names(int64_t layer) const {
  expect_moe_layer(layer);
  return find_names(files, config, layer, directory.string());
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
  files.will_read(name);
  expect_finite_tensor(files, name, masks);
  const Tensor copy = files.bytes(name).clone();
  files.count_read(copy.nbytes());
  files.release(name);
  return copy.reinterpret(files.entry(name).dtype, shape);
}

void Checkpoint::State::load_router(const LayerNames& names,
                                    int64_t layer,
                                    MoeLayerWeights& result) const {
  const std::vector<int64_t>& hashed = config.hash_layers;
  if (std::find(hashed.begin(), hashed.end(), layer) != hashed.end()) {
    log(LogLevel::kWarn,
        fmt::format("{}: layer {} chooses experts by token ids, so it has no router here: every "
                    "call brings topk_ids and topk_weights",
                    directory.string(), layer));
    return;
  }
  const int64_t num_experts = config.info.num_experts;
  result.router_config = config.router;
  result.router.gate = load_small(names.router, {num_experts, config.info.hidden});
  if (config.has_router_bias) {
    result.router.bias = load_small(names.router_bias, {num_experts});
  }
  if (config.has_correction_bias) {
    // Some files have it with a dimension of 1 before.
    const bool is_row = files.entry(names.correction_bias).shape == Shape{1, num_experts};
    result.router.correction_bias =
        load_small(names.correction_bias, is_row ? Shape{1, num_experts} : Shape{num_experts},
                   /*masks=*/true)
            .view({num_experts});
  }
  if (config.scores_groups_by_two) {  // as the router does with a correction bias, even of zeros
    result.router.correction_bias = Tensor::zeros({num_experts}, DType::kF32);
  }
  if (config.has_normed_router) {
    load_normed_router(names, result.router);
  }
}

// Gemma 4 has two norms of x beside each other: experts get y = normed(x) * w, and the router
// computes gate * (normed(x) * scale / sqrt(H)).  The layer gets y, so the gate is made for it:
// the logits are gate' * y with gate' = gate * scale / sqrt(H) / w.
void Checkpoint::State::load_normed_router(const LayerNames& names, RouterWeights& router) const {
  const std::string module = names.block + ".router";
  const std::string norm = names.block + ".pre_feedforward_layernorm_2.weight";
  const int64_t hidden = config.info.hidden, num_experts = config.info.num_experts;
  const Tensor scale = convert(load_small(module + ".scale", {hidden}), DType::kF32);
  const Tensor weight = convert(load_small(norm, {hidden}), DType::kF32);
  router.expert_scale = load_small(module + ".per_expert_scale", {num_experts});
  const Tensor gate = convert(router.gate, DType::kF32);
  const double root = std::sqrt(static_cast<double>(hidden));
  for (int64_t h = 0; h < hidden; ++h) {
    const double divisor = root * static_cast<double>(weight.data<float>()[h]);
    const double factor = static_cast<double>(scale.data<float>()[h]) / divisor;
    if (!std::isfinite(static_cast<float>(factor))) {
      throw Unsupported(fmt::format(
          "{}: element {} is {}, supported: factors that the router's norm can be divided by",
          tensor_label(files, norm), h, weight.data<float>()[h]));
    }
    for (int64_t e = 0; e < num_experts; ++e) {
      float& value = gate.data<float>()[e * hidden + h];
      value = static_cast<float>(static_cast<double>(value) * factor);
    }
  }
  router.gate = gate;
}

void Checkpoint::State::warn_of_unread(const LayerNames& names, int64_t layer) const {
  std::vector<std::string> unread = unread_tensors(files, names);
  std::erase_if(unread, is_input_scale);  // experts with 16-bit activations leave them out
  if (unread.empty()) {
    return;
  }
  constexpr size_t kShown = 4;
  std::string text;
  for (size_t i = 0; i < std::min(unread.size(), kShown); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", in_quotes(unread[i]));
  }
  if (unread.size() > kShown) {
    text += fmt::format(" and {} more", unread.size() - kShown);
  }
  log(LogLevel::kWarn, fmt::format("{}: nothing reads these tensors of layer {}: {}",
                                   directory.string(), layer, text));
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
  const ModelInfo& info = state_->config.info;
  LayerNames names = state_->names(layer);
  state_->expect_small(names.router, {info.num_experts, info.hidden});
  return std::move(names.block);
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
  const LayerNames names = state_->names(layer);

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

  state_->load_router(names, layer, result);
  moe.in_dtype = info.dtype.value_or(state_->files.entry(names.router).dtype);
  result.apply_router_weight_on_input = config.apply_router_weight_on_input;
  result.activation = config.activation;
  const bool allows = allows_nonfinite(options);
  const auto load = [&](const ExpertSource& source, const ExpertSlice& slice) {
    return options.quant == "auto" || options.quant == "none"
               ? load_experts(source, slice, options.quant == "auto", allows)
               : quantize_experts(source, slice, options.quant, allows);
  };
  const int64_t rank = options.tp_rank;
  result.experts = load(ExpertSource::routed(state_->files, config, names, local[0]),
                        {.experts = local,
                         .intermediate = {rank * shard, (rank + 1) * shard},
                         .adds_w2_bias = rank == 0});
  if (info.num_shared_experts > 0) {
    result.shared =
        load(ExpertSource::shared(state_->files, config, names),
             {.experts = ExpertIds({0}), .intermediate = {0, info.shared_intermediate}});
    result.shared_intermediate = info.shared_intermediate;
  }
  if (config.has_shared_gate) {
    result.shared_gate = state_->load_small(names.shared_gate, {1, info.hidden});
  }
  if (config.averages_shared) {  // sigmoid(0) is the half that the mean takes
    result.shared_gate = Tensor::zeros({1, info.hidden}, DType::kF32);
  }
  if (options.ep_rank == 0 && options.tp_rank == 0) {  // one warning, not one per rank
    state_->warn_of_unread(names, layer);
  }
  return result;
}

}  // namespace moebius
