// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// In the standard format rows go through both GEMMs in the order of experts, and are weighted and
// summed from there.  GEMM1 fetches them from where they lie; where it cannot, they are gathered
// first.  In the batched format rows stay where they are.
//
// Why the sums are made here: only a few selections of a row that came from another rank are local,
// so [M, K, H] would be mostly zeros, written once and read again.
#include "experts/cuda/experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <memory>
#include <mutex>
#include <utility>

#include "core/cuda/fetch_ahead.h"
#include "core/cuda/slot_order.h"
#include "core/cuda/words.h"
#include "core/scratch.h"
#include "core/token_sums.h"
#include "experts/cuda/activation/activation.h"
#include "experts/cuda/call_buffers.h"
#include "experts/cuda/gemm/dequant/pack_codes.h"
#include "experts/cuda/gemm/dequant/scale_norms.h"
#include "experts/cuda/gemm/expert_gemm.h"
#include "experts/cuda/limits.h"
#include "experts/cuda/lora/lora.h"
#include "experts/cuda/place_weights.h"
#include "experts/cuda/rows/permute.h"
#include "experts/cuda/rows/row_coder.h"
#include "experts/cuda/rows/weighted_sum.h"
#include "experts/expected_rows.h"
#include "experts/experts_base.h"
#include "experts/validate.h"
#include "moebius/log.h"

namespace moebius::cuda {

namespace {

Tensor as_rows(const Tensor& x) {
  return x.view({x.numel() / x.shape().back(), x.shape().back()});
}

class CudaExperts final : public ExpertsBase {
 public:
  CudaExperts(const ExpertsDesc& desc, ExpertWeights weights, const Stream& stream)
      : ExpertsBase(
            desc, std::move(weights), stream, {"cuda", WeightAndReduceKind::kNoOp, place_weights}),
        device_(stream.device()),
        w1_{weights_.w1, weights_.quant.w1, gate_rows(desc_), weights_.quant.a1.alpha_or_gscale},
        w2_{weights_.w2, weights_.quant.w2, desc_.hidden, weights_.quant.a2.alpha_or_gscale},
        forced_(forced_multiplier()),
        a1_(weights_.quant.a1, desc_, w1_, forced_),
        a2_(weights_.quant.a2, desc_, w2_, forced_),
        gemm1_(gemm1_desc()),
        gemm2_(gemm2_desc()),
        gpu_(cuda_device_info(device_.index)) {
    if (desc_.weight_memory == WeightMemory::kOwned) {  // else the memory is the caller's
      w1_.is_packed = packs_codes(gemm1_, gpu_);
      w2_.is_packed = packs_codes(gemm2_, gpu_);
    }
    make_norms(gemm1_, w1_);
    make_norms(gemm2_, w2_);
    if (w1_.is_packed || w2_.is_packed || w1_.scale_norms || w2_.scale_norms) {
      repack(weights_, stream);
      stream.synchronize();  // calls may come on other streams
    }
    // These traits follow from plans for many rows, not from what a call brings, since ranks must
    // agree on them.  A call that decodes weights ahead awaits all rows; calls of fewer rows take
    // them as they arrive.
    const GemmPlan plan1 = plan_for(gemm1_, kManyRows);
    const GemmPlan plan2 = plan_for(gemm2_, kManyRows);
    make_maps(plan1, w1_);
    make_maps(plan2, w2_);
    if (log_topic_enabled("dispatch")) {
      log_topic("dispatch", "gemm1 of " + to_string(plan1, gemm1_));
      log_topic("dispatch", "gemm2 of " + to_string(plan2, gemm2_));
    }
    const bool is_plain_standard = !is_batched() && desc_.num_adapters == 0;
    const bool is_coded_here = a1_.active() && traits_.expects_unquantized_inputs;
    traits_.counts_rows = !is_batched();
    traits_.takes_order = !is_batched();
    traits_.gives_parts = is_plain_standard && plan2.takes_columns();
    traits_.takes_arriving_rows = is_plain_standard && !is_coded_here && !a1_.widens_codes() &&
                                  !a1_.needs_groups() &&
                                  (plan1.takes_arrivals() || plan1.decodes_ahead);
  }

