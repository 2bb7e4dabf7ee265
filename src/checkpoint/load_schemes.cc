// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/load_schemes.h"

#include <fmt/format.h>

#include <vector>

#include "moebius/checkpoint.h"
#include "moebius/error.h"

namespace moebius::checkpoint {

namespace {

QuantConfig per_channel(const LoadScheme& scheme, bool quantizes_rows, QuantTensors tensors) {
  return QuantConfig::make(quantizes_rows ? std::optional(scheme.format) : std::nullopt,
                           quantizes_rows, true, std::nullopt, std::move(tensors), scheme.format);
}
QuantConfig fp8_blocks(const LoadScheme&, QuantTensors tensors, GroupShape group) {
  return QuantConfig::fp8_w8a8(std::move(tensors), false, false, group);
}
QuantConfig fp8_tensors(const LoadScheme&, QuantTensors tensors, GroupShape) {
  return QuantConfig::fp8_w8a8(std::move(tensors));
}
QuantConfig channels_and_tokens(const LoadScheme& scheme, QuantTensors tensors, GroupShape) {
  return per_channel(scheme, true, std::move(tensors));
}
QuantConfig channels(const LoadScheme& scheme, QuantTensors tensors, GroupShape) {
  return per_channel(scheme, false, std::move(tensors));
}
QuantConfig int4_groups(const LoadScheme&, QuantTensors tensors, GroupShape group) {
  return QuantConfig::int4_w4a16(std::move(tensors), GroupShape{0, group.col});
}
QuantConfig mxfp4_weights(const LoadScheme&, QuantTensors tensors, GroupShape) {
  return QuantConfig::mxfp4_w4a16(std::move(tensors));
}
QuantConfig ocp_mx(const LoadScheme& scheme, QuantTensors tensors, GroupShape) {
  return QuantConfig::ocp_mx(scheme.format, std::move(tensors));
}
QuantConfig nvfp4(const LoadScheme&, QuantTensors tensors, GroupShape) {
  return QuantConfig::nvfp4(std::move(tensors));
}

constexpr GroupShape kBlock{128, 128};
constexpr GroupShape kChannel = GroupShape::per_token();
constexpr GroupShape kInt4{1, 128};
constexpr GroupShape kMx{1, 32};
constexpr GroupShape kNv{1, 16};

constexpr LoadScheme kSchemes[] = {
    {"fp8_w8a8", "e4m3, weights by 128x128 blocks, activations by 1x128", QuantFormat::kFp8, kBlock,
     fp8_blocks},
    {"fp8_w8a8_channel", "e4m3, weights per output channel, activations per token",
     QuantFormat::kFp8, kChannel, channels_and_tokens},
    {"fp8_w8a8_tensor", "e4m3, weights per expert, activations per tensor", QuantFormat::kFp8,
     GroupShape::per_tensor(), fp8_tensors},
    {"int8_w8a8", "weights per output channel, activations per token", QuantFormat::kInt8, kChannel,
     channels_and_tokens},
    {"int8_w8a16", "weights per output channel", QuantFormat::kInt8, kChannel, channels},
    {"int4_w4a16", "weights by groups of 128, 64 or 32 around 8", QuantFormat::kInt4, kInt4,
     int4_groups},
    {"mxfp4_w4a16", "weights in OCP MX e2m1", QuantFormat::kMxfp4, kMx, mxfp4_weights},
    {"mxfp4", "weights and activations in OCP MX e2m1", QuantFormat::kMxfp4, kMx, ocp_mx},
    {"mxfp6_e3m2", "weights and activations in OCP MX e3m2", QuantFormat::kMxfp6E3M2, kMx, ocp_mx},
    {"mxfp6_e2m3", "weights and activations in OCP MX e2m3", QuantFormat::kMxfp6E2M3, kMx, ocp_mx},
    {"mxfp8", "weights and activations in OCP MX e4m3", QuantFormat::kMxfp8, kMx, ocp_mx},
    {"nvfp4", "weights and activations in e2m1, e4m3 scales per 16, activations scaled per row",
     QuantFormat::kNvfp4, kNv, nvfp4},
};

int64_t int4_group(int64_t hidden, int64_t intermediate) {
  for (const int64_t group : {128, 64}) {
    if (hidden % group == 0 && intermediate % group == 0) {
      return group;
    }
  }
  return 32;
}

// alpha = 1 / global scale of the weight, since every row of the activation has a scale of its own.
Tensor make_alphas(const Tensor& global_scale) {
  Tensor alphas = Tensor::empty(global_scale.shape(), DType::kF32);
  for (int64_t i = 0; i < alphas.numel(); ++i) {
    alphas.data<float>()[i] = 1.0f / global_scale.data<float>()[i];
  }
  return alphas.dim(1) == 1 ? alphas.view({alphas.dim(0)}) : alphas;
}

// A scale per tensor belongs to a whole expert; otherwise each half is quantized by itself.
int64_t num_parts_of(const QuantizeSpec& spec, int64_t halves) {
  return spec.group.is_per_tensor() ? 1 : halves;
}

// Drops dimensions of 1, since QuantDesc wants scales [L] per tensor and [L, N] per channel.
Tensor without_ones(const Tensor& scale, const GroupShape& group) {
  if (group.is_per_tensor()) {
    return scale.view({scale.dim(0)});
  }
  return group.is_per_token() ? scale.view({scale.dim(0), scale.dim(1)}) : scale;
}

}  // namespace

const LoadScheme& find_load_scheme(const std::string& name, const std::string& others) {
  std::string known = others;
  for (const LoadScheme& scheme : kSchemes) {
    if (scheme.name == name) {
      return scheme;
    }
    known += fmt::format(", {}", scheme.name);
  }
  throw InvalidArgument(fmt::format("quant is {}, expected one of {}", name, known));
}

QuantizeSpec load_weight_spec(const LoadScheme& scheme,
                              int64_t hidden,
                              int64_t intermediate,
                              bool is_interleaved) {
  QuantizeSpec spec;
  spec.format = scheme.format;
  spec.group = scheme.group;
  if (scheme.format == QuantFormat::kInt4) {
    spec.group.col = int4_group(hidden, intermediate);
  }
  if (is_interleaved && spec.group.row > 1 && intermediate % spec.group.row != 0) {
    throw Unsupported(fmt::format(
        "quant {}: gate and up rows alternate, and intermediate {} is not a multiple of {}",
        scheme.name, intermediate, spec.group.row));
  }
  return spec;
}

void expect_quantizable(const LoadScheme& scheme,
                        const QuantizeSpec& spec,
                        int64_t rows,
                        int64_t cols,
                        int64_t halves) {
  const int64_t part_rows = rows / num_parts_of(spec, halves);
  const Support support = quantize_supported(spec, part_rows, cols);
  if (!support) {
    throw Unsupported(fmt::format("quant {} of an expert's [{}, {}] weight: {}", scheme.name,
                                  part_rows, cols, support.reason));
  }
}

QuantizedWeight allocate_weight(const LoadScheme& scheme,
                                const QuantizeSpec& spec,
                                const Shape& shape,
                                int64_t halves) {
  const int64_t num_experts = shape[0];
  expect_quantizable(scheme, spec, shape[1], shape[2], halves);
  QuantizedWeight result;
  result.num_parts = num_parts_of(spec, halves);
  const Quantized one = allocate_quantized(spec, shape[1] / result.num_parts, shape[2]);
  result.values = Tensor::empty(shape, one.values.dtype());
  result.scale = Tensor::empty({num_experts, result.num_parts * one.scale.dim(0), one.scale.dim(1)},
                               one.scale.dtype());
  if (one.global_scale.defined()) {
    result.global_scale = Tensor::empty({num_experts, result.num_parts}, DType::kF32);
  }
  return result;
}

QuantConfig make_quant_config(const LoadScheme& scheme,
                              const QuantizeSpec& spec,
                              const QuantizedWeight& w1,
                              const QuantizedWeight& w2) {
  QuantTensors tensors;
  tensors.w1_scale = without_ones(w1.scale, spec.group);
  tensors.w2_scale = without_ones(w2.scale, spec.group);
  if (scheme.format == QuantFormat::kNvfp4) {
    tensors.g1_alphas = make_alphas(w1.global_scale);
    tensors.g2_alphas = make_alphas(w2.global_scale);
  }
  return scheme.make(scheme, std::move(tensors), spec.group);
}

}  // namespace moebius::checkpoint

namespace moebius {

std::vector<QuantSchemeInfo> load_quant_schemes() {
  std::vector<QuantSchemeInfo> result;
  for (const checkpoint::LoadScheme& scheme : checkpoint::kSchemes) {
    result.push_back({std::string(scheme.name), std::string(scheme.description)});
  }
  return result;
}

}  // namespace moebius
