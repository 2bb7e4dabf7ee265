// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Unquantized weights quantized while they are loaded: one expert at a time per thread, so that the
// unquantized layer is never in memory as a whole.
#include <fmt/format.h>

#include <cstring>

#include "checkpoint/expert_loader.h"
#include "checkpoint/load_schemes.h"
#include "core/parallel.h"
#include "moebius/error.h"
#include "moebius/quantize.h"

namespace moebius::checkpoint {

namespace {

// w1 or w2 of all local experts.
class WeightQuantizer {
 public:
  WeightQuantizer(const ExpertSource& source,
                  std::vector<Piece> pieces,
                  const LoadScheme& scheme,
                  const QuantizeSpec& spec,
                  Range experts)
      : source_(source), pieces_(std::move(pieces)), spec_(spec), experts_(experts) {
    cols_ = pieces_.front().cols.size();
    for (const Piece& piece : pieces_) {
      rows_ += piece.rows.size();
    }
    weight_ = allocate_weight(scheme, spec, experts.size(), rows_, cols_,
                              static_cast<int64_t>(pieces_.size()));
    dtype_ = source.matrix(experts.begin, pieces_.front().projection, float_part()).dtype;
    check_sources();
  }

  const QuantizedWeight& weight() const { return weight_; }
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
      const int64_t n = t.dim(0) / weight_.num_parts;
      return t.slice(i * n, (i + 1) * n);
    };
    for (int64_t i = 0; i < weight_.num_parts; ++i) {
      Quantized out;
      out.values = part(weight_.values[local_expert], i);
      out.scale = part(weight_.scale[local_expert], i);
      if (weight_.global_scale.defined()) {
        out.global_scale = part(weight_.global_scale[local_expert], i);
      }
      quantize(part(buffer, i), spec_, out, stream);
    }
  }

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
  QuantizedWeight weight_;
};

}  // namespace

ExpertWeights quantize_experts(const ExpertSource& source,
                               const ModelConfig& config,
                               const ExpertSlice& slice,
                               const std::string& name,
                               const Stream& stream) {
  const LoadScheme& scheme = find_load_scheme(name);
  if (source.scheme().format != WeightFormat::kFloat) {
    throw InvalidArgument(fmt::format(
        "quant is {}, but the weights are quantized already ({}): expected auto or none", name,
        source.scheme().name));
  }
  const bool is_interleaved = config.activation.interleaved;
  const QuantizeSpec spec =
      load_weight_spec(scheme, source.hidden(), slice.intermediate.size(), is_interleaved);
  const WeightQuantizer w1(source, w1_pieces(source, is_interleaved, slice.intermediate), scheme,
                           spec, slice.experts);
  const WeightQuantizer w2(source, w2_pieces(source, slice.intermediate), scheme, spec,
                           slice.experts);
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

  ExpertWeights result;
  result.w1 = w1.weight().values;
  result.w2 = w2.weight().values;
  result.quant = make_quant_config(scheme, spec, w1.weight(), w2.weight());
  load_biases(source, config, slice, result.quant);
  return result;
}

}  // namespace moebius::checkpoint
