// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Checkpoint: reads one MoE layer of a Hugging Face model directory as MoeLayerWeights.
// Families: those of docs/families.md.  Weights: bf16, f16, f32, and the formats of quant_method
// fp8, compressed-tensors, gptq, awq, mxfp4, modelopt, fbgemm_fp8 and mxfp8 that docs/formats.md
// lists.  Loading a layer touches only its tensors, and copies each at most once.
// Thread-safety: const members may be called at the same time; loading uses several threads.
// Ownership: loaded tensors are on the CPU and do not depend on the Checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "moebius/api.h"
#include "moebius/moe_layer.h"
#include "moebius/safetensors.h"

namespace moebius MOEBIUS_API {

// The content of config.json that MoE layers need.  Sizes are in elements.
struct ModelInfo {
  std::string family;        // model_type
  std::string quant_method;  // "none", of most modules: "fp8", "gptq int4", "nvfp4", ...
  // The dtype of unquantized weights and activations; nullopt where config.json does not say.
  std::optional<DType> dtype;
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
  // "auto": weights as stored, activations quantized as the checkpoint's scheme says.  "none":
  // weights as stored, activations not quantized.  Otherwise the name of one of
  // load_quant_schemes(), which then applies to routed and shared experts.
  std::string quant = "auto";
  int ep_size = 1, ep_rank = 0;  // select the experts to load
  // Which of ep_size ranks each expert lives on; unset: linear.  It becomes that of the layer.
  std::optional<ExpertPlacement> placement = std::nullopt;
  // Select the slice of I to load; shared experts are always loaded whole.  Since outputs are
  // summed over the ranks, the biases of w2 are zero on all ranks but 0.  Groups and scales are
  // those of whole experts, whether stored or quantized at load: a cut through blocks is refused.
  int tp_size = 1, tp_rank = 0;
  // A weight, scale or bias that is NaN or infinite is refused with its place.  true lets those of
  // experts through: where weights are quantized, all outputs of such an expert are NaN.  Routers
  // and factors of whole tensors are refused even so.  nullopt: as MOEBIUS_ALLOW_NONFINITE says.
  std::optional<bool> allow_nonfinite = std::nullopt;
};

class Checkpoint {
 public:
  // Reads config.json and opens the safetensors.  Throws InvalidArgument naming file and field, or
  // Unsupported for a family or a quantization not listed above.
  explicit Checkpoint(const std::filesystem::path& directory);
  ~Checkpoint();

  const ModelInfo& info() const;
  // Looks once at each element it loads, since NaN would spread without a hint where it began.  A
  // layer that chooses experts by token ids comes without a router, and a warning says so.  Another
  // warning names the tensors of the layer that nothing reads.
  // Throws InvalidArgument for a layer without experts, and for what is wrong in the files, naming
  // file, tensor and both values; and Unsupported where the tensors' layout cannot be loaded in
  // this way.
  MoeLayerWeights load_layer(int64_t layer, const LoadOptions& options = {}) const;
  // The prefix of the layer's MoE block as the checkpoint writes it ("model.layers.1.mlp").  Throws
  // InvalidArgument where the router there does not have the sizes of config.json.
  std::string block_prefix(int64_t layer) const;
  const Safetensors& tensors() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A synthetic checkpoint has the exact layer shape of a real model.
struct PresetInfo {
  std::string name;
  std::string description;
  ModelInfo model;
};
std::vector<PresetInfo> model_presets();
// Writes directory/config.json and model.safetensors, or a sharded set of files of at most 5 GB.
// They hold the MoE blocks of num_layers layers with random weights from `seed`.  All layers are
// MoE layers: a model's first dense layers are left out.  num_layers 0 stands for one layer, or for
// both layers of a tiny preset.  quant is "none" or a checkpoint format ("fp8", "int8", "int4",
// "mxfp4", "nvfp4").  Equal arguments give equal files.  Returns the number of bytes written.
// Throws InvalidArgument (unknown preset or quant, too many layers, a file in the way), Unsupported
// (the family is not published in that format, with the reason) or Error (disk full, no
// permission); no half-written file remains.
int64_t make_model(const std::string& preset,
                   int64_t num_layers,
                   const std::string& quant,
                   uint64_t seed,
                   const std::filesystem::path& directory);

}  // namespace moebius
