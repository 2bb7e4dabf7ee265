// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Work is cut into items: some rows of one expert, few enough that their panels stay in L2 while
// the expert's weights stream past them.  An item is one task from gather to output, in buffers of
// its thread, or its GEMMs are split over column blocks (item_tasks.h).  An element is summed in
// the same order either way.
//
// Longer than 500 lines: both formats and all kinds of items go through one class.
// Standard format: GEMM2 leaves its rows weighted, and what is left is their plain sum per token.
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
#include "experts/cpu/tiles/item_tasks.h"
#include "experts/cpu/tiles/items.h"
#include "experts/cpu/tiles/packed_rows.h"
#include "experts/cpu/tiles/packed_weight.h"
#include "experts/cpu/tiles/read_ahead.h"
#include "experts/cpu/tiles/weighted_rows.h"
#include "experts/experts_base.h"
#include "experts/validate.h"

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
  kValues,  // bf16, or f32 rounded to it
  kCodes,   // fp8 or int8 codes, exact in bf16, and scales
  kI8,      // int8 codes as integers, and scales
};

bool is_8bit(QuantFormat format) {
  return format == QuantFormat::kFp8 || format == QuantFormat::kInt8;
}

RowForm row_form(const RowQuantizer& a, const QuantDesc& w, bool integers) {
  if (integers) {
    return RowForm::kI8;
  }
  if (!a.active() || !is_8bit(a.spec().format) || a.spec().format != w.format || w.zero_point) {
    return RowForm::kValues;
  }
  const int64_t group = a.spec().group.col;
  return group <= 0 || group == PackedWeight::group_columns(w) ? RowForm::kCodes : RowForm::kValues;
}

