// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Work is cut into items: some rows of one expert, few enough that their panels stay in L2 while
// the expert's weights stream past them.  An item is one task from gather to output, in buffers of
// its thread, or its GEMMs are split over column blocks (item_tasks.h).  An element is summed in
// the same order either way.
//
// Standard format: GEMM2 leaves its rows weighted, and what is left is their plain sum per token.
// Where GEMM2's rows take a scale from all rows of the call, all items end with their activations,
// then all begin again.
//
// Longer than 500 lines: both formats and all kinds of items go through one class.
#include "experts/cpu/tiles/tile_experts.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "core/parallel.h"
#include "experts/cpu/kernels.h"
#include "experts/cpu/lora.h"
#include "experts/cpu/tiles/item_tasks.h"
#include "experts/cpu/tiles/items.h"
#include "experts/cpu/tiles/packed_rows.h"
#include "experts/cpu/tiles/packed_weight.h"
#include "experts/cpu/tiles/read_ahead.h"
#include "experts/cpu/tiles/weighted_rows.h"
#include "experts/experts_base.h"
#include "experts/int8_depth.h"
#include "experts/validate.h"
#include "quant/groups.h"

namespace moebius::cpu {

namespace {

// Panels of GEMM1 that leave room in a 2 MiB L2 for what streams past.
constexpr int64_t kPanelBudget = int64_t{5} << 18;
constexpr int64_t kMostItemRows = 640;
// Outputs from this size on would only push weights and panels out of the caches.
constexpr int64_t kStreamedBytes = int64_t{16} << 20;

// C of some rows and one column block.
int64_t block_floats(int64_t rows) {
  return num_panels(rows) * kPanelFloats;
}

// How rows of one GEMM become panels.
enum class RowForm : uint8_t {
  kValues,  // values, rounded to bf16 where that is the operand
  kCodes,   // fp8 or int8 codes, exact in any operand, and scales
};

// Codes have one scale per row, or one per group of a weight that has the same groups.
RowForm row_form(const RowQuantizer& a, const QuantDesc& w, Operand operand) {
  if (operand == Operand::kI8) {
    return RowForm::kCodes;
  }
  if (!a.active() || !takes_codes(a.spec().format)) {
    return RowForm::kValues;
  }
  const int64_t group = a.spec().group.col;
  const bool has_groups_of_weight =
      a.spec().format == w.format && !w.zero_point && group == PackedWeight::group_columns(w);
  return group <= 0 || has_groups_of_weight ? RowForm::kCodes : RowForm::kValues;
}

// nvfp4 values become bf16 as code times block scale, which it holds exactly; the global scale is
// left to the weights' alphas, which were divided by it.  Undefined where that is not so.
Tensor exact_factor(const QuantDesc& a, const QuantDesc& w, Operand operand) {
  const bool both = a.format == QuantFormat::kNvfp4 && w.format == QuantFormat::kNvfp4;
  return both && operand == Operand::kBF16 ? a.alpha_or_gscale : Tensor();
}

float factor_of(const Tensor& factor, int64_t expert) {
  return factor ? factor.data<float>()[factor.numel() > 1 ? expert : 0] : 1.0f;
}

class TileExperts final : public ExpertsBase {
 public:
  TileExperts(const ExpertsDesc& desc,
              ExpertWeights weights,
              const Stream& stream,
              std::string_view implementation,
              const TileKernels& kernels)
      : ExpertsBase(desc, std::move(weights), stream, implementation),
        kernels_(kernels),
        operand_(multiplies_integers(desc_, weights_.quant) ? Operand::kI8 : kernels.operand),
        form1_(row_form(quantize_a1_, weights_.quant.w1, operand_)),
        form2_(row_form(quantize_a2_, weights_.quant.w2, operand_)),
        quantizes_all_rows_(quant::scales_over_rows(weights_.quant.a2)),
        factor1_(exact_factor(weights_.quant.a1, weights_.quant.w1, operand_)),
        factor2_(exact_factor(weights_.quant.a2, weights_.quant.w2, operand_)),
        w1_(weights_.w1,
            weights_.quant.w1,
            {desc_.w1_rows(), desc_.activation.gated, desc_.activation.interleaved},
            gate_rows(desc_),
            factor1_ ? Tensor() : weights_.quant.a1.alpha_or_gscale,
            operand_,
            stream),
        w2_(weights_.w2,
            weights_.quant.w2,
            {desc_.hidden, false, false},
            desc_.hidden,
            factor2_ ? Tensor() : weights_.quant.a2.alpha_or_gscale,
            operand_,
            stream),
        lora1_(weights_.lora.w1_a, weights_.lora.w1_b, weights_.lora.scaling),
        lora2_(weights_.lora.w2_a, weights_.lora.w2_b, weights_.lora.scaling) {
    // The packed copies are all that is kept.
    for (Tensor* tensor : {&weights_.w1, &weights_.w2}) {
      *tensor = {};
    }
    for (QuantDesc* desc_of : {&weights_.quant.w1, &weights_.quant.w2}) {
      desc_of->scale = desc_of->zero_point = desc_of->bias = {};
    }
    const int64_t fitting = kPanelBudget / (w1_.lines() * kTileRowBytes) / kPanelRows * kPanelRows;
    most_rows_ = std::clamp(fitting, kLeastItemRows, kMostItemRows);
  }

