// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// PackedWeight: one of the two weights of all local experts, in the order in which the tile kernels
// read it.  An expert's column blocks follow each other, and so do the units of a block: a product
// reads memory in one direction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/numa.h"
#include "experts/cpu/tiles/tile_kernels.h"
#include "moebius/experts.h"
#include "moebius/stream.h"
#include "moebius/support.h"
#include "quant/scale_grid.h"

namespace moebius::cpu {

// Says which weight row is column c of block b.  A block has 32 rows in turn, or 16 gate rows and
// the 16 up rows that belong to them.
struct BlockColumns {
  int64_t num_rows = 0;  // N
  bool gated = false;
  bool interleaved = false;

  int64_t num_blocks() const {
    return gated ? (num_rows / 2 + 15) / 16 : (num_rows + kBlockColumns - 1) / kBlockColumns;
  }
  // The weight row, or -1 for padding.
  int64_t row(int64_t block, int64_t column) const;
};

class PackedWeight {
 public:
  // w [L, N, K] is copied, to where `placement` says.  activation_gscale: see
  // dequantize_weight_rows.
  // REQUIRES: supports(desc, operand).
  PackedWeight(const Tensor& w,
               const QuantDesc& desc,
               const BlockColumns& columns,
               int64_t gate_rows,
               const Tensor& activation_gscale,
               Operand operand,
               const Stream& stream,
               const NumaPlacement& placement = {});

  // Packs other values: w and desc have the shapes, dtypes and scheme that the object was made
  // from. They go where the old ones are.  But if units cannot hold the codes of the new values as
  // they hold the old ones (f32 products only), memory is allocated for what they then hold.
  void repack(const Tensor& w,
              const QuantDesc& desc,
              const Tensor& activation_gscale,
              const Stream& stream);

  // Whether units can hold a weight described by `desc`; one that is not quantized is bf16.  For
  // f32 products they hold any weight: one without a packed form is kept as the f32 values that it
  // stands for.
  static Support supports(const QuantDesc& desc, Operand operand);
  // The columns of a group with a scale of its own; 0: no group is smaller than k.
  static int64_t group_columns(const QuantDesc& desc);

  const BlockColumns& columns() const { return columns_; }
  int64_t num_blocks() const { return columns_.num_blocks(); }
  int64_t steps() const { return steps_; }
  // The number of lines of 64 bytes of its operand's panels.
  int64_t lines() const { return steps_ * step_lines(operand_); }
  // Whether it sets TileGemm::scale_exponents.
  bool has_scale_exponents() const { return scale_exponents_ != nullptr; }
  // The factor that rows must be multiplied with.
  float row_factor() const { return cpu::row_factor(code_, operand_); }

  // Set the weight's part of a product and of what follows it.
  void set(int64_t expert, int64_t block, TileGemm& gemm) const;
  void set(int64_t expert, int64_t block, TileEpilogue& epilogue) const;
  // Names a block as what is read next.
  void set_next(int64_t expert, int64_t block, TileGemm& gemm) const;
  // Fetches the scales of a block, and what else is read beside its units, to L2.
  void fetch_scales(int64_t expert, int64_t block) const;
  // The bytes of all units of a block.
  std::span<const std::byte> codes(int64_t expert, int64_t block) const;

 private:
  using Bytes = std::shared_ptr<std::byte>;
  struct Source;

  const std::byte* units(int64_t expert, int64_t block) const;
  int64_t block_index(int64_t expert, int64_t block) const { return expert * num_blocks() + block; }
  Source source_of(const Tensor& w, const QuantDesc& desc, const Tensor& activation_gscale) const;
  void place(int64_t num_experts) const;
  void pack_all(const Source& source, const Stream& stream);
  void pack_block(const Source& source, int64_t expert, int64_t block);
  void pack_units(int64_t column,
                  QuantFormat format,
                  const std::byte* row,
                  std::byte* units,
                  uint16_t* others) const;
  void pack_scales(const Source& source, int64_t expert, int64_t block);
  void pack_step_scales(const Source& source, int64_t expert, int64_t block);

  BlockColumns columns_;
  int64_t gate_rows_;
  Operand operand_;
  TileCode code_;
  int64_t k_;
  int64_t steps_;
  int64_t group_steps_ = 0;
  int64_t num_groups_ = 0;
  DType scale_dtype_ = DType::kF32;
  NumaPlacement placement_;
  Bytes units_;
  Bytes step_scales_;
  Bytes group_scales_;
  Bytes zero_points_;
  std::unique_ptr<uint16_t[]> others_;                // see TileGemm
  std::unique_ptr<ExponentRange[]> scale_exponents_;  // of blocks, see TileGemm
  std::unique_ptr<float[]> column_scales_;
  std::unique_ptr<float[]> bias_;
};

}  // namespace moebius::cpu