// nvfp4 values are rounded as code times block scale, which bf16 holds exactly; the global scale is
// left to the weights' alphas, which were divided by it.  Undefined where that is not so.
Tensor exact_factor(const QuantDesc& a, const QuantDesc& w) {
  const bool both = a.format == QuantFormat::kNvfp4 && w.format == QuantFormat::kNvfp4;
  return both ? a.alpha_or_gscale : Tensor();
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
        integers_(multiplies_integers(desc_, weights_.quant)),
        form1_(row_form(quantize_a1_, weights_.quant.w1, integers_)),
        form2_(row_form(quantize_a2_, weights_.quant.w2, integers_)),
        factor1_(exact_factor(weights_.quant.a1, weights_.quant.w1)),
        factor2_(exact_factor(weights_.quant.a2, weights_.quant.w2)),
        w1_(weights_.w1,
            weights_.quant.w1,
            {desc_.w1_rows(), desc_.activation.gated, desc_.activation.interleaved},
            gate_rows(desc_),
            factor1_ ? Tensor() : weights_.quant.a1.alpha_or_gscale,
            integers_,
            stream),
        w2_(weights_.w2,
            weights_.quant.w2,
            {desc_.hidden, false, false},
            desc_.hidden,
            factor2_ ? Tensor() : weights_.quant.a2.alpha_or_gscale,
            integers_,
            stream) {
    // The packed copies are all that is kept.
    for (Tensor* tensor : {&weights_.w1, &weights_.w2}) {
      *tensor = {};
    }
    for (QuantDesc* desc_of : {&weights_.quant.w1, &weights_.quant.w2}) {
      desc_of->scale = desc_of->zero_point = desc_of->bias = {};
    }
    const int64_t fitting = kPanelBudget / (w1_.steps() * kTileRowBytes) / kPanelRows * kPanelRows;
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
      const bool has_codes = self.form2_ != RowForm::kValues;
      x = scratch.take<std::byte>(panels_bytes(rows, self.w1_.steps()));
      x_scales = scratch.take<float>(rows * self.quantize_a1_.num_blocks(d.hidden));
      hidden = scratch.take<std::byte>(panels_bytes(rows, self.w2_.steps()));
      const int64_t values = self.quantize_a2_.active() ? rows * self.activation_width() : 0;
      act = scratch.take<std::byte>(row_bytes(self.act_dtype(), values));
      codes = scratch.take<std::byte>(has_codes ? rows * d.intermediate : 0);
      hidden_scales =
          scratch.take<float>(has_codes ? rows * self.quantize_a2_.num_blocks(d.intermediate) : 0);
      row = scratch.take<uint16_t>(std::max(d.hidden, d.intermediate));
    }

    std::byte* x;          // panels of GEMM1
    float* x_scales;       // [rows, blocks]
    std::byte* hidden;     // panels of GEMM2
    std::byte* act;        // act_dtype() [rows, activation_width()], yet to be quantized
    std::byte* codes;      // [rows, I]
    float* hidden_scales;  // [rows, blocks]
    uint16_t* row;         // scratch of pack_rows
  };

  struct Buffers {
    Buffers(const TileExperts& self, int64_t rows, Scratch& scratch) {
      const ExpertsDesc& d = self.desc_;
      const int64_t slots = self.num_slots(rows);
      const bool codes = self.form1_ != RowForm::kValues;
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
      num_arenas = std::min(most_items, kItemsPerThread * threads);
      progress = scratch.take<SplitProgress>(num_arenas);
      arena_bytes = self.arena_bytes(arena_rows);
      arenas = scratch.take<std::byte>(num_arenas * arena_bytes);
      thread_floats = 2 * block_floats(arena_rows);
      blocks = scratch.take<float>(threads * thread_floats);
    }

    Arena arena(const TileExperts& self, int64_t i) const {
      Scratch scratch(arenas + i * arena_bytes);
      return {self, arena_rows, scratch};
    }
    float* block(int64_t thread) const { return blocks + thread * thread_floats; }

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
    int64_t thread_floats;
    float* blocks;  // C of two blocks in turn, per thread
  };

  // What all tasks of a call share.
  struct Call {
    Tensor x;     // as panels are made from it
    Tensor rows;  // [slots, H] or the output, as GEMM2 leaves them
    const Buffers& buffers;
    std::atomic<bool> failed = false;
  };

  int64_t arena_bytes(int64_t rows) const {
    Scratch scratch;
    Arena(*this, rows, scratch);
    return scratch.bytes();
  }

  // Activations per row that GEMM1's blocks give, padding included.
  int64_t activation_width() const {
    return w1_.num_blocks() * (desc_.activation.gated ? 16 : kBlockColumns);
  }
  // Of activations that are yet to be quantized: bf16 holds them, but values that codes stand for,
  // which take their place, only f32 does.
  DType act_dtype() const { return form2_ == RowForm::kValues ? DType::kF32 : DType::kBF16; }

  // rows [slots, H], those of skipped selections excepted.
  void compute_rows(const ExpertsInput& input,
                    Buffers& buffers,
                    const Tensor& rows,
                    const Stream& stream) const {
    Call call{load_input(input, buffers, stream), rows, buffers};
    if (!is_batched()) {
      fill_row_weights(input, buffers.order, buffers.weights, stream);
    }
    const int64_t num_items = cut_items(buffers.order, desc_.num_local_experts, buffers.arena_rows,
                                        kItemsPerThread * stream.num_threads(), buffers.items);
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
          run_item(buffers.items[task.item], next, call, arena, buffers.block(thread));
        } else {
          run_part(task, call, arena, buffers.block(thread));
        }
      } catch (...) {
        call.failed = true;
        throw;
      }
    });
  }

  // x as panels are made from it: as given where it is bf16 and stays so.
  Tensor load_input(const ExpertsInput& input, Buffers& buffers, const Stream& stream) const {
    if (form1_ != RowForm::kValues) {
      return input_codes(desc_, input, buffers.order, quantize_a1_, buffers.x, buffers.x_scales,
                         stream);
    }
    if (!quantize_a1_.active()) {
      return input.x;
    }
    input_values(desc_, input, buffers.order, quantize_a1_, buffers.x, buffers.x_scales, stream);
    return buffers.x;
  }

  // next: what this thread goes on with, if that is known.
  void run_item(
      const Item& item, const Item* next, const Call& call, const Arena& arena, float* c) const {
    pack_input(item, call, arena);
    run_gemm1(item, 0, w1_.num_blocks(), arena, c);
    quantize_hidden(item, arena);
    run_gemm2(item, 0, w2_.num_blocks(), next, call, arena, c);
  }

  // A stage of a split item, or some of its column blocks, once the stage before is done.
  void run_part(const ItemTask& task, const Call& call, const Arena& arena, float* c) const {
    const Item& item = call.buffers.items[task.item];
    SplitProgress& progress = call.buffers.progress[task.split];
    if (task.stage == ItemStage::kPack) {
      pack_input(item, call, arena);
      progress.packed.count_down();
    } else if (task.stage == ItemStage::kGemm1) {
      if (!progress.packed.await(call.failed)) {
        return;
      }
      run_gemm1(item, task.begin, task.end, arena, c);
      if (progress.parts1.count_down()) {
        quantize_hidden(item, arena);
        progress.activated.count_down();
      }
    } else if (progress.activated.await(call.failed)) {
      run_gemm2(item, task.begin, task.end, nullptr, call, arena, c);
    }
  }

  void pack_input(const Item& item, const Call& call, const Arena& arena) const {
    const Tensor& x = call.x;
    const Buffers& buffers = call.buffers;
    const InputRows rows(quantize_a1_, desc_.format);
    const int64_t bytes = row_bytes(x.dtype(), desc_.hidden);
    const int64_t num_blocks = quantize_a1_.num_blocks(desc_.hidden);
    std::array<const std::byte*, kMostItemRows> from;
    for (int64_t i = 0; i < item.rows(); ++i) {
      const int64_t row = rows.index(buffers.order, item.begin + i);
      from[static_cast<size_t>(i)] = x.bytes() + row * bytes;
      if (form1_ != RowForm::kValues) {
        std::copy_n(buffers.x_scales + row * num_blocks, num_blocks,
                    arena.x_scales + i * num_blocks);
      }
    }
    pack_rows(x.dtype(), form1_ == RowForm::kI8, from.data(), item.rows(), desc_.hidden,
              w1_.steps(), factor_of(factor1_, item.e) * w1_.row_factor(), arena.row, arena.x);
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
                float* c) const {
    TileGemm gemm;
    w.set(item.e, block, gemm);
    gemm.a = panels;
    gemm.rows = item.rows();
    gemm.c = block % 2 == 0 ? c : c + block_floats(item.rows());
    if (block + 1 < w.num_blocks()) {
      w.set_next(item.e, block + 1, gemm);
    } else if (after_last != nullptr) {
      after_last->set_next(item.e, 0, gemm);
    }
    gemm.next.back() = part_ahead(later, block, w.num_blocks());
    epilogue.integers = integers_;
    epilogue.row_scales = row_scales;
    if (scales_per_row > 1) {
      gemm.row_scales = std::exchange(epilogue.row_scales, nullptr);
      gemm.row_groups = scales_per_row;
    }
    w.set(item.e, block, epilogue);
    kernels_.multiply(gemm, epilogue, rest);
  }

  void run_gemm1(const Item& item, int64_t begin, int64_t end, const Arena& arena, float* c) const {
    const float* row_scales = form1_ != RowForm::kValues ? arena.x_scales : nullptr;
    const int64_t scales_per_row = quantize_a1_.num_blocks(desc_.hidden);
    const int64_t columns = desc_.activation.gated ? 16 : kBlockColumns;
    TileEpilogue act;
    TileRest rest;
    act.activation = &desc_.activation;
    const bool in_panels = !quantize_a2_.active();
    act.as_f32 = !in_panels && act_dtype() == DType::kF32;
    act.act_factor = in_panels ? w2_.row_factor() : 1.0f;
    // Of a whole item weights have pushed what was written first out of L2.
    std::span<const std::byte> written;
    const int64_t hidden_bytes = panels_bytes(item.rows(), w2_.steps());
    const bool is_whole = end - begin == w1_.num_blocks();
    if (in_panels && is_whole && item.rows() > kPanelRows && hidden_bytes <= kPanelBudget) {
      written = {arena.hidden, static_cast<size_t>(hidden_bytes)};
    }
    for (int64_t block = begin; block < end; ++block) {
      const int64_t column = block * columns;
      if (in_panels) {
        act.row_stride = kTileRowBytes;
        act.tile_stride = kTileBytes;
        act.panel_stride = w2_.steps() * kStepBytes;
        act.act = arena.hidden + column / 32 * kStepBytes + column % 32 * 2;
      } else {
        act.row_stride = row_bytes(act_dtype(), activation_width());
        act.tile_stride = kTileRows * act.row_stride;
        act.panel_stride = kPanelRows * act.row_stride;
        act.act = arena.act + row_bytes(act_dtype(), column);
      }
      multiply(w1_, item, block, arena.x, row_scales, scales_per_row, &w2_, written, act, rest, c);
    }
    kernels_.finish(rest);
    // Columns that pad GEMM2's last step.  Why not what GEMM1's padding gives: of an infinite x
    // that is NaN.
    const int64_t in_last_step = desc_.intermediate % 32;
    if (in_panels && in_last_step != 0 && end == w1_.num_blocks()) {
      act.act = arena.hidden + (w2_.steps() - 1) * kStepBytes + in_last_step * 2;
      for (int64_t r = 0; r < item.rows(); ++r) {
        std::memset(act.act_row(r), 0, static_cast<size_t>(32 - in_last_step) * 2);
      }
    }
  }

  // Activations of whole rows to panels of codes or of the values codes stand for.
  void quantize_hidden(const Item& item, const Arena& arena) const {
    if (!quantize_a2_.active()) {
      return;
    }
    const int64_t width = desc_.intermediate;
    const int64_t bytes = row_bytes(act_dtype(), width);
    const int64_t padded = row_bytes(act_dtype(), activation_width());
    for (int64_t r = 1; padded != bytes && r < item.rows(); ++r) {
      std::memmove(arena.act + r * bytes, arena.act + r * padded, static_cast<size_t>(bytes));
    }
    const Tensor act = Tensor::borrow(arena.act, {item.rows(), width}, act_dtype());
    Tensor rows = act;
    if (form2_ == RowForm::kValues) {
      quantize_a2_.values(act, item.e, act, Stream::cpu(1));
    } else {
      rows = Tensor::borrow(arena.codes, act.shape(), storage_dtype(quantize_a2_.spec().format));
      quantize_a2_.codes(act, item.e, rows, arena.hidden_scales, Stream::cpu(1));
    }
    std::array<const std::byte*, kMostItemRows> from;
    for (int64_t i = 0; i < item.rows(); ++i) {
      from[static_cast<size_t>(i)] = rows.bytes() + i * row_bytes(rows.dtype(), width);
    }
    pack_rows(rows.dtype(), form2_ == RowForm::kI8, from.data(), item.rows(), width, w2_.steps(),
              factor_of(factor2_, item.e) * w2_.row_factor(), arena.row, arena.hidden);
  }

  void run_gemm2(const Item& item,
                 int64_t begin,
                 int64_t end,
                 const Item* next,
                 const Call& call,
                 const Arena& arena,
                 float* c) const {
    const Buffers& buffers = call.buffers;
    const RowOrder& order = buffers.order;
    const float* row_scales = form2_ != RowForm::kValues ? arena.hidden_scales : nullptr;
    const int64_t scales_per_row = quantize_a2_.num_blocks(desc_.intermediate);
    const bool past_caches = order.num_rows * desc_.hidden * 2 >= kStreamedBytes &&
                             desc_.hidden % kBlockColumns == 0 &&
                             reinterpret_cast<uintptr_t>(call.rows.raw()) % kTileRowBytes == 0;
    std::array<uint16_t*, kMostItemRows> to;
    for (int64_t i = 0; i < item.rows(); ++i) {
      to[static_cast<size_t>(i)] = reinterpret_cast<uint16_t*>(call.rows.bytes()) +
                                   order.output_rows[item.begin + i] * desc_.hidden;
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
      multiply(w2_, item, block, arena.hidden, row_scales, scales_per_row, nullptr, later, store,
               rest, c);
    }
    kernels_.finish(rest);
  }

  const TileKernels& kernels_;
  bool integers_;
  RowForm form1_;
  RowForm form2_;
  Tensor factor1_;  // f32 [1] or [L]; see exact_factor
  Tensor factor2_;
  PackedWeight w1_;
  PackedWeight w2_;
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