  WeightAndReduceKind weight_and_reduce() const override {
    return is_batched() ? WeightAndReduceKind::kDelegate : WeightAndReduceKind::kNoOp;
  }

  ExpertsWorkspace workspace(int64_t rows) const override {
    Scratch scratch;
    Buffers(*this, rows, scratch);
    const Shape output = is_batched() ? slots_shape(rows, desc_.hidden) : Shape{rows, desc_.hidden};
    return {{0}, output, desc_.in_dtype, scratch.bytes()};
  }

  void apply(const ExpertsInput& input,
             const Tensor& output,
             const Tensor& intermediate,
             const Tensor& scratch,
             const Stream& stream) const override {
    validate_call(*this, input, output, intermediate, scratch, stream);
    Scratch block(scratch.bytes());
    Buffers buffers(*this, input.x.dim(is_batched() ? 1 : 0), block);
    const Stream& threads = bounded(stream);
    fill_order(input, buffers.order);
    const Tensor& rows = sums_rows() ? buffers.weighted : output;
    if (!sums_rows()) {
      clear_skipped(buffers.order, output, threads);
    }
    if (buffers.order.num_rows > 0) {
      compute_rows(input, buffers, rows, threads);
    }
    if (sums_rows()) {
      sum_weighted_rows(input, rows, output, threads);
    }
  }

 private:
  bool sums_rows() const { return !is_batched() && desc_.topk > 1; }

  // What one item needs between its stages.
  struct Arena {
    Arena(const TileExperts& self, int64_t rows, Scratch& scratch) {
      const ExpertsDesc& d = self.desc_;
      const bool has_codes = self.form2_ == RowForm::kCodes;
      x = scratch.take<std::byte>(panels_bytes(rows, self.w1_.lines()));
      x_scales = scratch.take<float>(rows * self.quantize_a1_.num_blocks(d.hidden));
      hidden = scratch.take<std::byte>(panels_bytes(rows, self.w2_.lines()));
      const int64_t values = self.activates_panels() ? 0 : rows * self.activation_width();
      act = scratch.take<std::byte>(row_bytes(self.act_dtype(), values));
      codes = scratch.take<std::byte>(has_codes ? rows * d.intermediate : 0);
      hidden_scales =
          scratch.take<float>(has_codes ? rows * self.quantize_a2_.num_blocks(d.intermediate) : 0);
      row =
          scratch.take<std::byte>(std::max(d.hidden, d.intermediate) * value_bytes(self.operand_));
      const int64_t lora_rows = d.num_adapters > 0 ? rows : 0;
      adapters = scratch.take<int32_t>(lora_rows);
      by_adapter = scratch.take<int32_t>(lora_rows);
      shrunk1 = scratch.take<float>(rows * self.lora1_.num_columns());
      shrunk2 = scratch.take<float>(rows * self.lora2_.num_columns());
    }