  Tensor first_weights(int64_t rows) const override {
    if (!traits_.takes_order || !row_plan(rows, 0)->gemm1.fetches_ahead) {
      return {};
    }
    const Tensor all = w1_.values.view({w1_.values.numel()});
    return all.slice(0, std::min(all.numel(), kFetchedByRouter * 8 / bits(all.dtype())));
  }

 private:
  void repack(const ExpertWeights& weights, const Stream& stream) override {
    if (weights.w1) {
      repack(w1_, stream);
    }
    if (weights.w2) {
      repack(w2_, stream);
    }
  }
  static void repack(const WeightOperand& w, const Stream& stream) {
    if (w.is_packed) {
      pack_codes(w, stream);
    }
    if (w.scale_norms) {
      put_scale_norms(w, w.scale_norms, stream);
    }
  }

  int64_t scratch_bytes(int64_t rows) const override { return row_plan(rows, 0)->scratch_bytes; }

  void run(const ExpertsInput& input,
           const Tensor& output,
           Scratch scratch,
           const Stream& stream) const override {
    const int64_t rows = num_rows(input);
    if (num_slots(rows) == 0) {
      return;
    }
    const auto plan = row_plan(rows, input.expected_rows);
    CallBuffers buffers(buffer_facts(), *plan, scratch);
    if (input.order != nullptr) {
      buffers.take_order(*input.order);
    }
    Call call{input, buffers, load_order(input, buffers, stream), row_adapters(input, buffers),
              stream};
    const RowOperand x = load_input(call, *plan);
    const RowOperand hidden = compute_hidden(call, x, output);
    if (is_batched()) {
      run_gemm2(call, hidden, as_rows(output), {}, input.max_sms);
    } else {
      finish_parts(call, hidden, output);
    }
  }

  // Calls of a serving engine repeat a few numbers of rows, and to plan for one takes the host as
  // long as a launch.
  std::shared_ptr<const RowPlan> row_plan(int64_t rows, int64_t hint) const {
    const std::lock_guard lock(row_plans_mutex_);
    // A call asks without its hint, too, how much scratch it needs.
    const auto place = static_cast<size_t>(2 * rows + (hint > 0 ? 1 : 0));
    std::shared_ptr<const RowPlan>& known = row_plans_[place % row_plans_.size()];
    if (known == nullptr || known->rows != rows || known->hint != hint) {
      known = std::make_shared<const RowPlan>(make_row_plan(rows, hint));
    }
    return known;
  }
  RowPlan make_row_plan(int64_t rows, int64_t hint) const {
    RowPlan plan;
    plan.rows = rows;
    plan.slots = num_slots(rows);
    plan.hint = hint;
    plan.expected = expected_rows().of(rows);
    if (is_batched() && hint > 0) {
      plan.expected = std::min(plan.expected, hint * desc_.num_local_experts);
    }
    plan.gemm1 = plan_for(gemm1_, plan.expected);
    plan.gemm2 = plan_for(gemm2_, plan.expected);
    plan.is_always_fused = plan.gemm1.activates && !is_batched();
    // Fewer rows may need more, since they store GEMM1's result.  A workspace for many rows must do
    // for them, too.
    const int64_t fewer =
        plan.is_always_fused && plan.gemm1.decodes() ? most_unfused_rows(plan.gemm1) : 0;
    const int64_t of_fewer = fewer > 0
                                 ? num_slots(fewer) * desc_.w1_rows() +
                                       plan_for(gemm2_, expected_rows().of(fewer)).decoded_elements
                                 : 0;
    plan.decoded_elements =
        std::max({plan.gemm1.decoded_elements, plan.gemm2.decoded_elements, of_fewer});
    Scratch size;
    CallBuffers(buffer_facts(), plan, size);
    plan.scratch_bytes = size.bytes();
    return plan;
  }
  // Holds what the steps of a call share.
  struct Call {
    const ExpertsInput& input;
    const CallBuffers& buffers;
    RowGroups rows;
    RowAdapters adapters;
    const Stream& stream;

