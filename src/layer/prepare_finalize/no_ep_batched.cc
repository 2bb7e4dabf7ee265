// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// One rank, batched format: every selected row is copied to its expert's block.  It is the
// reference for backends that dispatch into the batched layout.
#include <span>
#include <utility>
#include <vector>

#include "comm/routing/route.h"
#include "core/device_traits.h"
#include "core/same_device.h"
#include "layer/kernel_checks.h"
#include "layer/prepare_finalize/reducing.h"
#include "layer/rows/batched_rows.h"
#include "layer/rows/quantize_rows.h"
#include "layer/rows/row_ops.h"

namespace moebius {

namespace {

class NoEpBatched final : public ReducingPrepareFinalize {
 public:
  NoEpBatched(int64_t max_num_tokens, int64_t num_local_experts)
      : ReducingPrepareFinalize({.name = "no_ep_batched",
                                 .activation_format = ActivationFormat::kBatched,
                                 .max_tokens_per_rank = max_num_tokens,
                                 .localizes_ids = true},
                                num_local_experts),
        max_num_tokens_(max_num_tokens),
        num_local_experts_(num_local_experts) {
    expect_ge(max_num_tokens, 1, "max_num_tokens");
    expect_ge(num_local_experts, 1, "num_local_experts");
  }

  void expect_room(const Tensor& topk_ids, const Tensor& expert_map) const override {
    Tensor local_ids = topk_ids;
    std::vector<int32_t> mapped;
    if (expert_map) {
      mapped.resize(static_cast<size_t>(topk_ids.numel()));
      local_ids = Tensor::borrow(mapped.data(), topk_ids.shape(), DType::kI32);
      map_ids(topk_ids, expert_map, local_ids, Stream());
    }
    batched_rows(local_ids, 0, num_local_experts_, max_num_tokens_);
  }

  PrepareResult prepare(const PrepareInput& input, const CallContext& context) override {
    expect_prepare_input(input, context);
    expect_extras(input, traits());
    if (device_traits(input.topk_ids.device()).host_reads) {
      expect_ids(input.topk_ids, input.num_experts);
    }
    if (input.expert_map) {
      expect_expert_map(input.expert_map, input.num_experts, num_local_experts_);
      expect_on(input.expert_map, input.topk_ids.device(), "expert_map");
    }
    const int64_t num_tokens = input.hidden.dim(0);
    const int64_t hidden = input.hidden.dim(1);
    expect_le(num_tokens, max_num_tokens_, "number of tokens (max_num_tokens)");

    const auto spec = rows_quant_spec(input);
    const Shape rows_shape{num_local_experts_, max_num_tokens_, hidden};
    const QuantizedSpecs specs =
        spec ? batched_quantized_specs(*spec, rows_shape) : QuantizedSpecs{{{0, 0}}, {{0, 0}}};
    const Shape lora_shape{input.lora_ids ? num_local_experts_ : 0, max_num_tokens_};
    const auto [rows, counts, mapped_ids, values, scale, lora_ids, scratch] =
        context.get(WorkspaceSlot::kPrepare,
                    {{rows_shape, input.hidden.dtype()},
                     {{num_local_experts_}, DType::kI32},
                     {input.expert_map ? input.topk_ids.shape() : Shape{0}, DType::kI32},
                     specs.values,
                     specs.scale,
                     {lora_shape, DType::kI32},
                     place_rows_scratch(input.topk_ids.shape(), context.stream.device())});

    PrepareResult result;
    result.x = rows;
    result.expert_num_tokens = counts;
    Tensor local_ids = input.topk_ids;
    if (input.expert_map) {
      local_ids = mapped_ids;
      map_ids(input.topk_ids, input.expert_map, local_ids, context.stream);
      result.topk_ids = local_ids;
      result.topk_weights = input.topk_weights;
    }
    if (input.lora_ids) {
      result.lora_ids = lora_ids;
    }
    std::vector<Tensor> beside = input.extras;
    result.extras = extra_rows(
        input, [&](const Tensor& extra) { return batched_shape(extra); }, context);
    std::vector<Tensor> rows_beside = result.extras;
    if (input.lora_ids) {
      beside.push_back(input.lora_ids);
      rows_beside.push_back(lora_ids);
    }
    place_rows({.x = weighted_input(input, context),
                .local_ids = local_ids,
                .beside = std::move(beside),
                .scratch = scratch,
                .rows = rows,
                .counts = counts,
                .rows_beside = std::move(rows_beside)},
               context.stream);
    if (spec) {
      quantize_batched_rows(rows, counts, {*spec, input.quant->a1}, {values, scale},
                            context.stream);
      result.x = values;
      result.x_scale = scale;
    }
    return result;
  }

  void finalize(const FinalizeInput& input, const CallContext& context) override {
    reduce(input, input.output, context.stream);
  }

 private:
  // [L, max_rows, ...] for a tensor [T, ...].
  Shape batched_shape(const Tensor& of_tokens) const {
    std::vector<int64_t> dims = {num_local_experts_, max_num_tokens_};
    for (int d = 1; d < of_tokens.num_dims(); ++d) {
      dims.push_back(of_tokens.dim(d));
    }
    return Shape(std::span<const int64_t>(dims));
  }

  int64_t max_num_tokens_;
  int64_t num_local_experts_;
};

}  // namespace

std::unique_ptr<PrepareFinalize> make_no_ep_batched(int64_t max_num_tokens,
                                                    int64_t num_local_experts) {
  return std::make_unique<NoEpBatched>(max_num_tokens, num_local_experts);
}

}  // namespace moebius