    LoraTile lora_tile(const Item& item, float* shrunk) const {
      return {item.e, item.rows(), adapters, by_adapter, shrunk};
    }

    std::byte* x;          // panels of GEMM1
    float* x_scales;       // [rows, blocks]
    std::byte* hidden;     // panels of GEMM2
    std::byte* act;        // act_dtype() [rows, activation_width()], yet to be quantized
    std::byte* codes;      // [rows, I]
    float* hidden_scales;  // [rows, blocks]
    std::byte* row;        // scratch of pack_rows
    // See LoraTile.
    int32_t* adapters;
    int32_t* by_adapter;
    float* shrunk1;
    float* shrunk2;
  };

  // What a thread needs for a block.
  struct ThreadBuffers {
    ThreadBuffers(const TileExperts& self, int64_t rows, Scratch& scratch) {
      const int64_t lora_rows = self.desc_.num_adapters > 0 ? rows : 0;
      for (int64_t i = 0; i < 2; ++i) {
        c[i] = scratch.take<float>(block_floats(rows));
        addend[i] = scratch.take<float>(lora_rows * kBlockColumns);
      }
      lora = scratch.take<std::byte>(
          std::max(self.lora1_.scratch_bytes(), self.lora2_.scratch_bytes()));
    }

    float* c[2];       // of two blocks in turn
    float* addend[2];  // what adapters add to them
    std::byte* lora;
  };

  struct Buffers {
    Buffers(const TileExperts& self, int64_t rows, Scratch& scratch) {
      const ExpertsDesc& d = self.desc_;
      const int64_t slots = self.num_slots(rows);
      const bool codes = self.form1_ == RowForm::kCodes;
      const bool values = !codes && self.quantize_a1_.active();
      const int64_t x_rows = codes || values ? self.num_input_rows(self.quantize_a1_, rows) : 0;
      order = self.take_order(scratch, slots);
      const int64_t most_items = max_items(d.num_local_experts, slots);
      items = scratch.take<Item>(most_items);
      weights = self.is_batched() ? nullptr : scratch.take<float>(slots);
      weighted = scratch.take({self.sums_rows() ? slots : 0, d.hidden}, d.in_dtype);
      x = scratch.take({x_rows, d.hidden},
                       codes ? storage_dtype(self.quantize_a1_.spec().format) : DType::kF32);
      x_scales = scratch.take<float>(x_rows * self.quantize_a1_.num_blocks(d.hidden));
      // One per thread where there are whole items, and one per split item.
      const int64_t threads = self.max_threads();
      arena_rows = std::min(self.most_rows_, std::max<int64_t>(1, slots));
      num_arenas =
          self.quantizes_all_rows_ ? threads : std::min(most_items, kItemsPerThread * threads);
      progress = scratch.take<SplitProgress>(num_arenas);
      arena_bytes = self.bytes_of<Arena>(arena_rows);
      arenas = scratch.take<std::byte>(num_arenas * arena_bytes);
      thread_bytes = self.bytes_of<ThreadBuffers>(arena_rows);
      threads_begin = scratch.take<std::byte>(threads * thread_bytes);
      const int64_t act_rows = self.quantizes_all_rows_ ? slots : 0;
      act = scratch.take({act_rows, d.intermediate}, self.act_dtype());
      const bool has_codes = self.form2_ == RowForm::kCodes;
      hidden =
          scratch.take({has_codes ? act_rows : 0, d.intermediate},
                       has_codes ? storage_dtype(self.quantize_a2_.spec().format) : DType::kF32);
      hidden_scales = scratch.take<float>(
          has_codes ? act_rows * self.quantize_a2_.num_blocks(d.intermediate) : 0);
    }

    Arena arena(const TileExperts& self, int64_t i) const {
      Scratch scratch(arenas + i * arena_bytes);
      return {self, arena_rows, scratch};
    }
    ThreadBuffers thread(const TileExperts& self, int64_t i) const {
      Scratch scratch(threads_begin + i * thread_bytes);
      return {self, arena_rows, scratch};
    }

