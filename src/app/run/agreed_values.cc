// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

#include "app/build_info.h"
#include "app/run/agreement.h"
#include "checkpoint/json_text.h"
#include "checkpoint/model_files.h"
#include "core/digest.h"
#include "moebius/settings.h"

namespace moebius::app {

namespace {

template <typename T>
std::string text_of(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "given" : "not given";
  } else {
    return fmt::format("{}", value);
  }
}

template <typename T>
std::string text_of(const std::optional<T>& value) {
  return value ? text_of(*value) : "not given";
}

std::string text_of(const std::string& value) {
  return value.empty() ? "not given" : value;
}

void add_text(Digest& digest, std::string_view text) {
  digest.add(std::as_bytes(std::span(text)));
}

// This reads the bytes of what the layer's block has beside experts: the router is small, and every
// rank loads it anyway.
uint64_t model_digest(const RunOptions& options,
                      const Checkpoint& checkpoint,
                      const std::vector<int64_t>& layers) {
  Digest digest;
  const std::filesystem::path folder = options.model;
  add_text(digest, checkpoint::read_json_object(folder / checkpoint::kConfigFile).dump());
  const Safetensors& tensors = checkpoint.tensors();
  const ModelInfo& info = checkpoint.info();
  const auto router_bytes = static_cast<uint64_t>(4 * info.num_experts * info.hidden);
  for (const int64_t layer : layers) {
    const std::string block = checkpoint.block_prefix(layer) + ".";
    for (const std::string& name : tensors.names(block)) {
      add_text(digest, name);
      if (name.find("expert", block.size()) != name.npos) {
        continue;
      }
      const SafetensorsEntry& entry = tensors.entry(name);
      add_text(digest, fmt::format("{} {}", entry.dtype_name, to_string(entry.shape)));
      if (entry.end - entry.begin <= router_bytes) {
        const Tensor bytes = tensors.bytes(name);
        digest.add({bytes.bytes(), static_cast<size_t>(bytes.nbytes())});
      }
    }
  }
  return digest.value();
}

uint64_t input_digest(const Tensor& hidden) {
  Digest digest;
  add_text(digest, fmt::format("{} {}", name(hidden.dtype()), to_string(hidden.shape())));
  digest.add({hidden.bytes(), static_cast<size_t>(hidden.nbytes())});
  return digest.value();
}

}  // namespace

std::vector<Agreed> agreed_values(const RunOptions& options,
                                  const RankPlan& plan,
                                  const Checkpoint& checkpoint,
                                  int64_t layer,
                                  const LayerInput& input) {
  std::vector<Agreed> values;
  const auto add = [&](std::string_view name, const auto& value) {
    values.push_back({.name = std::string(name), .value = text_of(value)});
  };
  const auto add_content = [&](std::string_view name, const std::string& shown, uint64_t digest) {
    values.push_back(
        {.name = std::string(name), .value = shown, .digest = digest, .is_content = true});
  };
  add("the version", version_line());
  add("--all-layers", options.all_layers);
  add("--layer", layer);
  const std::vector<int64_t> layers =
      options.all_layers ? checkpoint.info().moe_layers : std::vector<int64_t>{layer};
  add_content("--model", options.model, model_digest(options, checkpoint, layers));
  const bool is_synthetic = options.input.empty();
  if (is_synthetic) {
    add("--input", options.input);
  } else {
    add_content("--input", options.input, input_digest(input.hidden));
  }
  add("--tokens", input.hidden.dim(0));
  add("--seed", is_synthetic ? text_of(options.seed) : std::string());
  add("--device", options.device);
  add("--group", options.group);
  add("--ranks-per-node", options.ranks_per_node);
  add("--tp", plan.tp);
  add("--dp", plan.dp);
  add("--no-ep", options.no_ep);
  add("--all2all", name(plan.backend));
  add("--monolithic", options.monolithic);
  add("--quant", options.quant);
  add("--format", options.format);
  add("--experts", options.experts);
  add("--router-sums", options.router_sums);
  add("--sum", options.sum);
  add("--chunk-tokens", options.kernel.chunk_tokens);
  add("--microbatches", options.kernel.microbatches);
  add("--combine-parts", options.kernel.combine_parts);
  add("--early-rows", options.kernel.early_rows);
  add("--comm-sms", options.comm_sms);
  add("--capacity", options.capacity);
  add("--repeat", options.repeat);
  add("--graph", options.graph);
  add("--trace", !options.trace.empty());
  add("--report", !options.report.empty());
  for (const char* forced :
       {"MOEBIUS_TIMEOUT_MS", "MOEBIUS_CHUNK_TOKENS", "MOEBIUS_QUANT", "MOEBIUS_ROUTER",
        "MOEBIUS_EXPERTS", "MOEBIUS_CPU_VECTORS", "MOEBIUS_GEMM"}) {
    add(forced, setting(forced));
  }
  return values;
}

}  // namespace moebius::app
