// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ItemStages: what is done to one item.  Its input rows are packed into panels.  GEMM1 and the
// activation make the rows of GEMM2 from them, which are quantized and packed.  GEMM2 writes the
// output rows.  An element is summed in the same order however an item's column blocks are shared
// out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/scratch.h"
#include "experts/cpu/lora.h"
#include "experts/cpu/tiles/items.h"
#include "experts/cpu/tiles/packed_rows.h"
#include "experts/cpu/tiles/packed_weight.h"
#include "experts/cpu/tiles/tile_tuning.h"
#include "experts/quantized_rows.h"

namespace moebius::cpu {

// How rows of one GEMM become panels.
enum class RowForm : uint8_t {
  kValues,  // values, rounded to bf16 where that is the operand
  kCodes,   // fp8 or int8 codes, exact in any operand, and scales
};

// One of the two GEMMs: how its rows become panels, and what they are multiplied by.
struct ItemGemm {
  bool has_codes() const { return form == RowForm::kCodes; }
  // The dtype of rows in codes.  REQUIRES: the rows are quantized.
  DType code_dtype() const { return storage_dtype(quantizer.spec().format); }
  int64_t scales_per_row() const { return quantizer.num_blocks(k); }
  int64_t panels_bytes(int64_t rows) const { return cpu::panels_bytes(rows, weight.lines()); }

  RowQuantizer quantizer;
  int64_t k;  // columns of its rows
  RowForm form;
  // f32 [1] or [L]: the global scale that multiplies rows of nvfp4 here; undefined: none does.
  Tensor factor;
  PackedWeight weight;
  Lora lora;
};

// The rows of an item that one GEMM multiplies.
struct ItemRows {
  std::byte* panels;
  float* scales;  // [rows, scales_per_row()]
  float* shrunk;  // LoraTile::u
};

class ItemStages;

// Holds what one item needs between its stages.
struct ItemBuffers {
  ItemBuffers(const ItemStages& stages, int64_t rows, Scratch& scratch);

  ItemRows x;        // GEMM1's rows
  ItemRows hidden;   // GEMM2's rows
  std::byte* act;    // act_dtype() [rows, activation_width()], yet to be quantized
  std::byte* codes;  // [rows, I]
  std::byte* row;    // scratch of pack_rows
  // See LoraTile.
  int32_t* adapters;
  int32_t* by_adapter;
};

// Holds what a thread needs while it computes a block.
struct ThreadBuffers {
  ThreadBuffers(const ItemStages& stages, int64_t rows, Scratch& scratch);

  float* c[2];       // C of two blocks in turn
  float* addend[2];  // what adapters add to them
  std::byte* lora;
};

// Holds what the items of a call share.
struct ItemCall {
  Tensor x;               // the rows that panels are made from
  const float* x_scales;  // with codes: [x rows, blocks]
  Tensor rows;            // what GEMM2 writes: [slots, H] or the output
  const float* weights;   // one per row in computing order; null: rows are not weighted
  Tensor lora_ids;        // one per token, or undefined
  const float* a2_scale;  // f32, one per input row; null: GEMM2's rows have scales of their own
  const RowOrder& order;
};

// An item in the hands of a thread.
struct ItemWork {
  const Item& item;
  const ItemCall& call;
  const ItemBuffers& buffers;
  const ThreadBuffers& own;
};

// A column block of an expert's weights, or none.
struct BlockPlace {
  std::span<const std::byte> codes() const {
    return weight != nullptr ? weight->codes(expert, block) : std::span<const std::byte>();
  }

  const PackedWeight* weight = nullptr;
  int64_t expert = 0;
  int64_t block = 0;
};

// How items are computed.
struct ItemMeans {
  const RowQuantizer& a1;
  const RowQuantizer& a2;
  Operand operand;
  const TileKernels& kernels;
  const NumaPlacement& placement;
};

// Any number of threads may call const functions, each with its own ThreadBuffers.
class ItemStages {
 public:
  // desc and weights are not kept.
  ItemStages(const ExpertsDesc& desc,
             const ExpertWeights& weights,
             const ItemMeans& means,
             const Stream& stream);

  // Packs the values of those weights once more that are defined.  They are described as those that
  // this object was made from.
  void repack(const ExpertWeights& weights, const Stream& stream);

  const ItemGemm& gemm1() const { return gemm1_; }
  const ItemGemm& gemm2() const { return gemm2_; }
  const ExpertsDesc& desc() const { return desc_; }
  Operand operand() const { return operand_; }
  // The most rows that an item should have.
  int64_t most_rows() const;

  // Whether GEMM1's results go to panels at once, since nothing else needs them.
  bool activates_panels() const { return !gemm2_.quantizer.active() && !gemm2_.lora.defined(); }
  // The activations per row that GEMM1's blocks give, padding included.
  int64_t activation_width() const;
  // The dtype of activations that have yet to be quantized.  in_dtype holds them, but where the
  // values that codes stand for take their place, only f32 holds those.
  DType act_dtype() const { return gemm2_.has_codes() ? desc_.in_dtype : DType::kF32; }

  // The stages, in their order.  GEMMs compute column blocks [begin, end); `after` says where this
  // thread most likely goes on.
  void pack_input(const ItemWork& work) const;
  void run_gemm1(const ItemWork& work, int64_t begin, int64_t end, const BlockPlace& after) const;
  // Quantizes the activations of whole rows and packs them into panels, as codes or as the values
  // that codes stand for.
  void quantize_hidden(const ItemWork& work) const;
  void run_gemm2(const ItemWork& work, int64_t begin, int64_t end, const BlockPlace& after) const;

  // The next two are what is before and after the quantization in quantize_hidden().
  // Returns the activations as rows that follow each other.  REQUIRES: !activates_panels().
  Tensor packed_activations(const ItemWork& work) const;
  // Packs the item's rows as GEMM2 takes them.
  void pack_hidden(const ItemWork& work, const Tensor& rows) const;
  // Puts the adapters of the item's rows into its buffers.  pack_input() does so, too.
  void sort_adapters(const ItemWork& work) const;

 private:
  // Names what is read after the block at hand.
  struct ReadLater {
    int64_t begin;  // blocks [begin, end) are multiplied in a row
    int64_t end;
    BlockPlace after;  // read after them, most likely
    bool is_small;     // `after` is small enough to be fetched beside the last of them alone
    std::span<const std::byte> beside_last;  // what is fetched beside the last few
  };

  void pack(const ItemWork& work,
            const ItemGemm& gemm,
            const ItemRows& to,
            const std::byte* const* from,
            DType dtype) const;
  const float* addend(const ItemWork& work,
                      const ItemGemm& gemm,
                      const ItemRows& rows,
                      int64_t block) const;
  // Returns the exponents of the rows of an item's GEMM, or any where the kernels need none.
  ExponentRange exponents(const ItemWork& work, const ItemGemm& gemm, const ItemRows& rows) const;
  void multiply(const ItemWork& work,
                const ItemGemm& gemm,
                const ItemRows& rows,
                const ExponentRange& exponents,
                int64_t block,
                const ReadLater& later,
                TileEpilogue& epilogue,
                TileRest& rest) const;

  ExpertsDesc desc_;
  const TileKernels& kernels_;
  Operand operand_;
  TileTuning tuning_;
  ItemGemm gemm1_;
  ItemGemm gemm2_;
};

}  // namespace moebius::cpu