    RowOrder order;
    Item* items;
    float* weights;           // of the rows in computing order; null: not weighted
    Tensor weighted;          // [slots, H] where they are summed
    Tensor x;                 // codes, or values f32, of a quantized input
    float* x_scales;          // with codes: [x rows, blocks]
    SplitProgress* progress;  // of split items
    int64_t arena_rows;
    int64_t num_arenas;
    int64_t arena_bytes;
    std::byte* arenas;
    int64_t thread_bytes;
    std::byte* threads_begin;
    // Where scales cover all rows: activations, and what they are quantized to, in computing order.
    Tensor act;
    Tensor hidden;
    float* hidden_scales;
  };

  // What all tasks of a call share.
  struct Call {
    Tensor x;         // as panels are made from it
    Tensor rows;      // [slots, H] or the output, as GEMM2 leaves them
    Tensor lora_ids;  // of the tokens, or undefined
    const Buffers& buffers;
    std::atomic<bool> failed = false;
  };

  template <typename Part>
  int64_t bytes_of(int64_t rows) const {
    Scratch scratch;
    Part(*this, rows, scratch);
    return scratch.bytes();
  }

  // Whether GEMM1's results go to panels at once: nobody else needs them.
  bool activates_panels() const { return !quantize_a2_.active() && !lora2_.defined(); }

  // Activations per row that GEMM1's blocks give, padding included.
  int64_t activation_width() const {
    return w1_.num_blocks() * (desc_.activation.gated ? 16 : kBlockColumns);
  }
  // Of activations that are yet to be quantized: in_dtype holds them, but values that codes stand
  // for, which take their place, only f32 does.
  DType act_dtype() const { return form2_ == RowForm::kValues ? DType::kF32 : desc_.in_dtype; }

  // rows [slots, H], those of skipped selections excepted.
  void compute_rows(const ExpertsInput& input,
                    Buffers& buffers,
                    const Tensor& rows,
                    const Stream& stream) const {
    Call call{load_input(input, buffers, stream), rows, input.lora_ids, buffers};
    if (!is_batched()) {
      fill_row_weights(input, buffers.order, buffers.weights, stream);
    }
    const int64_t num_items = cut_items(buffers.order, desc_.num_local_experts, buffers.arena_rows,
                                        kItemsPerThread * stream.num_threads(), buffers.items);
    if (quantizes_all_rows_) {
      return compute_in_two_passes(num_items, call, stream);
    }
    static_assert(std::is_trivially_destructible_v<SplitProgress>);  // nobody destroys it
    const ItemTasks tasks(num_items, stream.num_threads(), w1_.num_blocks(), w2_.num_blocks());
    for (int64_t i = 0; i < tasks.num_split(); ++i) {
      std::construct_at(buffers.progress + i, tasks.num_parts1());
    }
    const int64_t first_split_arena = tasks.num_whole() > 0 ? stream.num_threads() : 0;
    parallel_tasks(stream, tasks.size(), [&](int64_t i, int thread) {
      const ItemTask task = tasks[i];
      const bool is_whole = task.stage == ItemStage::kWhole;
      const Arena arena = buffers.arena(*this, is_whole ? thread : first_split_arena + task.split);
      try {
        if (is_whole) {
          const int64_t later = i + stream.num_threads();  // most likely this thread's next
          const Item* next =
              later < tasks.num_whole() ? &buffers.items[tasks[later].item] : nullptr;
          run_item(buffers.items[task.item], next, call, arena, buffers.thread(*this, thread));
        } else {
          run_part(task, call, arena, buffers.thread(*this, thread));
        }
      } catch (...) {
        call.failed = true;
        throw;
      }
    });
  }

