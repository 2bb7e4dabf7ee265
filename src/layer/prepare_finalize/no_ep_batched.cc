// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// One rank, batched format: every selected row is copied to its expert's block.  The reference for
// backends that dispatch into the batched layout.
#include <cstring>

#include "comm/routing/route.h"
#include "core/parallel.h"
#include "core/same_device.h"
#include "experts/cuda/rows/permute.h"
#include "layer/kernel_checks.h"
#include "layer/prepare_finalize/prepare_rows.h"
#include "layer/rows/batched_rows.h"
#include "layer/rows/cuda/rows.h"
#include "layer/rows/reduce_rows.h"
#include "moebius/prepare_finalize.h"

namespace moebius {

namespace {

// Ids as indices of local experts, -1 = masked or foreign.
void map_ids(const Tensor& ids, const Tensor& expert_map, const Tensor& local_ids) {
  const auto* id = ids.data<int32_t>();
  const auto* map = expert_map.data<int32_t>();
  auto* local = local_ids.data<int32_t>();
  for (int64_t i = 0; i < ids.numel(); ++i) {
    local[i] = id[i] < 0 ? -1 : map[id[i]];
  }
}

// lora_ids i32 [T] -> i32 [L, max_rows], rows in use.
void spread_lora_ids(const Tensor& lora_ids,
                     const BatchedRows& rows,
                     int64_t topk,
                     const Tensor& row_ids) {
  for (size_t i = 0; i < rows.row.size(); ++i) {
    if (rows.row[i] >= 0) {
      const auto token = static_cast<int64_t>(i) / topk;
      row_ids.data<int32_t>()[rows.row[i]] = lora_ids.data<int32_t>()[token];
    }
  }
}

// x [L, max_rows, ...]: row i of the selections' tokens to its place.
void gather(const Tensor& hidden,
            const BatchedRows& rows,
            int64_t topk,
            const Tensor& x,
            const Stream& stream) {
  constexpr int64_t kRowsPerTask = 8;
  const auto row_bytes = static_cast<size_t>(hidden.dim(1) * bits(hidden.dtype()) / 8);
  parallel_for(
      stream, static_cast<int64_t>(rows.row.size()), kRowsPerTask, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t row = rows.row[static_cast<size_t>(i)];
          if (row >= 0) {
            std::memcpy(x.bytes() + static_cast<size_t>(row) * row_bytes,
                        hidden.bytes() + static_cast<size_t>(i / topk) * row_bytes, row_bytes);
          }
        }
      });
}

class NoEpBatched final : public PrepareFinalize {
 public:
  NoEpBatched(int64_t max_num_tokens, int64_t num_local_experts)
      : PrepareFinalize({.name = "no_ep_batched",
                         .activation_format = ActivationFormat::kBatched,
                         .max_tokens_per_rank = max_num_tokens,
                         .localizes_ids = true}),
        max_num_tokens_(max_num_tokens),
        num_local_experts_(num_local_experts) {
    expect_ge(max_num_tokens, 1, "max_num_tokens");
    expect_ge(num_local_experts, 1, "num_local_experts");
  }

  void expect_room(const Tensor& topk_ids, const Tensor& expert_map) const override {
    Tensor local_ids = topk_ids;
    if (expert_map) {
      local_ids = Tensor::empty(topk_ids.shape(), DType::kI32);
      map_ids(topk_ids, expert_map, local_ids);
    }
    batched_rows(local_ids, 0, num_local_experts_, max_num_tokens_);
  }

  Support accepts(WeightAndReduceKind kind) const override {
    return kind == WeightAndReduceKind::kDelegate || kind == WeightAndReduceKind::kNaiveBatched
               ? Support::yes()
               : Support::no("rows are batched, so only delegate and naive batched reduce them");
  }
  Support accepts(const QuantConfig& quant, bool defer_input_quant) const override {
    return rows_quant_supported(quant, defer_input_quant, num_local_experts_);
  }

