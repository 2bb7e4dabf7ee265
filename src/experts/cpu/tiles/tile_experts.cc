// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A call is cut into items: some rows of one expert, few enough that their panels stay in L2 while
// the expert's weights stream past them.  item_stages.h says what is done to an item.  An item is
// one task from gather to output, in buffers of its thread, or its GEMMs are split over column
// blocks (item_tasks.h).
//
// In the standard format GEMM2 leaves its rows weighted, and the plain sum per token is left to do.
// Where one scale covers all of GEMM2's rows of a call, all items are taken up to their activations
// first, and a second pass does the rest.
#include "experts/cpu/tiles/tile_experts.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "core/node_tasks.h"
#include "core/numa.h"
#include "core/parallel.h"
#include "experts/cpu/tiles/item_stages.h"
#include "experts/cpu/tiles/item_tasks.h"
#include "experts/cpu/tiles/weighted_rows.h"
#include "experts/experts_base.h"
#include "experts/int8_depth.h"
#include "experts/weight_tensors.h"
#include "quant/groups.h"

namespace moebius::cpu {

namespace {

class TileExperts final : public ExpertsBase {
 public:
  TileExperts(const ExpertsDesc& desc,
              ExpertWeights weights,
              const Stream& stream,
              std::string_view name,
              const TileKernels& kernels)
      : ExpertsBase(
            desc, std::move(weights), stream, {name, WeightAndReduceKind::kNoOp, own_constants}),
        placement_(numa_placement()),
        stages_(desc_,
                weights_,
                {quantize_a1_, quantize_a2_,
                 multiplies_integers(desc_, weights_.quant) ? Operand::kI8 : kernels.operand,
                 kernels, placement_},
                stream),
        quantizes_all_rows_(quant::scales_over_rows(weights_.quant.a2)) {
    // The packed copies are all that is kept.
    for (const auto& side : sides_of(weights_)) {
      for_each_weight_tensor(side, [](Tensor& tensor, const auto&) { tensor = {}; });
    }
  }

 private:
  int64_t scratch_bytes(int64_t rows) const override { return bytes_of<Buffers>(*this, rows); }

  void expect_holds(const ExpertWeights& weights) const override {
    for (const auto& side : sides_of(weights)) {
      if (!side.w) {
        continue;
      }
      if (const Support support = PackedWeight::supports(side.quant, stages_.operand());
          !support.ok) {
        throw Unsupported("experts " + std::string(name()) + " cannot hold the new " +
                          std::string(side.name) + ": " + support.reason);
      }
    }
  }
  void repack(const ExpertWeights& weights, const Stream& stream) override {
    stages_.repack(weights, stream);
  }