  // All items up to their activations, which are then quantized together; then the rest of all.  No
  // item is split.
  void compute_in_two_passes(int64_t num_items, const Call& call, const Stream& stream) const {
    const Buffers& buffers = call.buffers;
    const int64_t bytes = row_bytes(act_dtype(), desc_.intermediate);
    parallel_tasks(stream, num_items, [&](int64_t i, int thread) {
      const Item& item = buffers.items[i];
      const Arena arena = buffers.arena(*this, thread);
      pack_input(item, call, arena, buffers.thread(*this, thread));
      run_gemm1(item, 0, w1_.num_blocks(), call, arena, buffers.thread(*this, thread));
      const Tensor act = packed_activations(item, arena);
      std::memcpy(buffers.act.bytes() + item.begin * bytes, act.raw(),
                  static_cast<size_t>(act.nbytes()));
    });
    const CallRows quantized = {desc_, buffers.order, quantize_a2_, stream};
    if (form2_ == RowForm::kCodes) {
      quantized.hidden_codes(buffers.act, buffers.hidden, buffers.hidden_scales);
    } else {
      quantized.hidden_values(buffers.act);
    }
    const Tensor& rows = form2_ == RowForm::kCodes ? buffers.hidden : buffers.act;
    const int64_t num_scales = quantize_a2_.num_blocks(desc_.intermediate);
    parallel_tasks(stream, num_items, [&](int64_t i, int thread) {
      const Item& item = buffers.items[i];
      const Arena arena = buffers.arena(*this, thread);
      if (form2_ == RowForm::kCodes) {
        std::copy_n(buffers.hidden_scales + item.begin * num_scales, item.rows() * num_scales,
                    arena.hidden_scales);
      }
      // Adapters of another item were in this arena since.
      sort_adapters(item, call, arena);
      pack_hidden(item, rows.slice(item.begin, item.end), call, arena,
                  buffers.thread(*this, thread));
      run_gemm2(item, 0, w2_.num_blocks(), nullptr, call, arena, buffers.thread(*this, thread));
    });
  }

  // x as panels are made from it: as given where nothing is quantized.
  Tensor load_input(const ExpertsInput& input, Buffers& buffers, const Stream& stream) const {
    const CallRows rows = {desc_, buffers.order, quantize_a1_, stream};
    if (form1_ == RowForm::kCodes) {
      return rows.input_codes(input, buffers.x, buffers.x_scales);
    }
    if (!quantize_a1_.active()) {
      return input.x;
    }
    rows.input_values(input, buffers.x, buffers.x_scales);
    return buffers.x;
  }

  // next: what this thread goes on with, if that is known.
  void run_item(const Item& item,
                const Item* next,
                const Call& call,
                const Arena& arena,
                const ThreadBuffers& own) const {
    pack_input(item, call, arena, own);
    run_gemm1(item, 0, w1_.num_blocks(), call, arena, own);
    quantize_hidden(item, call, arena, own);
    run_gemm2(item, 0, w2_.num_blocks(), next, call, arena, own);
  }

  // A stage of a split item, or some of its column blocks, once the stage before is done.
  void run_part(const ItemTask& task,
                const Call& call,
                const Arena& arena,
                const ThreadBuffers& own) const {
    const Item& item = call.buffers.items[task.item];
    SplitProgress& progress = call.buffers.progress[task.split];
    if (task.stage == ItemStage::kPack) {
      pack_input(item, call, arena, own);
      progress.packed.count_down();
    } else if (task.stage == ItemStage::kGemm1) {
      if (!progress.packed.await(call.failed)) {
        return;
      }
      run_gemm1(item, task.begin, task.end, call, arena, own);
      if (progress.parts1.count_down()) {
        quantize_hidden(item, call, arena, own);
        progress.activated.count_down();
      }
    } else if (progress.activated.await(call.failed)) {
      run_gemm2(item, task.begin, task.end, nullptr, call, arena, own);
    }
  }

