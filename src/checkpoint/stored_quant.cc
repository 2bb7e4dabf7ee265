// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/stored_quant.h"

#include <algorithm>

#include "checkpoint/expert_loader.h"

namespace moebius::checkpoint {

namespace {

float* new_floats(Tensor& tensor, Shape shape) {
  tensor = Tensor::empty(shape, DType::kF32);
  return tensor.data<float>();
}

// The scale of a projection's input.
float input_scale(const ExpertSource& source, int64_t expert, Projection projection) {
  const float stored = source.scalar(expert, projection, *source.part(PartRole::kInputScale));
  return source.scheme().stored == WeightFormat::kNvfp4Packed ? 1.0f / stored : stored;
}

// The scale of a1.  Why one: its rows are quantized before it is known which expert gets them, and
// alike on every rank.  So gate and up of all experts share the largest input scale, as in vLLM; a2
// has a scale per expert.
float a1_scale(const ExpertSource& source) {
  float result = 0.0f;
  for (int64_t e = 0; e < source.num_experts(); ++e) {
    for (const Piece& piece : w1_pieces(source, {})) {
      result = std::max(result, input_scale(source, e, piece.projection));
    }
  }
  return result;
}

void load_tensor_scales(const ExpertSource& source,
                        const ExpertIds& experts,
                        QuantTensors& tensors) {
  *new_floats(tensors.a1_scale, {1}) = a1_scale(source);
  float* a2 = new_floats(tensors.a2_scale, {experts.size()});
  for (const int64_t e : experts) {
    *a2++ = input_scale(source, e, Projection::kDown);
  }
}

void load_nvfp4_scales(const ExpertSource& source,
                       const ExpertIds& experts,
                       bool has_input_scales,
                       QuantTensors& tensors) {
  const StoredPart& global = *source.part(PartRole::kGlobalScale);
  const float a1 = has_input_scales ? a1_scale(source) : 1.0f;
  if (has_input_scales) {
    *new_floats(tensors.a1_gscale, {1}) = 1.0f / a1;
    new_floats(tensors.a2_gscale, {experts.size()});
  }
  const std::vector<Piece> pieces = w1_pieces(source, {});
  const auto halves = static_cast<int64_t>(pieces.size());
  float* g1 = new_floats(tensors.g1_alphas,
                         halves > 1 ? Shape{experts.size(), halves} : Shape{experts.size()});
  float* g2 = new_floats(tensors.g2_alphas, {experts.size()});
  for (int64_t l = 0; l < experts.size(); ++l) {
    const int64_t e = experts[l];
    for (const Piece& piece : pieces) {
      *g1++ = source.alpha(e, piece.projection, global, a1);
    }
    float a2 = 1.0f;
    if (has_input_scales) {
      a2 = input_scale(source, e, Projection::kDown);
      tensors.a2_gscale.data<float>()[l] = 1.0f / a2;
    }
    g2[l] = source.alpha(e, Projection::kDown, global, a2);
  }
}

}  // namespace

void load_static_scales(const ExpertSource& source,
                        const ExpertIds& experts,
                        bool quantize_activations,
                        QuantTensors& tensors) {
  const bool has_input_scales = quantize_activations && source.scheme().has_input_scales();
  if (source.part(PartRole::kGlobalScale) != nullptr) {
    load_nvfp4_scales(source, experts, has_input_scales, tensors);
  } else if (has_input_scales) {
    load_tensor_scales(source, experts, tensors);
  }
}

QuantConfig stored_quant_config(const WeightScheme& scheme,
                                bool quantize_activations,
                                QuantTensors tensors) {
  if (!scheme.format) {
    return QuantConfig::unquantized();
  }
  // Scales per row are loaded as [L, N, 1], and so are zero points; QuantDesc wants [L, N].
  const bool is_per_row = scheme.group.is_per_token();
  for (Tensor* tensor :
       {&tensors.w1_scale, &tensors.w2_scale, &tensors.w1_zero_point, &tensors.w2_zero_point}) {
    if (is_per_row && *tensor && tensor->num_dims() == 3) {
      *tensor = tensor->view({tensor->dim(0), tensor->dim(1)});
    }
  }
  const auto activations = quantize_activations ? scheme.activations : ActivationScheme::kNone;
  const bool acts = activations != ActivationScheme::kNone;
  QuantConfig quant;
  switch (*scheme.format) {
    case QuantFormat::kInt4:
      quant = QuantConfig::int4_w4a16(std::move(tensors),
                                      is_per_row ? scheme.group : GroupShape{0, scheme.group.col});
      break;
    case QuantFormat::kMxfp4:
    case QuantFormat::kMxfp8:
      quant = QuantConfig::ocp_mx(*scheme.format, std::move(tensors));
      break;
    case QuantFormat::kNvfp4:
      quant = QuantConfig::nvfp4(std::move(tensors));
      break;
    default:
      if (is_per_row) {
        quant = QuantConfig::make(acts ? scheme.format : std::nullopt,
                                  activations == ActivationScheme::kPerToken, true, std::nullopt,
                                  std::move(tensors), scheme.format);
      } else if (scheme.format == QuantFormat::kInt8) {
        quant = QuantConfig::int8_w8a16(std::move(tensors), scheme.group);
      } else {
        quant = QuantConfig::fp8_w8a8(std::move(tensors), false, false, scheme.group);
        quant.a1.power_of_two_scale = quant.a2.power_of_two_scale =
            activations == ActivationScheme::kPerBlockUe8m0;
      }
  }
  if (!acts && quant.a1.format) {
    quant.a1 = {};
    quant.a2 = {};
  }
  return quant;
}

}  // namespace moebius::checkpoint
