// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Unquantized weights quantized while they are loaded: one expert at a time per thread, so that the
// unquantized layer is never in memory as a whole.
#include <fmt/format.h>

#include <cstring>

#include "checkpoint/expert_loader.h"
#include "core/parallel.h"
#include "moebius/checkpoint.h"
#include "moebius/error.h"
#include "moebius/quantize.h"

namespace moebius::checkpoint {

namespace {

// Why 16: without calibration data the range of the activations is unknown.  Block scales then
// cover block maxima from 0.006 (below, they lose precision) to 168 (beyond, values saturate).
constexpr float kNvfp4ActivationScale = 16.0f;

struct Scheme {
  std::string_view name;
  std::string_view description;
  QuantFormat format;
  GroupShape group;  // of weights; int4: the largest of 128, 64, 32 that divides H and I
  QuantConfig (*make)(QuantTensors tensors, GroupShape group);
};

QuantConfig make_per_row(std::optional<QuantFormat> activation,
                         QuantFormat weight,
                         QuantTensors tensors) {
  return QuantConfig::make(activation, activation.has_value(), true, std::nullopt,
                           std::move(tensors), weight);
}

constexpr Scheme kSchemes[] = {
    {"fp8_w8a8",
     "e4m3, weights by 128x128 blocks, activations by 1x128",
     QuantFormat::kFp8,
     {128, 128},
     [](QuantTensors t, GroupShape g) {
       return QuantConfig::fp8_w8a8(std::move(t), false, false, g);
     }},
    {"fp8_w8a8_channel", "e4m3, weights per output channel, activations per token",
     QuantFormat::kFp8, GroupShape::per_token(),
     [](QuantTensors t, GroupShape) {
       return make_per_row(QuantFormat::kFp8, QuantFormat::kFp8, std::move(t));
     }},
    {"fp8_w8a8_tensor", "e4m3, weights per expert, activations per tensor", QuantFormat::kFp8,
     GroupShape::per_tensor(),
     [](QuantTensors t, GroupShape) { return QuantConfig::fp8_w8a8(std::move(t)); }},
    {"int8_w8a8", "weights per output channel, activations per token", QuantFormat::kInt8,
     GroupShape::per_token(),
     [](QuantTensors t, GroupShape) {
       return make_per_row(QuantFormat::kInt8, QuantFormat::kInt8, std::move(t));
     }},
    {"int8_w8a16", "weights per output channel", QuantFormat::kInt8, GroupShape::per_token(),
     [](QuantTensors t, GroupShape) {
       return make_per_row(std::nullopt, QuantFormat::kInt8, std::move(t));
     }},
    {"int4_w4a16",
     "weights by groups of 128, 64 or 32 around 8",
     QuantFormat::kInt4,
     {1, 128},
     [](QuantTensors t, GroupShape g) {
       return QuantConfig::int4_w4a16(std::move(t), GroupShape{0, g.col});
     }},
    {"mxfp4_w4a16",
     "weights in OCP MX e2m1",
     QuantFormat::kMxfp4,
     {1, 32},
     [](QuantTensors t, GroupShape) { return QuantConfig::mxfp4_w4a16(std::move(t)); }},
    {"mxfp4",
     "weights and activations in OCP MX e2m1",
     QuantFormat::kMxfp4,
     {1, 32},
     [](QuantTensors t, GroupShape) {
       return QuantConfig::ocp_mx(QuantFormat::kMxfp4, std::move(t));
     }},
    {"mxfp6_e3m2",
     "weights and activations in OCP MX e3m2",
     QuantFormat::kMxfp6E3M2,
     {1, 32},
     [](QuantTensors t, GroupShape) {
       return QuantConfig::ocp_mx(QuantFormat::kMxfp6E3M2, std::move(t));
     }},
    {"mxfp6_e2m3",
     "weights and activations in OCP MX e2m3",
     QuantFormat::kMxfp6E2M3,
     {1, 32},
     [](QuantTensors t, GroupShape) {
       return QuantConfig::ocp_mx(QuantFormat::kMxfp6E2M3, std::move(t));
     }},
    {"mxfp8",
     "weights and activations in OCP MX e4m3",
     QuantFormat::kMxfp8,
     {1, 32},
     [](QuantTensors t, GroupShape) {
       return QuantConfig::ocp_mx(QuantFormat::kMxfp8, std::move(t));
     }},
    {"nvfp4",
     "weights and activations in e2m1, e4m3 scales per 16",
     QuantFormat::kNvfp4,
     {1, 16},
     [](QuantTensors t, GroupShape) { return QuantConfig::nvfp4(std::move(t)); }},
};

const Scheme& find_scheme(const std::string& name) {
  std::string known = "auto, none";
  for (const Scheme& scheme : kSchemes) {
    if (scheme.name == name) {
      return scheme;
    }
    known += fmt::format(", {}", scheme.name);
  }
  throw InvalidArgument(fmt::format("quant is {}, expected one of {}", name, known));
}

int64_t int4_group(const ExpertSource& source, const ExpertSlice& slice) {
  for (const int64_t group : {128, 64}) {
    if (source.hidden() % group == 0 && slice.intermediate.size() % group == 0) {
      return group;
    }
  }
  return 32;
}

// w1 or w2 of all local experts.
class WeightQuantizer {
 public:
  WeightQuantizer(const ExpertSource& source,
                  std::vector<Piece> pieces,
                  const QuantizeSpec& spec,
                  Range experts,
                  std::string_view scheme)
      : source_(source), pieces_(std::move(pieces)), spec_(spec), experts_(experts) {
    cols_ = pieces_.front().cols.size();
    for (const Piece& piece : pieces_) {
      rows_ += piece.rows.size();
    }
    // One scale for a whole expert, else each half by itself.
    num_parts_ = spec.group.is_per_tensor() ? 1 : static_cast<int64_t>(pieces_.size());
    const int64_t part_rows = rows_ / num_parts_;
    const Support support = quantize_supported(spec, part_rows, cols_);
    if (!support) {
      throw Unsupported(fmt::format("quant {} of an expert's [{}, {}] weight: {}", scheme,
                                    part_rows, cols_, support.reason));
    }
    dtype_ = source.matrix(experts.begin, pieces_.front().projection, float_part()).dtype;
    check_sources();
    const Quantized one = allocate_quantized(spec, part_rows, cols_);
    values = Tensor::empty({experts.size(), rows_, cols_}, one.values.dtype());
    scale = Tensor::empty({experts.size(), num_parts_ * one.scale.dim(0), one.scale.dim(1)},
                          one.scale.dtype());
    if (one.global_scale.defined()) {
      global_scale = Tensor::empty({experts.size(), num_parts_}, DType::kF32);
    }
  }