    // GEMM2 must not take SMs that are left to others while GEMM1 has the rest, nor any that other
    // ranks may need to send what GEMM1 waits for.
    void follow_gemm1() {
      rows.settled = true;
      rows.between_gemms = input.max_sms == 0 && input.arrivals.signals.words == nullptr;
    }
  };

  BufferFacts buffer_facts() const {
    return {desc_, a1_, a2_, w1_.quant.format, w2_.quant.format, device_, lora_halves()};
  }
  ExpectedRows expected_rows() const {
    return {desc_.num_experts, desc_.num_local_experts, desc_.topk, is_batched()};
  }
  GemmPlan plan_for(const GemmDesc& gemm, int64_t expected) const {
    return choose_gemm(gemm, gpu_, expected);
  }
  // The most rows for which GEMM1 stores its result, where it activates for more.
  int64_t most_unfused_rows(const GemmPlan& plan1) const {
    return plan1.decodes_from > 0 ? expected_rows().most_below(plan1.decodes_from) : 0;
  }
  // A rank gets topk rows when every rank has one token, and shared experts get one.
  int64_t most_thin_code_rows() const { return desc_.beside_others ? desc_.topk : kManyRows; }
  GemmDesc desc_of_gemm(const RowCoder& a, const WeightOperand& w) const {
    GemmDesc desc;
    desc.rows = a.active() ? a.facts(w.values.dim(2)) : RowFacts{desc_.in_dtype};
    desc.weights = facts_of(w);
    desc.out = desc_.in_dtype;
    desc.keeps_f32 = desc_.in_dtype == DType::kF32;
    desc.forced = forced_;
    desc.most_thin_code_rows = most_thin_code_rows();
    return desc;
  }
  GemmDesc gemm1_desc() const {
    GemmDesc desc = desc_of_gemm(a1_, w1_);
    if (desc_.in_dtype == DType::kBF16 && desc_.num_adapters == 0) {
      desc.activation = desc_.activation;
      if (a2_.active()) {
        desc.codes = a2_.spec();
        desc.has_static_codes = a2_.has_static_scale();
        desc.out = a2_.dtype();
      }
    }
    return desc;
  }
  GemmDesc gemm2_desc() const { return desc_of_gemm(a2_, w2_); }
  ExpertGemm gemm_of(const Call& call,
                     const RowOperand& a,
                     const WeightOperand& w,
                     const Tensor& out,
                     const Tensor& decoded) const {
    ExpertGemm gemm{a, &w, call.rows, out};
    const SlotOrder* order = call.input.order;
    gemm.is_fetched = order != nullptr && order->first_weights;
    if (gemm.is_fetched && &w == &w1_) {
      gemm.fetch = FetchAhead::of(w1_.values, order->first_weights.nbytes(), kFetchedByGemm1);
    }
    gemm.decoded = decoded;
    gemm.expected_rows = call.buffers.expected;
    gemm.keeps_f32 = desc_.in_dtype == DType::kF32;
    gemm.most_thin_code_rows = most_thin_code_rows();
    gemm.forced = forced_;
    return gemm;
  }
  // GEMM1 together with the activation.
  ActivatedGemm activated_gemm(const Call& call, const RowOperand& x) const {
    const CallBuffers& buffers = call.buffers;
    RowOperand activated;
    activated.values = buffers.act;
    const ExpertGemm gemm = gemm_of(call, x, w1_, {}, buffers.w1_decoded);
    return {gemm, desc_.activation, buffers.fuses_codes ? &a2_.spec() : nullptr,
            buffers.fuses_codes ? buffers.hidden : activated};
  }