  void run(const ExpertsInput& input,
           const Tensor& output,
           Scratch scratch,
           const Stream& stream) const override {
    Buffers buffers(*this, num_rows(input), scratch);
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

  bool sums_rows() const { return !is_batched() && desc_.topk > 1; }

  struct Buffers {
    Buffers(const TileExperts& self, int64_t rows, Scratch& scratch) {
      const ExpertsDesc& d = self.desc_;
      const ItemStages& stages = self.stages_;
      const ItemGemm& gemm1 = stages.gemm1();
      const ItemGemm& gemm2 = stages.gemm2();
      const int64_t slots = self.num_slots(rows);
      const bool is_coded = gemm1.has_codes();
      const int64_t x_rows =
          is_coded || gemm1.quantizer.active() ? self.num_input_rows(gemm1.quantizer, rows) : 0;
      order = self.take_order(scratch, slots);
      const int64_t most_items = max_items(d.num_local_experts, slots);
      items = scratch.take<Item>(most_items);
      weights = self.is_batched() ? nullptr : scratch.take<float>(slots);
      weighted = scratch.take({self.sums_rows() ? slots : 0, d.hidden}, d.in_dtype);
      x = scratch.take({x_rows, d.hidden}, is_coded ? gemm1.code_dtype() : DType::kF32);
      x_scales = scratch.take<float>(x_rows * gemm1.scales_per_row());
      // There is one arena per thread where there are whole items, and one per split item.
      const int64_t threads = self.max_threads();
      item_rows = std::min(stages.most_rows(), std::max<int64_t>(1, slots));
      const int64_t num_arenas =
          self.quantizes_all_rows_ ? threads : std::min(most_items, kItemsPerThread * threads);
      progress = scratch.take<SplitProgress>(num_arenas);
      arena_bytes = bytes_of<ItemBuffers>(stages, item_rows);
      arenas = scratch.take<std::byte>(num_arenas * arena_bytes);
      thread_bytes = bytes_of<ThreadBuffers>(stages, item_rows);
      threads_begin = scratch.take<std::byte>(threads * thread_bytes);
      const int64_t act_rows = self.quantizes_all_rows_ ? slots : 0;
      act = scratch.take({act_rows, d.intermediate}, stages.act_dtype());
      const int64_t coded_rows = gemm2.has_codes() ? act_rows : 0;
      hidden = scratch.take({coded_rows, d.intermediate},
                            gemm2.has_codes() ? gemm2.code_dtype() : DType::kF32);
      hidden_scales = scratch.take<float>(coded_rows * gemm2.scales_per_row());
    }

    ItemBuffers arena(const ItemStages& stages, int64_t i) const {
      Scratch scratch(arenas + i * arena_bytes);
      return {stages, item_rows, scratch};
    }
    ThreadBuffers thread(const ItemStages& stages, int64_t i) const {
      Scratch scratch(threads_begin + i * thread_bytes);
      return {stages, item_rows, scratch};
    }

    RowOrder order;
    Item* items;
    float* weights;           // of the rows in computing order; null: not weighted
    Tensor weighted;          // [slots, H] where they are summed
    Tensor x;                 // codes, or values f32, of a quantized input
    float* x_scales;          // with codes: [x rows, blocks]
    SplitProgress* progress;  // of split items
    int64_t item_rows;
    int64_t arena_bytes;
    std::byte* arenas;
    int64_t thread_bytes;
    std::byte* threads_begin;
    // These are used where one scale covers all rows.  They hold activations and their codes, in
    // computing order.
    Tensor act;
    Tensor hidden;
    float* hidden_scales;
  };

  // Computes `rows` [slots, H], except those of skipped selections.
  void compute_rows(const ExpertsInput& input,
                    Buffers& buffers,
                    const Tensor& rows,
                    const Stream& stream) const {
    if (!is_batched()) {
      fill_row_weights(input, buffers.order, buffers.weights, stream);
    }
    const ItemCall call = {load_input(input, buffers, stream),
                           buffers.x_scales,
                           rows,
                           buffers.weights,
                           input.lora_ids,
                           input.a2_scale ? input.a2_scale.data<float>() : nullptr,
                           buffers.order};
    const int64_t num_items = cut_items(buffers.order, desc_.num_local_experts, buffers.item_rows,
                                        kItemsPerThread * stream.num_threads(), buffers.items);
    if (quantizes_all_rows_) {
      return compute_in_two_passes(num_items, call, buffers, stream);
    }
    static_assert(std::is_trivially_destructible_v<SplitProgress>);  // it is never destroyed
    const ItemTasks tasks(num_items, stream.num_threads(), num_blocks1(), num_blocks2());
    for (int64_t i = 0; i < tasks.num_split(); ++i) {
      std::construct_at(buffers.progress + i, tasks.num_parts1());
    }
    const int64_t first_split_arena = tasks.num_whole() > 0 ? stream.num_threads() : 0;
    std::atomic<bool> failed = false;
    const auto node_of = [&](int64_t i) { return home(buffers.items[tasks[i].item]); };
    parallel_tasks_by_node(stream, tasks.size(), placement_, node_of, [&](int64_t i, int thread) {
      const ItemTask task = tasks[i];
      const bool is_whole = task.stage == ItemStage::kWhole;
      const ItemBuffers arena =
          buffers.arena(stages_, is_whole ? thread : first_split_arena + task.split);
      const ThreadBuffers own = buffers.thread(stages_, thread);
      const ItemWork work = {buffers.items[task.item], call, arena, own};
      const BlockPlace after = place_after(tasks, i, buffers.items, stream.num_threads());
      try {
        if (is_whole) {
          run_item(work, after);
        } else {
          run_part(task, work, after, buffers.progress[task.split], failed);
        }
      } catch (...) {
        failed = true;
        throw;
      }
    });
  }

  // Takes all items up to their activations, quantizes these together, then does the rest of all
  // items.  No item is split.
  void compute_in_two_passes(int64_t num_items,
                             const ItemCall& call,
                             const Buffers& buffers,
                             const Stream& stream) const {
    const ItemGemm& gemm2 = stages_.gemm2();
    const auto for_each_item = [&](auto body) {
      const auto node_of = [&](int64_t i) { return home(buffers.items[i]); };
      parallel_tasks_by_node(stream, num_items, placement_, node_of, [&](int64_t i, int thread) {
        const ItemBuffers arena = buffers.arena(stages_, thread);
        const ThreadBuffers own = buffers.thread(stages_, thread);
        body(ItemWork{buffers.items[i], call, arena, own});
      });
    };
    for_each_item([&](const ItemWork& work) {
      stages_.pack_input(work);
      stages_.run_gemm1(work, 0, num_blocks1(), {});
      const Tensor act = stages_.packed_activations(work);
      std::memcpy(buffers.act.slice(work.item.begin, work.item.end).raw(), act.raw(),
                  static_cast<size_t>(act.nbytes()));
    });
    const CallRows quantized = {desc_, buffers.order, quantize_a2_, stream};
    if (gemm2.has_codes()) {
      quantized.hidden_codes(buffers.act, buffers.hidden, buffers.hidden_scales);
    } else {
      quantized.hidden_values(buffers.act);
    }
    const Tensor& rows = gemm2.has_codes() ? buffers.hidden : buffers.act;
    const int64_t num_scales = gemm2.scales_per_row();
    for_each_item([&](const ItemWork& work) {
      const Item& item = work.item;
      if (gemm2.has_codes()) {
        std::copy_n(buffers.hidden_scales + item.begin * num_scales, item.rows() * num_scales,
                    work.buffers.hidden.scales);
      }
      // The arena may have held the adapters of another item since.
      stages_.sort_adapters(work);
      stages_.pack_hidden(work, rows.slice(item.begin, item.end));
      stages_.run_gemm2(work, 0, num_blocks2(), {});
    });
  }

  // Returns x as panels are made from it, which is as given where nothing is quantized.
  Tensor load_input(const ExpertsInput& input, Buffers& buffers, const Stream& stream) const {
    const CallRows rows = {desc_, buffers.order, quantize_a1_, stream};
    if (stages_.gemm1().has_codes()) {
      return rows.input_codes(input, buffers.x, buffers.x_scales);
    }
    if (!quantize_a1_.active()) {
      return input.x;
    }
    rows.input_values(input, buffers.x, buffers.x_scales);
    return buffers.x;
  }

  // Returns which weights the thread of task i most likely reads after it: where all threads take
  // tasks in turn, those of the task that is as many later as there are threads.
  BlockPlace place_after(const ItemTasks& tasks,
                         int64_t i,
                         const Item* items,
                         int num_threads) const {
    const int64_t later = i + num_threads;
    if (placement_.num_homes() > 1 || later >= tasks.size()) {
      return {};
    }
    const ItemTask task = tasks[later];
    if (task.stage == ItemStage::kPack) {
      return {};
    }
    const ItemGemm& gemm = task.stage == ItemStage::kGemm2 ? stages_.gemm2() : stages_.gemm1();
    return {&gemm.weight, items[task.item].e, task.begin};
  }

  // after: where this thread most likely goes on.
  void run_item(const ItemWork& work, const BlockPlace& after) const {
    stages_.pack_input(work);
    stages_.run_gemm1(work, 0, num_blocks1(), {&stages_.gemm2().weight, work.item.e, 0});
    stages_.quantize_hidden(work);
    stages_.run_gemm2(work, 0, num_blocks2(), after);
  }

  // Runs a stage of a split item, or some of its column blocks, once the stage before is done.
  void run_part(const ItemTask& task,
                const ItemWork& work,
                const BlockPlace& after,
                SplitProgress& progress,
                const std::atomic<bool>& failed) const {
    if (task.stage == ItemStage::kPack) {
      stages_.pack_input(work);
      progress.packed.count_down();
    } else if (task.stage == ItemStage::kGemm1) {
      if (!progress.packed.await(failed)) {
        return;
      }
      stages_.run_gemm1(work, task.begin, task.end, after);
      if (progress.parts1.count_down()) {
        stages_.quantize_hidden(work);
        progress.activated.count_down();
      }
    } else if (progress.activated.await(failed)) {
      stages_.run_gemm2(work, task.begin, task.end, after);
    }
  }

  int home(const Item& item) const { return placement_.home(item.e, desc_.num_local_experts); }
  int64_t num_blocks1() const { return stages_.gemm1().weight.num_blocks(); }
  int64_t num_blocks2() const { return stages_.gemm2().weight.num_blocks(); }

  NumaPlacement placement_;
  ItemStages stages_;
  bool quantizes_all_rows_;
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
