// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Checkpoint: one MoE layer of a Hugging Face model directory as MoeLayerWeights.
// Families: mixtral, qwen2_moe, qwen3_moe, deepseek_v2, deepseek_v3, gpt_oss, llama4, olmoe,
// glm4_moe.  Weights: bf16, f16, f32, fp8 blocks (activations with f32 or UE8M0 scales),
// compressed-tensors int4 groups, int8 and fp8 channels, mxfp4, ModelOpt nvfp4.  Only the layer's
// tensors are touched, each is copied at most once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "moebius/moe_layer.h"
#include "moebius/safetensors.h"

namespace moebius {

// config.json, the parts an MoE layer needs.
struct ModelInfo {
  std::string family;          // model_type
  std::string quant_method;    // "none", "fp8", "compressed-tensors int4", "mxfp4", "nvfp4", ...
  std::optional<DType> dtype;  // of unquantized weights and activations; nullopt: not said
  int64_t num_layers = 0;
  std::vector<int64_t> moe_layers;  // layers that have experts
  int64_t hidden = 0;
  int64_t intermediate = 0;  // of one routed expert
  int64_t num_experts = 0;
  int64_t topk = 0;
  int64_t num_shared_experts = 0;
  int64_t shared_intermediate = 0;  // all shared experts together
};

// A way to quantize an unquantized checkpoint at load.
struct QuantSchemeInfo {
  std::string name;  // "fp8_w8a8"
  std::string description;
};
std::vector<QuantSchemeInfo> load_quant_schemes();

struct LoadOptions {
  // auto: activations as the checkpoint's scheme says; none: weights as stored, activations not
  // quantized; else one of load_quant_schemes(), which applies to routed and shared experts.
  std::string quant = "auto";
  int ep_size = 1, ep_rank = 0;  // which experts to load
  // Which slice of I (shared experts are whole); biases of w2 (summed over the ranks) are zero on
  // all but rank 0.  Groups and scales are those of whole experts, stored or quantized at load: a
  // cut through blocks is refused.
  int tp_size = 1, tp_rank = 0;
};

class Checkpoint {
 public:
  // Reads config.json and opens the safetensors.  Throws InvalidArgument naming file and field.
  explicit Checkpoint(const std::filesystem::path& directory);
  ~Checkpoint();

  const ModelInfo& info() const;
  // Throws InvalidArgument naming file, tensor and both values; Unsupported for a family or a
  // quantization not listed above.
  MoeLayerWeights load_layer(int64_t layer, const LoadOptions& options = {}) const;
  // Prefix of the layer's MoE block as the checkpoint writes it ("model.layers.1.mlp").  Throws
  // InvalidArgument where the router there is not of config.json's sizes.
  std::string block_prefix(int64_t layer) const;
  const Safetensors& tensors() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A synthetic checkpoint of a real model's exact layer shape, with random weights from `seed`.
struct PresetInfo {
  std::string name;
  std::string description;
  ModelInfo model;
};
std::vector<PresetInfo> model_presets();
// Writes directory/config.json and model.safetensors (a sharded set above 5 GB per file): the MoE
// blocks of num_layers layers, all of them MoE layers (a model's first dense layers are left out).
// num_layers 0: one, or both of a tiny preset.
// quant: "none" or a checkpoint format ("fp8", "int8", "int4", "mxfp4", "nvfp4").
// Equal arguments give equal files.  Returns their bytes.  Throws InvalidArgument (unknown preset
// or quant, too many layers, a file in the way), Unsupported (the family is not published in that
// format, with the reason) or Error (disk full, no permission); nothing half-written stays.
int64_t make_model(const std::string& preset,
                   int64_t num_layers,
                   const std::string& quant,
                   uint64_t seed,
                   const std::filesystem::path& directory);

}  // namespace moebius