  // The norms of lent weights are the experts' own, too.
  void make_norms(const GemmDesc& gemm, WeightOperand& w) const {
    if (needs_scale_norms(gemm, gpu_)) {
      w.scale_norms = Tensor::empty({w.values.dim(0), w.values.dim(1)}, DType::kF32, device_);
    }
  }
  static void make_maps(const GemmPlan& plan, WeightOperand& w) {
    const bool is_read_by_maps = plan.multiplier == Multiplier::kSm90 ||
                                 (plan.multiplier == Multiplier::kThin && !w.quant.format);
    if (is_read_by_maps && !plan.decodes()) {
      w.maps = std::make_shared<const WeightMaps>(w.values);
    }
  }

  // How GEMM1 would take rows with an index from where they lie.
  struct Fetch {
    bool by_index = false;
    bool as_they_arrive = false;
  };
  Fetch fetch_of_gemm1(const Call& call, const RowOperand& indexed) const {
    const CallBuffers& buffers = call.buffers;
    if (buffers.fuses_activation) {
      const GemmPlan plan = plan_of(activated_gemm(call, indexed));
      return {plan.activates && plan.takes_index(), plan.activates && plan.takes_arrivals()};
    }
    const GemmPlan plan = plan_of(gemm_of(call, indexed, w1_, buffers.gemm1, buffers.w1_decoded));
    return {plan.takes_index(), plan.takes_arrivals()};
  }

  RowGroups load_order(const ExpertsInput& input,
                       const CallBuffers& buffers,
                       const Stream& stream) const {
    if (is_batched()) {
      fill_words(buffers.next_item.raw(), buffers.next_item.numel(), 0, stream.native_handle(),
                 device_.index);
      RowGroups rows = RowGroups::batched(input.expert_num_tokens.data<int32_t>(), input.x.dim(1),
                                          desc_.num_local_experts);
      rows.settled = true;
      return rows;
    }
    if (input.order == nullptr) {
      make_order(input, buffers, stream);
    }
    return RowGroups::sorted(buffers.expert_offsets.data<int32_t>(), desc_.num_local_experts);
  }

  void make_order(const ExpertsInput& input,
                  const CallBuffers& buffers,
                  const Stream& stream) const {
    cuda_order_slots({.ids = input.topk_ids,
                      .expert_map = input.expert_map,
                      .num_local_experts = desc_.num_local_experts,
                      .expert_offsets = buffers.expert_offsets,
                      .token_of_row = buffers.token_of_row,
                      .row_of_slot = buffers.row_of_slot,
                      .expert_counts = input.row_counts,
                      .cleared = buffers.next_item},
                     stream);
  }

  RowAdapters row_adapters(const ExpertsInput& input, const CallBuffers& buffers) const {
    RowAdapters adapters{};
    if (input.lora_ids) {
      adapters.ids = input.lora_ids.data<int32_t>();
      adapters.token_of_row = is_batched() ? nullptr : buffers.token_of_row.data<int32_t>();
      adapters.num_adapters = static_cast<int>(desc_.num_adapters);
    }
    return adapters;
  }