  void pack_input(const Item& item,
                  const Call& call,
                  const Arena& arena,
                  const ThreadBuffers& own) const {
    const Tensor& x = call.x;
    const Buffers& buffers = call.buffers;
    const InputRows rows(quantize_a1_, desc_.format);
    const int64_t bytes = row_bytes(x.dtype(), desc_.hidden);
    const int64_t num_blocks = quantize_a1_.num_blocks(desc_.hidden);
    std::array<const std::byte*, kMostItemRows> from;
    for (int64_t i = 0; i < item.rows(); ++i) {
      const int64_t row = rows.index(buffers.order, item.begin + i);
      from[static_cast<size_t>(i)] = x.bytes() + row * bytes;
      if (form1_ == RowForm::kCodes) {
        std::copy_n(buffers.x_scales + row * num_blocks, num_blocks,
                    arena.x_scales + i * num_blocks);
      }
    }
    pack_rows({x.dtype(), operand_, desc_.hidden, w1_.lines(),
               factor_of(factor1_, item.e) * w1_.row_factor()},
              from.data(), item.rows(), arena.row, arena.x);
    sort_adapters(item, call, arena);
    if (call.lora_ids && lora1_.defined()) {
      lora1_.shrink(arena.lora_tile(item, arena.shrunk1), from.data(), x.dtype(),
                    row_scales(quantize_a1_, arena.x_scales, desc_.hidden), own.lora);
    }
  }

  static RowScales row_scales(const RowQuantizer& a, const float* scales, int64_t k) {
    const int64_t per_row = a.num_blocks(k);
    return {scales, per_row, per_row > 1 ? a.spec().group.col : k};
  }

  void sort_adapters(const Item& item, const Call& call, const Arena& arena) const {
    if (!call.lora_ids) {
      return;
    }
    for (int64_t i = 0; i < item.rows(); ++i) {
      arena.adapters[i] =
          call.lora_ids.data<int32_t>()[call.buffers.order.input_row(item.begin + i)];
    }
    sort_by_adapter(arena.adapters, item.rows(), arena.by_adapter);
  }

  // What adapters add to a block, in own.addend; null where there are none.
  const float* addend(const PackedWeight& w,
                      const Lora& lora,
                      const LoraTile& tile,
                      int64_t block,
                      const Call& call,
                      const ThreadBuffers& own) const {
    if (!call.lora_ids || !lora.defined()) {
      return nullptr;
    }
    float* c = own.addend[block % 2];
    std::fill_n(c, tile.num_rows * kBlockColumns, 0.0f);
    const BlockColumns& columns = w.columns();
    const int64_t count = columns.gated ? kTileColumns : kBlockColumns;
    for (int64_t first = 0; first < kBlockColumns; first += count) {
      LoraRows rows = {columns.row(block, first), columns.interleaved ? 2 : 1, 0, first / count};
      while (rows.count < count && columns.row(block, first + rows.count) >= 0) {
        ++rows.count;
      }
      lora.expand(tile, rows, c + first, kBlockColumns, own.lora);
    }
    return c;
  }

  // One block of C for all rows of an item.  after_last: what is read after w's last block; later:
  // what else is read then.
  void multiply(const PackedWeight& w,
                const Item& item,
                int64_t block,
                const std::byte* panels,
                const float* row_scales,
                int64_t scales_per_row,
                const PackedWeight* after_last,
                std::span<const std::byte> later,
                TileEpilogue& epilogue,
                TileRest& rest,
                const ThreadBuffers& own) const {
    TileGemm gemm;
    w.set(item.e, block, gemm);
    gemm.a = panels;
    gemm.rows = item.rows();
    gemm.c = own.c[block % 2];
    if (block + 1 < w.num_blocks()) {
      w.set_next(item.e, block + 1, gemm);
    } else if (after_last != nullptr) {
      after_last->set_next(item.e, 0, gemm);
    }
    gemm.next.back() = part_ahead(later, block, w.num_blocks());
    epilogue.dtype = desc_.in_dtype;
    epilogue.integers = operand_ == Operand::kI8;
    epilogue.row_scales = row_scales;
    if (scales_per_row > 1) {
      gemm.row_scales = std::exchange(epilogue.row_scales, nullptr);
      gemm.row_groups = scales_per_row;
    }
    w.set(item.e, block, epilogue);
    kernels_.multiply(gemm, epilogue, rest);
  }

