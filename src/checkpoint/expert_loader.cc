// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/expert_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "moebius/error.h"

namespace moebius::checkpoint {

namespace {

// One stored matrix and its place in the result.
struct CopyJob {
  StoredMatrix from;
  Range rows;  // in stored elements; for zero points, in rows of the weight
  Range cols;  // in stored elements
  std::byte* to = nullptr;
  int64_t stride = 0;
  PartRole role = PartRole::kWeight;
  int64_t expert = 0;
};

// The tensors of one weight, w1 or w2.
struct WeightTensors {
  Tensor weight;
  Tensor scale;
  Tensor zero_point;
};

// compressed-tensors packs zero points along the rows: row r of the weight is nibble r % 8 of row
// r / 8 of the words.
void unpack_zero_points(const CopyJob& job) {
  const Tensor bytes = job.from.files->bytes(job.from.tensor);
  for (int64_t r = job.rows.begin; r < job.rows.end; ++r) {
    std::byte* out = job.to + (r - job.rows.begin) * job.stride;
    for (int64_t c = job.cols.begin; c < job.cols.end; ++c) {
      uint32_t word = 0;
      std::memcpy(&word, bytes.bytes() + r / 8 * job.from.stride + c * 4, sizeof(word));
      out[c - job.cols.begin] = static_cast<std::byte>((word >> (r % 8 * 4)) & 0xfu);
    }
  }
}

// `dtype` is the type of the copied elements, which files may name differently.
void run(const CopyJob& job, DType dtype, FiniteWeights& finite) {
  if (job.role == PartRole::kZeroPoint) {
    unpack_zero_points(job);
  } else {
    finite.copy(job.from, dtype, job.rows, job.cols, job.to, job.stride, job.expert);
  }
}

DType canonical_dtype(const WeightScheme& scheme, PartRole role, DType stored) {
  if (role == PartRole::kZeroPoint) {
    return DType::kU8;
  }
  if (role == PartRole::kScale) {
    return scheme.format == WeightFormat::kMxfp4 ? DType::kE8M0 : stored;
  }
  const auto format = quant_format(scheme.format);
  return format ? storage_dtype(*format) : stored;
}

// Checks every tensor of the part, allocates their destination and appends the jobs that fill it.
Tensor plan(const ExpertSource& source,
            const std::vector<Piece>& pieces,
            const StoredPart& part,
            const ExpertIds& experts,
            std::vector<CopyJob>& jobs) {
  const size_t first_job = jobs.size();
  const bool is_zero_point = part.role == PartRole::kZeroPoint;
  int64_t num_rows = 0;  // of one expert
  for (const int64_t e : experts) {
    num_rows = 0;
    for (const Piece& piece : pieces) {
      CopyJob job;
      job.from = source.matrix(e, piece.projection, part);
      job.role = part.role;
      job.expert = e;
      const std::string what = job.from.label;
      job.rows = is_zero_point
                     ? piece.rows
                     : in_units(piece.rows, part.row_unit, source.rows(piece.projection), what);
      job.cols = in_units(piece.cols, part.col_unit, source.cols(piece.projection), what);
      num_rows += job.rows.size();
      if (jobs.size() > first_job && jobs[first_job].from.dtype != job.from.dtype) {
        throw InvalidArgument(fmt::format("{} has dtype {}, but {} has {}", job.from.label,
                                          name(job.from.dtype), jobs[first_job].from.label,
                                          name(jobs[first_job].from.dtype)));
      }
      jobs.push_back(std::move(job));
    }
  }
  const CopyJob& first = jobs[first_job];
  const DType dtype = canonical_dtype(source.scheme(), part.role, first.from.dtype);
  const int64_t num_cols =
      part.role == PartRole::kWeight ? pieces.front().cols.size() : first.cols.size();
  if (num_cols % pack_factor(dtype) != 0) {
    throw InvalidArgument(fmt::format("{} has {} columns here, expected a multiple of {}",
                                      first.from.label, num_cols, pack_factor(dtype)));
  }
  // A row of packed weights may end amid a word, whose padding would not fit the row.
  const int64_t stored_bytes = first.cols.size() * bits(first.from.dtype) / 8;
  if (part.role == PartRole::kWeight && stored_bytes != row_bytes(dtype, num_cols)) {
    throw Unsupported(
        fmt::format("{} has {} bytes in a row here, supported: the {} of its {} columns",
                    first.from.label, stored_bytes, row_bytes(dtype, num_cols), num_cols));
  }
  Tensor result = Tensor::empty({experts.size(), num_rows, num_cols}, dtype);
  std::byte* to = result.bytes();
  for (size_t i = first_job; i < jobs.size(); ++i) {
    jobs[i].to = to;
    jobs[i].stride = row_bytes(dtype, num_cols);
    to += jobs[i].rows.size() * jobs[i].stride;
  }
  return result;
}

WeightTensors plan_weight(const ExpertSource& source,
                          const std::vector<Piece>& pieces,
                          const std::vector<StoredPart>& parts,
                          const ExpertIds& experts,
                          std::vector<CopyJob>& jobs) {
  WeightTensors result;
  for (const StoredPart& part : parts) {
    if (part.role == PartRole::kWeightShape) {
      for (const int64_t e : experts) {
        for (const Piece& piece : pieces) {
          source.check_weight_shape(e, piece.projection, part);
        }
      }
    } else if (part.is_matrix()) {
      Tensor& target = part.role == PartRole::kWeight  ? result.weight
                       : part.role == PartRole::kScale ? result.scale
                                                       : result.zero_point;
      target = plan(source, pieces, part, experts, jobs);
    }
  }
  return result;
}

const StoredPart& find_part(const std::vector<StoredPart>& parts, PartRole role) {
  return *std::find_if(parts.begin(), parts.end(),
                       [&](const StoredPart& part) { return part.role == role; });
}

// nvfp4.  Why one scale for a1: its rows are quantized before it is known which expert gets them,
// and alike on every rank.  So gate and up of all experts share the largest input scale, as in
// vLLM; a2 has a scale per expert.
void load_global_scales(const ExpertSource& source,
                        const std::vector<StoredPart>& parts,
                        const ExpertIds& experts,
                        bool quantize_activations,
                        QuantTensors& tensors) {
  const StoredPart& global = find_part(parts, PartRole::kGlobalScale);
  const StoredPart& input = find_part(parts, PartRole::kInputScale);
  const int64_t num_local = experts.size();
  float a1_scale = 1.0f;
  if (quantize_activations) {
    a1_scale = 0.0f;
    for (int64_t e = 0; e < source.num_experts(); ++e) {
      for (const Projection p : {Projection::kGate, Projection::kUp}) {
        a1_scale = std::max(a1_scale, source.scalar(e, p, input));
      }
    }
    tensors.a1_gscale = Tensor::empty({1}, DType::kF32);
    tensors.a1_gscale.data<float>()[0] = 1.0f / a1_scale;
    tensors.a2_gscale = Tensor::empty({num_local}, DType::kF32);
  }
  tensors.g1_alphas = Tensor::empty({num_local, 2}, DType::kF32);
  tensors.g2_alphas = Tensor::empty({num_local}, DType::kF32);
  for (int64_t l = 0; l < num_local; ++l) {
    const int64_t e = experts[l];
    float* alphas = tensors.g1_alphas.data<float>() + 2 * l;
    alphas[0] = source.alpha(e, Projection::kGate, global, a1_scale);
    alphas[1] = source.alpha(e, Projection::kUp, global, a1_scale);
    float a2_scale = 1.0f;
    if (quantize_activations) {
      a2_scale = source.scalar(e, Projection::kDown, input);
      tensors.a2_gscale.data<float>()[l] = 1.0f / a2_scale;
    }
    tensors.g2_alphas.data<float>()[l] = source.alpha(e, Projection::kDown, global, a2_scale);
  }
}

}  // namespace

QuantConfig stored_quant_config(const WeightScheme& scheme,
                                bool quantize_activations,
                                QuantTensors tensors) {
  const bool acts = quantize_activations && scheme.quantizes_activations;
  // Scales per row are loaded as [L, N, 1], but QuantDesc wants [L, N].
  const auto per_row = [](const Tensor& scale) {
    return scale ? scale.view({scale.dim(0), scale.dim(1)}) : scale;
  };
  QuantConfig quant;
  switch (scheme.format) {
    case WeightFormat::kFloat:
      return QuantConfig::unquantized();
    case WeightFormat::kFp8Block:
      quant = QuantConfig::fp8_w8a8(std::move(tensors), false, false, scheme.block);
      quant.a1.power_of_two_scale = quant.a2.power_of_two_scale = scheme.has_ue8m0_activations;
      break;
    case WeightFormat::kFp8Channel:
    case WeightFormat::kInt8Channel:
      tensors.w1_scale = per_row(tensors.w1_scale);
      tensors.w2_scale = per_row(tensors.w2_scale);
      quant = QuantConfig::make(acts ? quant_format(scheme.format) : std::nullopt, acts, true,
                                std::nullopt, std::move(tensors), quant_format(scheme.format));
      break;
    case WeightFormat::kInt4Group:
      quant = QuantConfig::int4_w4a16(std::move(tensors), GroupShape{0, scheme.block.col});
      break;
    case WeightFormat::kMxfp4:
      quant = QuantConfig::mxfp4_w4a16(std::move(tensors));
      break;
    case WeightFormat::kNvfp4:
      quant = QuantConfig::nvfp4(std::move(tensors));
      break;
  }
  if (scheme.quantizes_activations && !acts) {
    quant.a1 = {};
    quant.a2 = {};
  }
  return quant;
}

std::vector<Piece> w1_pieces(const ExpertSource& source, Range intermediate) {
  const Range cols{0, source.hidden()};
  if (source.config().activation.interleaved) {
    return {{Projection::kGateUp, {2 * intermediate.begin, 2 * intermediate.end}, cols}};
  }
  return {{Projection::kGate, intermediate, cols}, {Projection::kUp, intermediate, cols}};
}

std::vector<Piece> w2_pieces(const ExpertSource& source, Range intermediate) {
  return {{Projection::kDown, {0, source.hidden()}, intermediate}};
}

ExpertWeights load_experts(const ExpertSource& source,
                           const ExpertSlice& slice,
                           bool quantize_activations,
                           bool allows_nonfinite) {
  const WeightScheme& scheme = source.scheme();
  const auto parts = stored_parts(scheme, DType::kBF16);
  // Everything is checked before anything is copied.
  std::vector<CopyJob> jobs;
  const WeightTensors w1 =
      plan_weight(source, w1_pieces(source, slice.intermediate), parts, slice.experts, jobs);
  const WeightTensors w2 =
      plan_weight(source, w2_pieces(source, slice.intermediate), parts, slice.experts, jobs);
  QuantTensors tensors;
  if (scheme.format == WeightFormat::kNvfp4) {
    load_global_scales(source, parts, slice.experts, quantize_activations, tensors);
  }
  FiniteWeights finite(allows_nonfinite, slice.experts);
  parallel_tasks(Stream::cpu(), static_cast<int64_t>(jobs.size()), [&](int64_t i, int) {
    const CopyJob& job = jobs[static_cast<size_t>(i)];
    run(job, canonical_dtype(scheme, job.role, job.from.dtype), finite);
  });

  tensors.w1_scale = w1.scale;
  tensors.w2_scale = w2.scale;
  tensors.w1_zero_point = w1.zero_point;
  tensors.w2_zero_point = w2.zero_point;
  ExpertWeights result;
  result.w1 = w1.weight;
  result.w2 = w2.weight;
  result.quant = stored_quant_config(scheme, quantize_activations, std::move(tensors));
  load_biases(source, slice, finite, result.quant);
  finite.mark(result);
  return result;
}

void load_biases(const ExpertSource& source,
                 const ExpertSlice& slice,
                 FiniteWeights& finite,
                 QuantConfig& quant) {
  if (!source.config().has_expert_bias) {
    return;
  }
  const auto load = [&](const Piece& piece, bool is_zero) {
    const DType stored = source.bias(slice.experts[0], piece.projection).dtype;
    Tensor result = Tensor::zeros({slice.experts.size(), piece.rows.size()}, stored);
    for (int64_t l = 0; l < slice.experts.size() && !is_zero; ++l) {
      const int64_t expert = slice.experts[l];
      finite.copy(source.bias(expert, piece.projection), stored, {0, 1}, piece.rows,
                  result[l].bytes(), result[l].nbytes(), expert);
    }
    return stored == DType::kF16 ? convert(result, DType::kF32) : result;
  };
  quant.w1.bias = load(w1_pieces(source, slice.intermediate).front(), /*is_zero=*/false);
  quant.w2.bias = load(w2_pieces(source, slice.intermediate).front(), !slice.adds_w2_bias);
}

}  // namespace moebius::checkpoint