  PrepareResult prepare(const PrepareInput& input, const CallContext& context) override {
    expect_prepare_input(input, context);
    if (input.topk_ids.device().is_cpu()) {
      expect_ids(input.topk_ids, input.num_experts);
    }
    if (input.expert_map) {
      expect_expert_map(input.expert_map, input.num_experts, num_local_experts_);
      expect_on(input.expert_map, input.topk_ids.device(), "expert_map");
    }
    const int64_t num_tokens = input.hidden.dim(0);
    const int64_t hidden = input.hidden.dim(1);
    const int64_t topk = input.topk_ids.dim(1);
    expect_le(num_tokens, max_num_tokens_, "number of tokens (max_num_tokens)");

    const auto spec = rows_quant_spec(input);
    const Shape rows_shape{num_local_experts_, max_num_tokens_, hidden};
    const QuantizedSpecs specs =
        spec ? batched_quantized_specs(*spec, rows_shape) : QuantizedSpecs{{{0, 0}}, {{0, 0}}};
    const Shape lora_shape{input.lora_ids ? num_local_experts_ : 0, max_num_tokens_};
    const bool is_cuda = context.stream.device().is_cuda();
    const auto [rows, counts, mapped_ids, values, scale, lora_ids, row_of_slot] =
        context.get(WorkspaceSlot::kPrepare,
                    {{rows_shape, input.hidden.dtype()},
                     {{num_local_experts_}, DType::kI32},
                     {input.expert_map ? input.topk_ids.shape() : Shape{0}, DType::kI32},
                     specs.values,
                     specs.scale,
                     {lora_shape, DType::kI32},
                     {is_cuda ? Shape{num_tokens, topk} : Shape{0}, DType::kI32}});

    PrepareResult result;
    result.x = rows;
    result.expert_num_tokens = counts;
    Tensor local_ids = input.topk_ids;
    if (input.expert_map) {
      local_ids = mapped_ids;
      is_cuda ? cuda_map_ids(input.topk_ids, input.expert_map, local_ids, context.stream)
              : map_ids(input.topk_ids, input.expert_map, local_ids);
      result.topk_ids = local_ids;
      result.topk_weights = input.topk_weights;
    }
    if (input.lora_ids) {
      result.lora_ids = lora_ids;
    }
    is_cuda ? place_on_gpu(input, local_ids, row_of_slot, result, context)
            : place(input, local_ids, result, context);
    if (spec) {
      quantize_batched_rows(rows, counts, *spec, input.quant->a1, values, scale, context.stream);
      result.x = values;
      result.x_scale = scale;
    }
    return result;
  }

  void finalize(const FinalizeInput& input, const CallContext& context) override {
    reduce_rows(input, *naive_batched_, input.output, context.stream);
  }

 private:
  // Fills result's rows, their counts and adapters.
  void place(const PrepareInput& input,
             const Tensor& local_ids,
             const PrepareResult& result,
             const CallContext& context) const {
    const int64_t topk = local_ids.dim(1);
    const BatchedRows rows = batched_rows(local_ids, 0, num_local_experts_, max_num_tokens_);
    std::copy(rows.counts.begin(), rows.counts.end(), result.expert_num_tokens.data<int32_t>());
    gather(weighted_input(input, context), rows, topk, result.x, context.stream);
    if (result.lora_ids) {
      spread_lora_ids(input.lora_ids, rows, topk, result.lora_ids);
    }
  }

  // The same; rows without room, which the CPU refuses, are left out.
  void place_on_gpu(const PrepareInput& input,
                    const Tensor& local_ids,
                    const Tensor& row_of_slot,
                    const PrepareResult& result,
                    const CallContext& context) const {
    const int64_t num_rows = num_local_experts_ * max_num_tokens_;
    cuda_order_slots({.ids = local_ids,
                      .num_local_experts = num_local_experts_,
                      .max_rows = max_num_tokens_,
                      .row_of_slot = row_of_slot},
                     context.stream);
    cuda_count_rows(row_of_slot, max_num_tokens_, result.expert_num_tokens, context.stream);
    cuda_permute_rows(
        {weighted_input(input, context), row_of_slot, result.x.view({num_rows, result.x.dim(2)})},
        context.stream);
    if (result.lora_ids) {
      cuda_permute_rows({input.lora_ids.view({input.lora_ids.dim(0), 1}), row_of_slot,
                         result.lora_ids.view({num_rows, 1})},
                        context.stream);
    }
  }

  int64_t max_num_tokens_;
  int64_t num_local_experts_;
  std::unique_ptr<WeightAndReduce> naive_batched_ =
      make_weight_and_reduce(WeightAndReduceKind::kNaiveBatched);
};

}  // namespace

std::unique_ptr<PrepareFinalize> make_no_ep_batched(int64_t max_num_tokens,
                                                    int64_t num_local_experts) {
  return std::make_unique<NoEpBatched>(max_num_tokens, num_local_experts);
}

}  // namespace moebius