  Tensor make_buffer() const { return Tensor::empty({rows_, cols_}, dtype_); }

  // REQUIRES: a buffer nobody else uses.
  void quantize_expert(int64_t local_expert, const Tensor& buffer, const Stream& stream) const {
    int64_t row = 0;
    for (const Piece& piece : pieces_) {
      const StoredMatrix from =
          source_.matrix(experts_.begin + local_expert, piece.projection, float_part());
      const Tensor to = buffer.slice(row, row + piece.rows.size());
      from.copy_to(to.bytes(), row_bytes(dtype_, cols_), piece.rows, piece.cols);
      row += piece.rows.size();
    }
    const auto part = [this](const Tensor& t, int64_t i) {
      const int64_t n = t.dim(0) / num_parts_;
      return t.slice(i * n, (i + 1) * n);
    };
    for (int64_t i = 0; i < num_parts_; ++i) {
      Quantized out;
      out.values = part(values[local_expert], i);
      out.scale = part(scale[local_expert], i);
      if (global_scale.defined()) {
        out.global_scale = part(global_scale[local_expert], i);
      }
      quantize(part(buffer, i), spec_, out, stream);
    }
  }

  Tensor values;        // [L, N, K]
  Tensor scale;         // [L, ..] as the group says
  Tensor global_scale;  // nvfp4: f32 [L, parts]

 private:
  static StoredPart float_part() { return {PartRole::kWeight, ".weight", DType::kBF16}; }

  // Every tensor's dtype and shape, before the work starts.
  void check_sources() const {
    for (int64_t e = experts_.begin; e < experts_.end; ++e) {
      for (const Piece& piece : pieces_) {
        const StoredMatrix from = source_.matrix(e, piece.projection, float_part());
        if (from.dtype != dtype_) {
          throw InvalidArgument(fmt::format("{} has dtype {}, others of its layer have {}",
                                            from.label, name(from.dtype), name(dtype_)));
        }
      }
    }
  }