  void run_gemm1(const Item& item,
                 int64_t begin,
                 int64_t end,
                 const Call& call,
                 const Arena& arena,
                 const ThreadBuffers& own) const {
    const float* row_scales = form1_ == RowForm::kCodes ? arena.x_scales : nullptr;
    const int64_t scales_per_row = quantize_a1_.num_blocks(desc_.hidden);
    const int64_t columns = desc_.activation.gated ? kTileColumns : kBlockColumns;
    const bool in_panels = activates_panels();
    TileEpilogue act;
    TileRest rest;
    act.activation = &desc_.activation;
    act.as_f32 = (in_panels ? operand_ == Operand::kF32 : act_dtype() == DType::kF32);
    act.act_factor = in_panels ? w2_.row_factor() : 1.0f;
    const int64_t value_bytes = act.as_f32 ? 4 : bits(desc_.in_dtype) / 8;
    const auto panel_column = [&](int64_t column) {
      const int64_t bytes = column * value_bytes;
      return arena.hidden + bytes / kTileRowBytes * kStepBytes + bytes % kTileRowBytes;
    };
    // Of a whole item weights have pushed what was written first out of L2.
    std::span<const std::byte> written;
    const int64_t hidden_bytes = panels_bytes(item.rows(), w2_.lines());
    const bool is_whole = end - begin == w1_.num_blocks();
    if (in_panels && is_whole && item.rows() > kPanelRows && hidden_bytes <= kPanelBudget) {
      written = {arena.hidden, static_cast<size_t>(hidden_bytes)};
    }
    if (in_panels) {
      act.row_stride = kTileRowBytes;
      act.tile_stride = kTileBytes;
      act.panel_stride = w2_.lines() * kStepBytes;
      act.half_stride = panel_column(kTileColumns) - arena.hidden;
    } else {
      act.row_stride = row_bytes(act_dtype(), activation_width());
      act.tile_stride = kTileRows * act.row_stride;
      act.panel_stride = kPanelRows * act.row_stride;
      act.half_stride = kTileColumns * value_bytes;
    }
    for (int64_t block = begin; block < end; ++block) {
      const int64_t column = block * columns;
      act.act = in_panels ? panel_column(column) : arena.act + column * value_bytes;
      act.addend = addend(w1_, lora1_, arena.lora_tile(item, arena.shrunk1), block, call, own);
      multiply(w1_, item, block, arena.x, row_scales, scales_per_row, &w2_, written, act, rest,
               own);
    }
    kernels_.finish(rest);
    // Columns that pad GEMM2's last step.  Why not what GEMM1's padding gives: of an infinite x
    // that is NaN.
    const int64_t padded = w2_.lines() * kTileRowBytes / value_bytes;
    const int64_t in_line = kTileRowBytes / value_bytes;
    for (int64_t column = desc_.intermediate;
         in_panels && end == w1_.num_blocks() && column < padded;
         column += in_line - column % in_line) {
      act.act = panel_column(column);
      for (int64_t r = 0; r < item.rows(); ++r) {
        std::memset(act.act_row(r), 0,
                    static_cast<size_t>((in_line - column % in_line) * value_bytes));
      }
    }
  }

  // The activations of an item as rows that follow each other.  REQUIRES: !activates_panels().
  Tensor packed_activations(const Item& item, const Arena& arena) const {
    const int64_t bytes = row_bytes(act_dtype(), desc_.intermediate);
    const int64_t padded = row_bytes(act_dtype(), activation_width());
    for (int64_t r = 1; padded != bytes && r < item.rows(); ++r) {
      std::memmove(arena.act + r * bytes, arena.act + r * padded, static_cast<size_t>(bytes));
    }
    return Tensor::borrow(arena.act, {item.rows(), desc_.intermediate}, act_dtype());
  }

  // Activations of whole rows to panels of codes or of the values codes stand for.
  void quantize_hidden(const Item& item,
                       const Call& call,
                       const Arena& arena,
                       const ThreadBuffers& own) const {
    if (activates_panels()) {
      return;
    }
    const Tensor act = packed_activations(item, arena);
    Tensor rows = act;
    if (form2_ == RowForm::kCodes) {
      rows = Tensor::borrow(arena.codes, act.shape(), storage_dtype(quantize_a2_.spec().format));
      quantize_a2_.codes(act, item.e, rows, arena.hidden_scales, Stream::cpu(1));
    } else if (quantize_a2_.active()) {
      quantize_a2_.values(act, item.e, act, Stream::cpu(1));
    }
    pack_hidden(item, rows, call, arena, own);
  }