  // Returns GEMM1's rows, in computing order, or where they lie together with the index of each.
  RowOperand load_input(Call& call, const RowPlan& plan) const {
    const auto& [input, buffers, rows, adapters, stream] = call;
    RowOperand x;
    x.values = as_rows(input.x);
    const bool is_coded = input.x.dtype() != desc_.in_dtype;
    const bool is_to_be_coded = a1_.active() && !is_coded;
    const bool codes_go_by_expert = is_to_be_coded && a1_.needs_groups() && !is_batched();
    if (is_to_be_coded || (is_coded && a1_.decodes())) {
      stream.wait(input.arrivals.complete);
    }
    const RowGroups used = is_batched() ? rows : RowGroups::all(x.values.dim(0));
    if (is_coded) {
      x = a1_.given(x.values, input.x_scale, used, buffers.coded, stream);
    } else if (is_to_be_coded && buffers.gemm1_codes && has_planned_alignment(x.values)) {
      x = a1_.deferred(x.values, buffers.coded);
    } else if (is_to_be_coded && !codes_go_by_expert) {
      a1_.encode(x.values, used, buffers.coded, stream);
      x = buffers.coded;
      // Sizes are complete when that kernel lets GEMM1 begin.  kSm90 is not told, since it would
      // fetch weights ahead, by which calls in int8 took 2 us longer.
      call.rows.settled = rows.settled || plan.gemm1.multiplier == Multiplier::kThin;
    }
    if (is_batched()) {
      return x;
    }
    RowOperand indexed = x;
    indexed.index = buffers.token_of_row;
    indexed.row_of_slot = buffers.row_of_slot;
    const bool may_fetch = !input.lora_ids && !codes_go_by_expert;
    const Fetch fetch = may_fetch ? fetch_of_gemm1(call, indexed) : Fetch{};
    if (fetch.as_they_arrive) {
      indexed.arrivals = input.arrivals.signals;
      return indexed;
    }
    stream.wait(input.arrivals.complete);
    if (fetch.by_index) {
      return indexed;
    }
    CudaPermuteArgs gather{x.values, buffers.row_of_slot, buffers.gathered.values};
    if (x.scales == RowScales::kPerRow) {
      gather.scale = x.scale;
      gather.out_scale = x.scale = buffers.gathered.scale;
    }
    x.values = gather.out;
    cuda_permute_rows(gather, stream);
    if (codes_go_by_expert) {
      a1_.encode(x.values, rows, buffers.coded, stream);
      x = buffers.coded;
    }
    return x;
  }

  GivenScales given_scales(const Call& call) const {
    if (!call.input.a2_scale) {
      return {};
    }
    return {call.input.a2_scale.data<float>(),
            is_batched() ? nullptr : call.buffers.token_of_row.data<int32_t>()};
  }

  // Computes GEMM2's rows, or what it activates or quantizes.
  RowOperand compute_hidden(Call& call, const RowOperand& x, const Tensor& output) const {
    const auto& [input, buffers, rows, adapters, stream] = call;
    if (buffers.fuses_activation) {
      ActivatedGemm fused = activated_gemm(call, x);
      fused.gemm.next_item = buffers.next_item;
      fused.gemm.max_sms = input.max_sms;
      if (run_activated_gemm(fused, stream)) {
        call.follow_gemm1();
        if (a2_.active() && !buffers.fuses_codes) {
          a2_.encode(buffers.act, rows, buffers.hidden, stream, given_scales(call));
        }
        return buffers.hidden;
      }
      assert(is_batched());
    }
    const LoraWeights& lora = weights_.lora;
    run_gemm(call, x, {w1_, buffers.w1_decoded, lora.w1_a, lora.w1_b, lora_halves()}, buffers.gemm1,
             {}, input.max_sms);
    call.follow_gemm1();
    // Batched results of a caller may not be aligned, and then only the other GEMMs store them.
    const bool is_as_planned = !is_batched() || has_planned_alignment(output);
    if (is_as_planned && (buffers.gemm2_activates || buffers.gemm2_codes)) {
      RowOperand unactivated;
      unactivated.values = buffers.gemm1;
      if (buffers.gemm2_codes) {
        unactivated = a2_.deferred(buffers.gemm1, buffers.hidden);
      }
      unactivated.activation = desc_.activation;
      return unactivated;
    }
    if (buffer_facts().activates_to_codes()) {
      a2_.activate(desc_.activation, buffers.gemm1, rows, buffers.hidden, stream,
                   given_scales(call));
      return buffers.hidden;
    }
    activate(desc_.activation, rows, buffers.gemm1, buffers.act, stream);
    if (a2_.active()) {
      a2_.encode(buffers.act, rows, buffers.hidden, stream, given_scales(call));
    }
    return buffers.hidden;
  }

  struct Columns {  // see GroupedGemm
    int64_t first = 0;
    int64_t num = 0;
  };

  void run_gemm2(const Call& call,
                 const RowOperand& hidden,
                 const Tensor& out,
                 const Columns& columns,
                 int max_sms) const {
    const LoraWeights& lora = weights_.lora;
    run_gemm(call, hidden, {w2_, call.buffers.w2_decoded, lora.w2_a, lora.w2_b, 1}, out, columns,
             max_sms);
  }