  const ExpertSource& source_;
  std::vector<Piece> pieces_;
  QuantizeSpec spec_;
  Range experts_;
  DType dtype_ = DType::kBF16;
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  int64_t num_parts_ = 1;
};

// 1 / (global scale of the weight * of the activation).
Tensor make_alphas(const Tensor& global_scale) {
  Tensor alphas = Tensor::empty(global_scale.shape(), DType::kF32);
  for (int64_t i = 0; i < alphas.numel(); ++i) {
    alphas.data<float>()[i] = 1.0f / (global_scale.data<float>()[i] * kNvfp4ActivationScale);
  }
  return alphas.dim(1) == 1 ? alphas.view({alphas.dim(0)}) : alphas;
}

// Scales as QuantDesc wants them: [L] per tensor, [L, N] per channel.
Tensor without_ones(const Tensor& scale, const GroupShape& group) {
  if (group.is_per_tensor()) {
    return scale.view({scale.dim(0)});
  }
  return group.is_per_token() ? scale.view({scale.dim(0), scale.dim(1)}) : scale;
}

}  // namespace

ExpertWeights quantize_experts(const ExpertSource& source,
                               const ModelConfig& config,
                               const ExpertSlice& slice,
                               const std::string& name,
                               const Stream& stream) {
  const Scheme& scheme = find_scheme(name);
  if (source.scheme().format != WeightFormat::kFloat) {
    throw InvalidArgument(fmt::format(
        "quant is {}, but the weights are quantized already ({}): expected auto or none", name,
        source.scheme().name));
  }
  const bool is_interleaved = config.activation.interleaved;
  QuantizeSpec spec;
  spec.format = scheme.format;
  spec.group = scheme.group;
  if (scheme.format == QuantFormat::kInt4) {
    spec.group.col = int4_group(source, slice);
  }
  if (is_interleaved && spec.group.row > 1 && slice.intermediate.size() % spec.group.row != 0) {
    throw Unsupported(fmt::format(
        "quant {}: gate and up rows alternate, and intermediate {} is not a multiple of {}", name,
        slice.intermediate.size(), spec.group.row));
  }
  const WeightQuantizer w1(source, w1_pieces(source, is_interleaved, slice.intermediate), spec,
                           slice.experts, name);
  const WeightQuantizer w2(source, w2_pieces(source, slice.intermediate), spec, slice.experts,
                           name);
  for (const WeightQuantizer* weight : {&w1, &w2}) {
    std::vector<Tensor> buffers(static_cast<size_t>(stream.num_threads()));
    parallel_tasks(stream, slice.experts.size(), [&](int64_t local_expert, int thread_idx) {
      Tensor& buffer = buffers[static_cast<size_t>(thread_idx)];
      if (!buffer) {
        buffer = weight->make_buffer();
      }
      weight->quantize_expert(local_expert, buffer, Stream::cpu(1));
    });
  }

  QuantTensors tensors;
  tensors.w1_scale = without_ones(w1.scale, spec.group);
  tensors.w2_scale = without_ones(w2.scale, spec.group);
  if (scheme.format == QuantFormat::kNvfp4) {
    tensors.a1_gscale = Tensor::empty({1}, DType::kF32);
    tensors.a1_gscale.data<float>()[0] = kNvfp4ActivationScale;
    tensors.a2_gscale = tensors.a1_gscale;
    tensors.g1_alphas = make_alphas(w1.global_scale);
    tensors.g2_alphas = make_alphas(w2.global_scale);
  }
  ExpertWeights result;
  result.w1 = w1.values;
  result.w2 = w2.values;
  result.quant = scheme.make(std::move(tensors), spec.group);
  load_biases(source, config, slice, result.quant);
  return result;
}

}  // namespace moebius::checkpoint

namespace moebius {

using namespace checkpoint;

std::vector<QuantSchemeInfo> load_quant_schemes() {
  std::vector<QuantSchemeInfo> result;
  for (const Scheme& scheme : kSchemes) {
    result.push_back({std::string(scheme.name), std::string(scheme.description)});
  }
  return result;
}

}  // namespace moebius
