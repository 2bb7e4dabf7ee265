// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/expert_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "checkpoint/part_copy.h"
#include "checkpoint/read_ahead.h"
#include "checkpoint/stored_quant.h"
#include "core/parallel.h"
#include "moebius/error.h"
#include "quant/groups.h"

namespace moebius::checkpoint {

namespace {

// The tensors of one weight, w1 or w2.
struct WeightTensors {
  Tensor weight;
  Tensor scale;
  Tensor zero_point;
};

DType loaded_dtype(const WeightScheme& scheme, PartRole role, DType stored) {
  if (role == PartRole::kZeroPoint) {
    return DType::kU8;
  }
  const bool is_float_scale = role == PartRole::kScale && scheme.format &&
                              quant::scale_dtype(*scheme.format) == DType::kF32;
  if (role == PartRole::kScale && !is_float_scale) {
    return quant::scale_dtype(*scheme.format);
  }
  if (is_float_scale) {
    return is_float(stored) ? stored : DType::kF32;
  }
  return scheme.format ? storage_dtype(*scheme.format) : stored;
}

// Where each column of scales is stored, unless each is in its own place.
std::shared_ptr<const std::vector<int64_t>> group_order(const ExpertSource& source,
                                                        int64_t expert,
                                                        Projection projection) {
  const StoredPart* part = source.part(PartRole::kGroupIndex);
  if (part == nullptr || !source.has(expert, projection, *part)) {
    return nullptr;
  }
  std::vector<int64_t> order = source.group_order(expert, projection, *part);
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i] != static_cast<int64_t>(i)) {
      return std::make_shared<const std::vector<int64_t>>(std::move(order));
    }
  }
  return nullptr;
}

// The copy of a part of one piece of an expert, without its place.  Throws what ExpertSource does.
PartCopy describe_copy(const ExpertSource& source,
                       const Piece& piece,
                       const StoredPart& part,
                       int64_t expert) {
  const WeightScheme& scheme = source.scheme();
  PartCopy copy;
  copy.from = source.matrix(expert, piece.projection, part);
  copy.role = part.role;
  copy.unpack = part.unpack;
  copy.expert = expert;
  copy.dtype = loaded_dtype(scheme, part.role, copy.from.dtype);
  copy.zero_point_bits = scheme.format == QuantFormat::kInt8 ? 8 : 4;
  copy.zero_point_offset = scheme.zero_point_offset;
  const std::string& what = copy.from.label;
  const bool has_own_rows = part.role == PartRole::kZeroPoint && part.unpack != Unpack::kFlipSigns;
  copy.rows = has_own_rows
                  ? piece.rows
                  : in_units(piece.rows, part.row_unit, source.rows(piece.projection), what);
  copy.cols = in_units(piece.cols, part.col_unit, source.cols(piece.projection), what);
  if (part.unpack == Unpack::kAwqWords) {
    expect_multiple_of(piece.rows.size(), part.row_unit, what + ": rows");
  }
  const bool is_spread = part.role == PartRole::kScale && part.row_unit == 0;
  copy.num_rows =
      is_spread || part.unpack == Unpack::kAwqWords ? piece.rows.size() : copy.rows.size();
  return copy;
}

// Checks every tensor of the part, allocates their destination and appends the copies that fill it.
Tensor plan(const ExpertSource& source,
            const std::vector<Piece>& pieces,
            const StoredPart& part,
            const ExpertIds& experts,
            std::vector<PartCopy>& copies) {
  const bool is_weight = part.role == PartRole::kWeight;
  const size_t first_copy = copies.size();
  int64_t num_rows = 0;  // of one expert
  for (const int64_t e : experts) {
    num_rows = 0;
    for (const Piece& piece : pieces) {
      copies.push_back(describe_copy(source, piece, part, e));
      num_rows += copies.back().num_rows;
      const PartCopy& first = copies[first_copy];
      const StoredMatrix& from = copies.back().from;
      if (first.from.dtype != from.dtype) {
        throw InvalidArgument(fmt::format("{} has dtype {}, but {} has {}", from.label,
                                          name(from.dtype), first.from.label,
                                          name(first.from.dtype)));
      }
      if (!is_weight) {
        copies.back().order = group_order(source, e, piece.projection);
      }
    }
  }
  const PartCopy& first = copies[first_copy];
  const DType dtype = first.dtype;
  const int64_t num_cols = is_weight ? pieces.front().cols.size() : first.cols.size();
  if (num_cols % pack_factor(dtype) != 0) {
    throw InvalidArgument(fmt::format("{} has {} columns here, expected a multiple of {}",
                                      first.from.label, num_cols, pack_factor(dtype)));
  }
  // A row of packed weights may end amid a word, whose padding would not fit the row.
  const int64_t stored_bytes = part.unpack == Unpack::kAwqWords
                                   ? row_bytes(dtype, num_cols)
                                   : first.cols.size() * bits(first.from.dtype) / 8;
  if (is_weight && stored_bytes != row_bytes(dtype, num_cols)) {
    throw Unsupported(
        fmt::format("{} has {} bytes in a row here, supported: the {} of its {} columns",
                    first.from.label, stored_bytes, row_bytes(dtype, num_cols), num_cols));
  }
  Tensor result = Tensor::empty({experts.size(), num_rows, num_cols}, dtype);
  std::byte* to = result.bytes();
  for (size_t i = first_copy; i < copies.size(); ++i) {
    copies[i].to = to;
    copies[i].stride = row_bytes(dtype, num_cols);
    to += copies[i].num_rows * copies[i].stride;
  }
  return result;
}