  // Computes GEMM2 and the sums of a token's rows, one part of the columns after the other.
  void finish_parts(const Call& call, const RowOperand& hidden, const Tensor& output) const {
    const auto& [input, buffers, rows, adapters, stream] = call;
    const ColumnParts& parts = input.parts;
    const int64_t width = desc_.hidden / parts.count;
    const Tensor by_part = output.view({parts.count, output.dim(0), width});
    for (int part = 0; part < parts.count; ++part) {
      const Columns columns = parts.count > 1 ? Columns{part * width, width} : Columns{};
      run_gemm2(call, hidden, buffers.gemm2, columns, part == 0 ? input.max_sms : parts.max_sms);
      cuda_weighted_sum(
          {.rows = buffers.gemm2,
           .row_of_slot = buffers.row_of_slot,
           .weights = input.apply_router_weight_on_input ? Tensor{} : input.topk_weights,
           .sums_in_type = sums_in_dtype(desc_.topk),
           .settled_terms = input.arrivals.signals.words == nullptr,
           .topk = desc_.topk,
           .output = by_part[part],
           .first_column = columns.first},
          stream);
      if (parts.count > 1) {
        parts.made(part);
      }
    }
  }

  // The weight and the adapters that a GEMM multiplies rows by.
  struct Factors {
    const WeightOperand& w;
    Tensor decoded;  // see ExpertGemm
    Tensor lora_a;   // see LoraGemm
    Tensor lora_b;
    int lora_halves;
  };

  void run_gemm(const Call& call,
                const RowOperand& a,
                const Factors& by,
                const Tensor& out,
                const Columns& columns,
                int max_sms) const {
    const auto& [input, buffers, rows, adapters, stream] = call;
    const auto multiply = [&](const Tensor& to) {
      ExpertGemm gemm = gemm_of(call, a, by.w, to, by.decoded);
      gemm.next_item = call.buffers.next_item;
      gemm.max_sms = max_sms;
      gemm.first_column = columns.first;
      gemm.num_columns = columns.num;
      run_expert_gemm(gemm, call.stream);
    };
    if (adapters.ids == nullptr || !by.lora_b) {
      multiply(out);
      return;
    }
    const LoraGemm lora = {
        .a = a,
        .lora_a = by.lora_a,
        .lora_b = by.lora_b,
        .scaling = weights_.lora.scaling,
        .halves = by.lora_halves,
        .is_interleaved = desc_.activation.interleaved,
        .rows = rows,
        .adapters = adapters,
        .shrunk = Tensor::borrow(buffers.shrunk, {out.dim(0), by.lora_halves * desc_.lora_rank},
                                 DType::kF32, device_)};
    const Tensor sums = Tensor::borrow(buffers.sums, out.shape(), DType::kF32, device_);
    lora_shrink(lora, stream);
    multiply(sums);
    lora_expand(lora, sums, out, stream);
  }

  Device device_;
  WeightOperand w1_;
  WeightOperand w2_;
  std::optional<Multiplier> forced_;
  RowCoder a1_;
  RowCoder a2_;
  GemmDesc gemm1_;  // with the activation, where GEMM1 may activate, and quantize, as it stores
  GemmDesc gemm2_;
  CudaDeviceInfo gpu_;
  mutable std::mutex row_plans_mutex_;
  mutable std::array<std::shared_ptr<const RowPlan>, 128> row_plans_;
};

}  // namespace

Support experts_support(const ExpertsDesc& desc, const ExpertWeights&) {
  if (cuda_device_count() == 0) {
    return Support::no("no GPU");
  }
  return within_limits(desc);
}

std::unique_ptr<Experts> make_cuda_experts(const ExpertsDesc& desc,
                                           ExpertWeights weights,
                                           const Stream& stream) {
  return std::make_unique<CudaExperts>(desc, std::move(weights), stream);
}

}  // namespace moebius::cuda
