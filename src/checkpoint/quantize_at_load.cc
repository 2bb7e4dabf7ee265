// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Quantizes weights while they are loaded.  Each thread works on one expert at a time, so that the
// unquantized layer is never in memory as a whole.  A rank that takes a slice of the intermediate
// dimension gets the codes and scales of the whole expert: groups and blocks are never cut, and
// results do not depend on how experts are spread over ranks.
#include <fmt/format.h>

#include <cstring>

#include "checkpoint/expert_loader.h"
#include "checkpoint/load_schemes.h"
#include "checkpoint/read_ahead.h"
#include "core/parallel.h"
#include "moebius/error.h"
#include "moebius/quantize.h"

namespace moebius::checkpoint {

namespace {

// Whether quantizing a slice gives the same codes and scales as quantizing the whole.
bool slices_stand_alone(const QuantizeSpec& spec) {
  return spec.group.row > 0 && spec.group.col > 0 && spec.format != QuantFormat::kNvfp4;
}

// How many elements of a dimension share a scale, as in_units() takes it.
int64_t unit_of(int64_t group) {
  return group == -1 ? 0 : group;
}

// Copies a block of a matrix to the rows of `to` from `row` on.
void copy_block(const Tensor& from, Range rows, Range cols, const Tensor& to, int64_t row) {
  const int64_t bytes = row_bytes(from.dtype(), cols.size());
  for (int64_t r = rows.begin; r < rows.end; ++r, ++row) {
    std::memcpy(to[row].bytes(), from[r].bytes() + row_bytes(from.dtype(), cols.begin),
                static_cast<size_t>(bytes));
  }
}

// Quantizes w1 or w2 of all local experts.
class WeightQuantizer {
 public:
  // `whole` are the pieces of an expert, `kept` the parts of them that this rank keeps.
  WeightQuantizer(const ExpertSource& source,
                  const std::vector<Piece>& whole,
                  std::vector<Piece> kept,
                  const LoadScheme& scheme,
                  const QuantizeSpec& spec,
                  const ExpertIds& experts,
                  FiniteWeights& finite)
      : source_(source),
        kept_(std::move(kept)),
        scheme_(scheme),
        spec_(spec),
        experts_(experts),
        finite_(finite) {
    dtype_ = source.matrix(experts[0], whole.front().projection, float_part()).dtype;
    expect_quantizable(scheme, spec, rows_of(whole), cols_of(whole), num_pieces());
    check_sources(whole);
    taken_ = slices_stand_alone(spec) ? kept_ : whole;
    cuts_ = rows_of(taken_) != rows_of(kept_) || cols_of(taken_) != cols_of(kept_);
    weight_ = allocate(experts.size(), kept_);
  }

  const QuantizedWeight& weight() const { return weight_; }

  // The memory that a thread works in.
  struct Room {
    Tensor floats;          // [rows, cols] of the taken pieces
    QuantizedWeight codes;  // of one expert, where only a part of it is kept
  };
  Room make_room() const {
    return {Tensor::empty({rows_of(taken_), cols_of(taken_)}, dtype_),
            cuts_ ? allocate(1, taken_) : QuantizedWeight{}};
  }

  // The parts are the local experts.
  ReadAhead read_ahead() const {
    int64_t bytes = 0;  // of an expert, which are alike
    for (const Piece& piece : taken_) {
      bytes += source_.matrix(experts_[0], piece.projection, float_part())
                   .span(piece.rows, piece.cols)
                   .size();
    }
    return {std::vector<int64_t>(static_cast<size_t>(experts_.size()), bytes),
            [this](int64_t local_expert) {
              for (const Piece& piece : taken_) {
                source_.matrix(experts_[local_expert], piece.projection, float_part())
                    .will_read(piece.rows, piece.cols);
              }
            }};
  }

  // REQUIRES: no other thread uses `room`.
  void quantize_expert(int64_t local_expert, const Room& room, const Stream& stream) const {
    int64_t row = 0;
    for (const Piece& piece : taken_) {
      const int64_t expert = experts_[local_expert];
      const StoredMatrix from = source_.matrix(expert, piece.projection, float_part());
      const Tensor to = room.floats.slice(row, row + piece.rows.size());
      finite_.copy(from, dtype_, piece.rows, piece.cols, to.bytes(), row_bytes(dtype_, to.dim(1)),
                   expert);
      row += piece.rows.size();
    }
    if (cuts_) {
      quantize_parts(room.floats, room.codes, 0, stream);
      keep(room.codes, local_expert);
    } else {
      quantize_parts(room.floats, weight_, local_expert, stream);
    }
  }

 private:
  static StoredPart float_part() { return {PartRole::kWeight, {".weight"}, DType::kBF16}; }

  static int64_t cols_of(const std::vector<Piece>& pieces) { return pieces.front().cols.size(); }
  static int64_t rows_of(const std::vector<Piece>& pieces) {
    int64_t rows = 0;
    for (const Piece& piece : pieces) {
      rows += piece.rows.size();
    }
    return rows;
  }
  int64_t num_pieces() const { return static_cast<int64_t>(kept_.size()); }

  QuantizedWeight allocate(int64_t num_experts, const std::vector<Piece>& pieces) const {
    return allocate_weight(scheme_, spec_, {num_experts, rows_of(pieces), cols_of(pieces)},
                           num_pieces());
  }

