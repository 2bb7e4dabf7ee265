// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ExpertsBase: what the implementations share, which is the answers of the interface and, for those
// on the host, the row order of a call.
#pragma once

#include <string_view>
#include <utility>

#include "core/scratch.h"
#include "experts/permute.h"
#include "experts/quantized_rows.h"
#include "experts/weight_memory.h"
#include "moebius/experts.h"

namespace moebius {

// The bytes of scratch that Part(args..., scratch) takes.
template <typename Part, typename... Args>
int64_t bytes_of(const Args&... args) {
  Scratch scratch;
  Part(args..., scratch);
  return scratch.bytes();
}

// What an implementation is, apart from what it was made for.
struct ExpertsKind {
  std::string_view name;
  WeightAndReduceKind standard_rows;  // what is left to do with rows in the standard format
  // Returns the weights where the implementation reads them.
  ExpertWeights (*place)(ExpertWeights weights, const ExpertsDesc& desc, const Stream& stream);
};

class ExpertsBase : public Experts {
 public:
  ExpertsBase(const ExpertsDesc& desc,
              ExpertWeights weights,
              const Stream& stream,
              const ExpertsKind& kind);

  const ExpertsDesc& desc() const override { return desc_; }
  const QuantConfig& quant() const override { return weights_.quant; }

  // The output has rows of the batched format, or of slots, or (kNoOp) of tokens.
  ExpertsWorkspace workspace(int64_t rows) const final;
  // Checks the call, then leaves it to run().
  void apply(const ExpertsInput& input,
             const Tensor& output,
             const Tensor& intermediate,
             const Tensor& scratch,
             const Stream& stream) const final;
  // Checks the update, replaces the values of weights_, and leaves the rest to repack().
  void update_weights(const ExpertWeights& weights, const Stream& stream) final;
  void expect_update(const ExpertWeights& weights) const final;

 protected:
  // Throws Unsupported where the implementation cannot hold these values, which fit otherwise.
  virtual void expect_holds(const ExpertWeights& /*weights*/) const {}
  // Packs the weights that are given once more, if the implementation computes on packed ones.
  virtual void repack(const ExpertWeights& /*weights*/, const Stream& /*stream*/) {}

  virtual int64_t scratch_bytes(int64_t rows) const = 0;
  // Does what apply() promises, for a call that is valid.  `scratch` has scratch_bytes().
  virtual void run(const ExpertsInput& input,
                   const Tensor& output,
                   Scratch scratch,
                   const Stream& stream) const = 0;

  bool is_batched() const { return desc_.format == ActivationFormat::kBatched; }
  // [rows, K, width] or [L, rows, width].
  Shape slots_shape(int64_t rows, int64_t width) const;
  int64_t num_slots(int64_t rows) const { return slots_shape(rows, 1).numel(); }
  // M, or max_rows in the batched format.
  int64_t num_rows(const ExpertsInput& input) const { return input.x.dim(is_batched() ? 1 : 0); }
  // 2 if w1 has gate and up, each with its own half of an adapter's A; else 1.
  int lora_halves() const { return desc_.activation.gated ? 2 : 1; }
  // The number of rows of GEMM1's operand (see InputRows).
  int64_t num_input_rows(const RowQuantizer& quantizer, int64_t rows) const {
    return is_batched() || InputRows(quantizer, desc_.format).gathered ? num_slots(rows) : rows;
  }
  // The arrays of a RowOrder for `slots` output rows.
  RowOrder take_order(Scratch& scratch, int64_t slots) const;
  // Fills an order for a call.
  void fill_order(const ExpertsInput& input, RowOrder& order) const;
  // Clears the rows of skipped selections; output is [slots, H] (batched: nothing is skipped).
  void clear_skipped(const RowOrder& order, const Tensor& output, const Stream& stream) const;
  // `stream`, or the stream of make_experts where that has fewer threads, since scratch has buffers
  // for as many only.
  const Stream& bounded(const Stream& stream) const {
    return stream.num_threads() <= stream_.num_threads() ? stream : stream_;
  }
  int64_t max_threads() const { return stream_.num_threads(); }

  ExpertsDesc desc_;
  GivenWeights given_;
  ExpertWeights weights_;
  RowQuantizer quantize_a1_;
  RowQuantizer quantize_a2_;

 private:
  Stream stream_;
};

}  // namespace moebius