WeightTensors plan_weight(const ExpertSource& source,
                          const std::vector<Piece>& pieces,
                          const ExpertIds& experts,
                          std::vector<PartCopy>& copies) {
  WeightTensors result;
  for (const StoredPart& part : source.parts()) {
    if (part.role == PartRole::kWeightShape) {
      for (const int64_t e : experts) {
        for (const Piece& piece : pieces) {
          source.check_weight_shape(e, piece.projection, part);
        }
      }
    } else if (part.role == PartRole::kZeroPoint && !source.scheme().has_zero_points) {
      // None are loaded, but those that the file has must be what the symmetric scheme makes them.
      for (const int64_t e : experts) {
        for (const Piece& piece : pieces) {
          if (source.has(e, piece.projection, part)) {
            copies.push_back(describe_copy(source, piece, part, e));
          }
        }
      }
    } else if (part.is_matrix()) {
      Tensor& target = part.role == PartRole::kWeight  ? result.weight
                       : part.role == PartRole::kScale ? result.scale
                                                       : result.zero_point;
      target = plan(source, pieces, part, experts, copies);
    }
  }
  return result;
}

}  // namespace

std::vector<Piece> w1_pieces(const ExpertSource& source, Range intermediate) {
  const Range cols{0, source.hidden()};
  if (source.config().activation.interleaved) {
    return {{Projection::kGateUp, {2 * intermediate.begin, 2 * intermediate.end}, cols}};
  }
  if (!source.config().activation.gated) {
    return {{Projection::kUp, intermediate, cols}};
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
  // Everything is checked before anything is copied.
  std::vector<PartCopy> copies;
  const WeightTensors w1 =
      plan_weight(source, w1_pieces(source, slice.intermediate), slice.experts, copies);
  const WeightTensors w2 =
      plan_weight(source, w2_pieces(source, slice.intermediate), slice.experts, copies);
  QuantTensors tensors;
  load_static_scales(source, slice.experts, quantize_activations, tensors);
  FiniteWeights finite(allows_nonfinite, slice.experts);
  std::vector<int64_t> bytes;
  for (const PartCopy& copy : copies) {
    const auto [rows, cols] = copy.stored_range();
    bytes.push_back(copy.from.span(rows, cols).size());
  }
  ReadAhead ahead(std::move(bytes), [&](int64_t i) {
    const PartCopy& copy = copies[static_cast<size_t>(i)];
    const auto [rows, cols] = copy.stored_range();
    copy.from.will_read(rows, cols);
  });
  parallel_tasks(Stream::cpu(), static_cast<int64_t>(copies.size()), [&](int64_t i, int) {
    ahead.begin(i);
    copies[static_cast<size_t>(i)].run(finite);
  });
  ahead.finish();

  tensors.w1_scale = w1.scale;
  tensors.w2_scale = w2.scale;
  tensors.w1_zero_point = w1.zero_point;
  tensors.w2_zero_point = w2.zero_point;
  ExpertWeights result;
  result.w1 = w1.weight;
  result.w2 = w2.weight;
  result.quant = stored_quant_config(source.scheme(), quantize_activations, std::move(tensors));
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
      const StoredMatrix bias = source.bias(expert, piece.projection);
      bias.will_read({0, 1}, piece.rows);
      finite.copy(bias, stored, {0, 1}, piece.rows, result[l].bytes(), result[l].nbytes(), expert);
    }
    return stored == DType::kF16 ? convert(result, DType::kF32) : result;
  };
  quant.w1.bias = load(w1_pieces(source, slice.intermediate).front(), /*is_zero=*/false);
  quant.w2.bias = load(w2_pieces(source, slice.intermediate).front(), !slice.adds_w2_bias);
}

}  // namespace moebius::checkpoint