  // Checks every tensor's dtype and shape, and that no block is cut, before the work starts.
  void check_sources(const std::vector<Piece>& whole) {
    kept_scales_.resize(kept_.size());
    for (const int64_t e : experts_) {
      for (size_t i = 0; i < kept_.size(); ++i) {
        const StoredMatrix from = source_.matrix(e, kept_[i].projection, float_part());
        if (from.dtype != dtype_) {
          throw InvalidArgument(fmt::format("{} has dtype {}, others of its layer have {}",
                                            from.label, name(from.dtype), name(dtype_)));
        }
        const std::string what = fmt::format("{} in {}", from.label, scheme_.name);
        kept_scales_[i] = {
            kept_[i].projection,
            in_units(kept_[i].rows, unit_of(spec_.group.row), whole[i].rows.size(), what),
            in_units(kept_[i].cols, unit_of(spec_.group.col), whole[i].cols.size(), what)};
      }
    }
  }

  static Tensor part_of(const Tensor& t, int64_t i, int64_t num_parts) {
    const int64_t n = t.dim(0) / num_parts;
    return t.slice(i * n, (i + 1) * n);
  }

  // Quantizes `floats`, which is one expert, into expert `expert` of `to`.
  void quantize_parts(const Tensor& floats,
                      const QuantizedWeight& to,
                      int64_t expert,
                      const Stream& stream) const {
    for (int64_t i = 0; i < to.num_parts; ++i) {
      Quantized out;
      out.values = part_of(to.values[expert], i, to.num_parts);
      out.scale = part_of(to.scale[expert], i, to.num_parts);
      if (to.global_scale.defined()) {
        out.global_scale = part_of(to.global_scale[expert], i, to.num_parts);
      }
      quantize(part_of(floats, i, to.num_parts), spec_, out, stream);
    }
  }

  // Copies the kept part of an expert's codes, scales and global scales.
  void keep(const QuantizedWeight& from, int64_t local_expert) const {
    const Tensor values = weight_.values[local_expert];
    const Tensor scale = weight_.scale[local_expert];
    int64_t value_row = 0;
    for (int64_t i = 0; i < num_pieces(); ++i) {
      const Piece& kept = kept_[static_cast<size_t>(i)];
      const Tensor piece = part_of(from.values[0], i, num_pieces());
      copy_block(piece, kept.rows, kept.cols, values, value_row);
      value_row += kept.rows.size();
    }
    for (int64_t i = 0; i < from.num_parts; ++i) {
      const Piece& scales = kept_scales_[static_cast<size_t>(i)];
      const Tensor part = part_of(from.scale[0], i, from.num_parts);
      copy_block(part, scales.rows, scales.cols, scale, i * (scale.dim(0) / from.num_parts));
    }
    if (from.global_scale.defined()) {
      const Tensor to = weight_.global_scale[local_expert];
      std::memcpy(to.bytes(), from.global_scale.bytes(), static_cast<size_t>(to.nbytes()));
    }
  }

  const ExpertSource& source_;
  std::vector<Piece> kept_;
  std::vector<Piece> kept_scales_;  // kept_, counted in scales
  std::vector<Piece> taken_;        // the pieces that are read and quantized: kept_ or the whole
  const LoadScheme& scheme_;
  QuantizeSpec spec_;
  const ExpertIds& experts_;
  FiniteWeights& finite_;
  DType dtype_ = DType::kBF16;
  bool cuts_ = false;  // whether more is taken than is kept
  QuantizedWeight weight_;
};

}  // namespace

ExpertWeights quantize_experts(const ExpertSource& source,
                               const ExpertSlice& slice,
                               const std::string& name,
                               bool allows_nonfinite) {
  const LoadScheme& scheme = find_load_scheme(name);
  if (source.scheme().format.has_value()) {
    throw InvalidArgument(fmt::format(
        "quant is {}, but the weights are quantized already ({}): expected auto or none", name,
        source.scheme().name));
  }
  const Stream stream = Stream::cpu();
  const Range whole{0, source.intermediate()};
  const QuantizeSpec spec = load_weight_spec(scheme, source.hidden(), whole.size(),
                                             source.config().activation.interleaved);
  FiniteWeights finite(allows_nonfinite, slice.experts);
  const WeightQuantizer w1(source, w1_pieces(source, whole), w1_pieces(source, slice.intermediate),
                           scheme, spec, slice.experts, finite);
  const WeightQuantizer w2(source, w2_pieces(source, whole), w2_pieces(source, slice.intermediate),
                           scheme, spec, slice.experts, finite);
  for (const WeightQuantizer* weight : {&w1, &w2}) {
    std::vector<WeightQuantizer::Room> rooms(static_cast<size_t>(stream.num_threads()));
    ReadAhead ahead = weight->read_ahead();
    parallel_tasks(stream, slice.experts.size(), [&](int64_t local_expert, int thread_idx) {
      ahead.begin(local_expert);
      WeightQuantizer::Room& room = rooms[static_cast<size_t>(thread_idx)];
      if (!room.floats) {
        room = weight->make_room();
      }
      weight->quantize_expert(local_expert, room, Stream::cpu(1));
    });
    ahead.finish();
  }

  ExpertWeights result;
  result.w1 = w1.weight().values;
  result.w2 = w2.weight().values;
  result.quant = make_quant_config(scheme, spec, w1.weight(), w2.weight());
  load_biases(source, slice, finite, result.quant);
  finite.mark(result);
  return result;
}

}  // namespace moebius::checkpoint