  // rows: of the item, as GEMM2 takes them.
  void pack_hidden(const Item& item,
                   const Tensor& rows,
                   const Call& call,
                   const Arena& arena,
                   const ThreadBuffers& own) const {
    const int64_t width = desc_.intermediate;
    std::array<const std::byte*, kMostItemRows> from;
    for (int64_t i = 0; i < item.rows(); ++i) {
      from[static_cast<size_t>(i)] = rows.bytes() + i * row_bytes(rows.dtype(), width);
    }
    pack_rows({rows.dtype(), operand_, width, w2_.lines(),
               factor_of(factor2_, item.e) * w2_.row_factor()},
              from.data(), item.rows(), arena.row, arena.hidden);
    if (call.lora_ids && lora2_.defined()) {
      lora2_.shrink(arena.lora_tile(item, arena.shrunk2), from.data(), rows.dtype(),
                    row_scales(quantize_a2_, arena.hidden_scales, width), own.lora);
    }
  }

  void run_gemm2(const Item& item,
                 int64_t begin,
                 int64_t end,
                 const Item* next,
                 const Call& call,
                 const Arena& arena,
                 const ThreadBuffers& own) const {
    const Buffers& buffers = call.buffers;
    const RowOrder& order = buffers.order;
    const float* row_scales = form2_ == RowForm::kCodes ? arena.hidden_scales : nullptr;
    const int64_t scales_per_row = quantize_a2_.num_blocks(desc_.intermediate);
    const bool past_caches = order.num_rows * desc_.hidden * 2 >= kStreamedBytes &&
                             desc_.hidden % kBlockColumns == 0 &&
                             reinterpret_cast<uintptr_t>(call.rows.raw()) % kTileRowBytes == 0;
    std::array<std::byte*, kMostItemRows> to;
    for (int64_t i = 0; i < item.rows(); ++i) {
      to[static_cast<size_t>(i)] =
          call.rows.bytes() +
          row_bytes(desc_.in_dtype, order.output_rows[item.begin + i] * desc_.hidden);
    }
    TileEpilogue store;
    TileRest rest;
    store.out = to.data();
    store.weights = buffers.weights != nullptr ? buffers.weights + item.begin : nullptr;
    store.past_caches = past_caches;
    const auto later = next != nullptr ? w1_.codes(next->e, 0) : std::span<const std::byte>();
    for (int64_t block = begin; block < end; ++block) {
      store.column = block * kBlockColumns;
      store.columns = std::min(kBlockColumns, desc_.hidden - store.column);
      store.addend = addend(w2_, lora2_, arena.lora_tile(item, arena.shrunk2), block, call, own);
      multiply(w2_, item, block, arena.hidden, row_scales, scales_per_row, nullptr, later, store,
               rest, own);
    }
    kernels_.finish(rest);
  }

  const TileKernels& kernels_;
  Operand operand_;
  RowForm form1_;
  RowForm form2_;
  bool quantizes_all_rows_;
  Tensor factor1_;  // f32 [1] or [L]; see exact_factor
  Tensor factor2_;
  PackedWeight w1_;
  PackedWeight w2_;
  Lora lora1_;
  Lora lora2_;
  int64_t most_rows_ = kMostItemRows;
};

}  // namespace

bool multiplies_integers(const ExpertsDesc& desc, const QuantConfig& q) {
  const auto plain = [](const QuantDesc& d) {
    return d.format == QuantFormat::kInt8 && (!d.shape || d.shape->col <= 0) && !d.zero_point;
  };
  return std::max(desc.hidden, desc.intermediate) <= kMaxS8Depth && plain(q.a1) && plain(q.w1) &&
         plain(q.a2) && plain(q.w2);
}

std::unique_ptr<Experts> make_tile_experts(const ExpertsDesc& desc,
                                           ExpertWeights weights,
                                           const Stream& stream,
                                           std::string_view implementation,
                                           const TileKernels& kernels) {
  return std::make_unique<TileExperts>(desc, std::move(weights), stream, implementation, kernels);
}

}  // namespace moebius::cpu
