// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "core/ceil_div.h"
#include "core/ids.h"
#include "core/same_device.h"
#include "core/scratch.h"
#include "experts/byte_limits.h"
#include "experts/permute.h"
#include "experts/weight_tensors.h"
#include "moebius/quantize.h"
#include "quant/groups.h"

namespace moebius {

namespace {

// The index of an element of a tensor [M] or [L, max_rows], as messages name it.
std::string row_index(const Tensor& tensor, int64_t row) {
  return tensor.num_dims() == 1 ? fmt::format("{}", row)
                                : fmt::format("{}, {}", row / tensor.dim(1), row % tensor.dim(1));
}

// One of w1 and w2: [L, rows, cols], whose block scales restart after gate_rows rows.
struct WeightSizes {
  std::string_view what;
  int64_t num_local_experts;
  int64_t rows;
  int64_t cols;
  int64_t gate_rows;
};

std::vector<Shape> scale_shapes(const QuantDesc& desc, const WeightSizes& w) {
  const int64_t l = w.num_local_experts;
  if (const int64_t group = quant::fixed_group_cols(*desc.format); group > 0) {
    return {{l, w.rows, ceil_div(w.cols, group)}};
  }
  if (!desc.shape || desc.shape->col <= 0) {
    return {{l}, {l, w.rows}, {l, w.rows, 1}};
  }
  const int64_t block = std::max<int64_t>(1, desc.shape->row);
  const int64_t row_blocks = w.rows / w.gate_rows * ceil_div(w.gate_rows, block);
  return {{l, row_blocks, ceil_div(w.cols, desc.shape->col)}};
}

void expect_one_of(const Tensor& tensor, const std::vector<Shape>& shapes, std::string_view what) {
  std::string expected;
  for (const Shape& shape : shapes) {
    if (tensor.shape() == shape) {
      return;
    }
    expected += (expected.empty() ? "" : " or ") + to_string(shape);
  }
  throw InvalidArgument(
      fmt::format("{} has shape {}, expected {}", what, to_string(tensor.shape()), expected));
}

void expect_float(const Tensor& tensor, std::string_view what) {
  expect(is_float(tensor.dtype()), [&] {
    return fmt::format("{} is {}, expected f32, bf16 or f16", what, name(tensor.dtype()));
  });
}

void expect_tensor(const Tensor& tensor, DType dtype, const Shape& shape, std::string_view what) {
  expect_defined(tensor, what);
  expect_dtype(tensor, dtype, what);
  expect_shape(tensor, shape, what);
}

// Zero points are codes 0 to 15, and 16, which GPTQ has for code -1.  On a GPU they are not
// checked.
void expect_int4_zero_points(const Tensor& zero_points, std::string_view what) {
  constexpr uint8_t kMost = 16;
  if (!zero_points.device().is_cpu()) {
    return;
  }
  if (const auto above = first_above(zero_points, 0xff, kMost)) {
    throw InvalidArgument(fmt::format("{}[{}] is {}, expected 0 to {} of int4", what, *above,
                                      zero_points.data<uint8_t>()[*above], kMost));
  }
}

void validate_scales(const QuantDesc& desc, const WeightSizes& w) {
  const std::string what = fmt::format("{}_scale", w.what);
  expect_defined(desc.scale, what);
  if (const DType dtype = quant::scale_dtype(*desc.format); dtype != DType::kF32) {
    expect_dtype(desc.scale, dtype, what);
  } else {
    expect_float(desc.scale, what);
  }
  expect_one_of(desc.scale, scale_shapes(desc, w), what);
  if (desc.format == QuantFormat::kNvfp4) {
    const std::string alphas = fmt::format("{} alphas", w.what);
    expect_defined(desc.alpha_or_gscale, alphas);
    expect_dtype(desc.alpha_or_gscale, DType::kF32, alphas);
    const int64_t l = w.num_local_experts;
    expect_one_of(desc.alpha_or_gscale, {{l}, {l, 2}}, alphas);
  }
  if (desc.zero_point) {
    const std::string zero_point = fmt::format("{}_zero_point", w.what);
    expect_tensor(desc.zero_point, DType::kU8, desc.scale.shape(), zero_point);
    if (desc.format == QuantFormat::kInt4) {
      expect_int4_zero_points(desc.zero_point, zero_point);
    }
  }
}

void validate_weight(const Tensor& tensor, const QuantDesc& desc, const WeightSizes& w) {
  expect_defined(tensor, w.what);
  expect_shape(tensor, {w.num_local_experts, w.rows, w.cols}, w.what);
  if (desc.format) {
    expect_dtype(tensor, storage_dtype(*desc.format), w.what);
    validate_scales(desc, w);
  } else {
    expect_float(tensor, w.what);
  }
  if (desc.bias) {
    const std::string bias = fmt::format("{}_bias", w.what);
    expect_float(desc.bias, bias);
    expect_shape(desc.bias, {w.num_local_experts, w.rows}, bias);
  }
}

// Checks a static scale or a global scale, which is one value or one per expert.
void validate_constant(const Tensor& constant, int64_t num_local_experts, std::string_view what) {
  if (!constant) {
    return;
  }
  expect_dtype(constant, DType::kF32, what);
  expect_one_of(constant, {{1}, {num_local_experts}}, what);
}

// Checks a1 or a2, whose rows have k elements.
void validate_activation_quant(const QuantDesc& desc,
                               int64_t k,
                               int64_t num_static_scales,
                               int64_t num_local_experts,
                               std::string_view what) {
  const auto spec = activation_spec(desc);
  if (!spec) {
    return;
  }
  const Support support = quantize_supported(*spec, 1, k);
  expect(support.ok, [&] { return fmt::format("{}: {}", what, support.reason); });
  expect(!desc.scale || spec->group.is_per_tensor(), [&] {
    return fmt::format(
        "{} has a static scale and groups of {{{}, {}}}, expected per tensor {{-1, -1}}", what,
        spec->group.row, spec->group.col);
  });
  validate_constant(desc.scale, num_static_scales, fmt::format("{}_scale", what));
  validate_constant(desc.alpha_or_gscale, num_local_experts, fmt::format("{}_gscale", what));
}

// The adapters of one weight [L, rows, cols]: A [adapters, L, halves * r, cols] and
// B [adapters, L, rows, r].
struct LoraSizes {
  std::string_view what;
  int64_t rows;
  int64_t cols;
  int64_t halves;
};

void validate_lora_pair(const Tensor& a,
                        const Tensor& b,
                        const ExpertsDesc& desc,
                        const LoraSizes& w) {
  if (!a && !b) {
    return;
  }
  const std::string a_name = fmt::format("lora {}_a", w.what);
  const std::string b_name = fmt::format("lora {}_b", w.what);
  expect_defined(a, a_name);
  expect_defined(b, b_name);
  expect_float(a, a_name);
  expect_float(b, b_name);
  const int64_t l = desc.num_local_experts;
  expect_shape(a, {desc.num_adapters, l, w.halves * desc.lora_rank, w.cols}, a_name);
  expect_shape(b, {desc.num_adapters, l, w.rows, desc.lora_rank}, b_name);
}

void validate_lora(const ExpertsDesc& desc, const LoraWeights& lora) {
  if (desc.num_adapters == 0) {
    expect(!lora.defined(), [&] {
      return fmt::format("num_adapters is 0, but lora weights of {} are given",
                         lora.num_adapters());
    });
    return;
  }
  expect(lora.defined(), [&] {
    return fmt::format("num_adapters is {}, but lora weights of none are given", desc.num_adapters);
  });
  expect_tensor(lora.scaling, DType::kF32, {desc.num_adapters}, "lora scaling");
  expect(lora.w1_b || lora.w2_b, [&] {
    return fmt::format("num_adapters is {}, but neither lora w1_b nor w2_b is given",
                       desc.num_adapters);
  });
  const int64_t halves = desc.activation.gated ? 2 : 1;
  validate_lora_pair(lora.w1_a, lora.w1_b, desc, {"w1", desc.w1_rows(), desc.hidden, halves});
  validate_lora_pair(lora.w2_a, lora.w2_b, desc, {"w2", desc.hidden, desc.intermediate, 1});
}

void validate_codes(const Experts& experts, const ExpertsInput& input) {
  const ExpertsDesc& desc = experts.desc();
  const QuantConfig& quant = experts.quant();
  const ExpertsTraits& traits = experts.traits();
  if (!quant.a1.format ||
      (traits.expects_unquantized_inputs && !traits.takes_quantized_transfers)) {
    throw InvalidArgument(
        fmt::format("x is {}, expected {}", name(input.x.dtype()), name(desc.in_dtype)));
  }
  const DType codes = storage_dtype(*quant.a1.format);
  expect(input.x.dtype() == codes, [&] {
    return fmt::format("x is {}, expected {} or {}", name(input.x.dtype()), name(desc.in_dtype),
                       name(codes));
  });
  expect_defined(input.x_scale, "x_scale of a quantized x");
  if (traits.takes_quantized_transfers) {  // mx and nvfp4: every row has scales of its own
    const int64_t num_scales = quant::num_row_scales(*activation_spec(quant.a1), desc.hidden);
    const Shape scales = desc.format == ActivationFormat::kStandard
                             ? Shape{input.x.dim(0), num_scales}
                             : Shape{desc.num_local_experts, input.x.dim(1), num_scales};
    expect_tensor(input.x_scale, quant::scale_dtype(*quant.a1.format), scales, "x_scale");
    return;
  }
  if (desc.format == ActivationFormat::kStandard) {
    const auto shape = quant.scale_shape(input.x.dim(0), desc.hidden);
    expect_tensor(input.x_scale, DType::kF32, Shape(std::span(*shape)), "x_scale");
  } else {
    const auto shape =
        quant.batched_scale_shape(desc.num_local_experts, input.x.dim(1), desc.hidden);
    expect_tensor(input.x_scale, DType::kF32, Shape(std::span(*shape)), "x_scale");
  }
}

void expect_room(
    const Tensor& tensor, const Shape& shape, DType dtype, Device device, std::string_view what) {
  if (shape.numel() == 0) {
    return;
  }
  expect_defined(tensor, what);
  expect_dtype(tensor, dtype, what);
  expect(tensor.numel() >= shape.numel(), [&] {
    return fmt::format("number of elements of {} is {}, expected at least {}", what, tensor.numel(),
                       shape.numel());
  });
  expect_on(tensor, device, what);
}

}  // namespace

void validate_activation(const ActivationSpec& spec) {
  const bool clamps = spec.kind == Activation::kSwigluOai || spec.kind == Activation::kSwigluStep;
  expect(spec.gated || !clamps, [&] {
    return fmt::format("activation {} is not gated, expected gated", name(spec.kind));
  });
  expect(!clamps || spec.limit > 0.0f, [&] {
    return fmt::format("activation {} has limit {}, expected above 0", name(spec.kind), spec.limit);
  });
  const auto expect_finite = [&](float value, std::string_view what) {
    expect(spec.kind != Activation::kSwigluOai || std::isfinite(value), [&] {
      return fmt::format("activation {} has {} {}, expected finite", name(spec.kind), what, value);
    });
  };
  expect_finite(spec.alpha, "alpha");
  expect_finite(spec.beta, "beta");
  expect(!spec.gated || spec.kind != Activation::kRelu2,
         "activation relu2 is gated, expected not gated");
  expect(spec.gated || !spec.interleaved, "activation is interleaved but not gated");
}

void validate_experts_desc(const ExpertsDesc& desc) {
  expect_ge(desc.num_experts, 1, "num_experts");
  expect_ge(desc.num_local_experts, 1, "num_local_experts");
  expect_le(desc.num_local_experts, desc.num_experts, "num_local_experts");
  expect_ge(desc.topk, 1, "topk");
  expect_le(desc.topk, desc.num_experts, "topk");
  expect_ge(desc.hidden, 1, "hidden");
  expect_ge(desc.intermediate, 1, "intermediate");
  expect(is_float(desc.in_dtype), [&] {
    return fmt::format("in_dtype is {}, expected f32, bf16 or f16", name(desc.in_dtype));
  });
  validate_activation(desc.activation);
  expect_ge(desc.num_adapters, 0, "num_adapters");
  expect((desc.num_adapters > 0) == (desc.lora_rank > 0) && desc.lora_rank >= 0, [&] {
    return fmt::format("num_adapters is {} and lora_rank {}, expected both positive or both 0",
                       desc.num_adapters, desc.lora_rank);
  });
}

void validate_expert_weights(const ExpertsDesc& desc, const ExpertWeights& weights) {
  weights.quant.validate();
  validate_side(desc, weights, "w1");
  validate_side(desc, weights, "w2");
  validate_lora(desc, weights.lora);
}

void validate_side(const ExpertsDesc& desc, const ExpertWeights& weights, std::string_view name) {
  const int64_t l = desc.num_local_experts;
  const QuantConfig& quant = weights.quant;
  if (name == "w1") {
    validate_weight(weights.w1, quant.w1, {name, l, desc.w1_rows(), desc.hidden, gate_rows(desc)});
    validate_activation_quant(quant.a1, desc.hidden, 1, l, "a1");
  } else {
    validate_weight(weights.w2, quant.w2, {name, l, desc.hidden, desc.intermediate, desc.hidden});
    validate_activation_quant(quant.a2, desc.intermediate, l, l, "a2");
  }
}

void validate_weights_device(const ExpertsDesc& desc, const ExpertWeights& weights, Device device) {
  const bool is_lent = desc.weight_memory == WeightMemory::kLent;
  for_each_tensor(weights, [&](const Tensor& tensor, std::string_view what) {
    if (tensor && (is_lent || !tensor.device().is_cpu())) {
      expect_on(tensor, device, is_lent ? fmt::format("{} (lent)", what) : std::string(what));
    }
  });
}

void validate_lora_ids(const ExpertsDesc& desc, const Tensor& lora_ids, const RowOrder& order) {
  const auto* ids = lora_ids.data<int32_t>();
  for (int64_t r = 0; r < order.num_rows; ++r) {
    const int64_t row = order.input_row(r);
    if (ids[row] >= -1 && ids[row] < desc.num_adapters) {
      continue;
    }
    throw InvalidArgument(
        fmt::format("lora_ids[{}] is {}, expected -1 to {}: there are {} adapters",
                    row_index(lora_ids, row), ids[row], desc.num_adapters - 1, desc.num_adapters));
  }
}

void expect_a2_scale(const Experts& experts, const Tensor& a2_scale, const Shape& shape) {
  const bool is_brought = experts.quant().a2.calls_bring_scales;
  expect(is_brought == a2_scale.defined(), [&] {
    return fmt::format("a2_scale is {}, but the calls of experts {} {} scales of a2",
                       is_brought ? "missing" : "given", experts.name(),
                       is_brought ? "bring" : "do not bring");
  });
  if (is_brought) {
    expect_tensor(a2_scale, DType::kF32, shape, "a2_scale");
  }
}

void validate_a2_scale(const Tensor& a2_scale, const RowOrder& order) {
  const auto* scales = a2_scale.data<float>();
  for (int64_t r = 0; r < order.num_rows; ++r) {
    const int64_t row = order.input_row(r);
    if (scales[row] > 0.0f && std::isfinite(scales[row])) {
      continue;
    }
    throw InvalidArgument(fmt::format("a2_scale[{}] is {}, expected above 0 and finite",
                                      row_index(a2_scale, row), scales[row]));
  }
}

void validate_call(const Experts& experts,
                   const ExpertsInput& input,
                   const Tensor& output,
                   const Tensor& intermediate,
                   const Tensor& scratch,
                   Device device) {
  const ExpertsDesc& desc = experts.desc();
  const bool batched = desc.format == ActivationFormat::kBatched;
  expect_ge(input.parts.count, 1, "parts");
  expect(input.parts.count == 1 || experts.traits().gives_parts, [&] {
    return fmt::format("{} parts of the output, experts {} give it whole", input.parts.count,
                       experts.name());
  });
  expect_multiple_of(desc.hidden, int64_t{input.parts.count}, "hidden (of parts)");
  expect(input.parts.count == 1 || input.parts.made, "parts without anybody to tell of them");
  expect_defined(input.x, "x");
  expect_eq(input.x.num_dims(), batched ? 3 : 2, "number of dimensions of x");
  expect_eq(input.x.shape().back(), desc.hidden, "last dimension of x");
  const int64_t rows = input.x.dim(batched ? 1 : 0);
  if (batched) {
    expect_eq(input.x.dim(0), desc.num_local_experts, "x.dim(0)");
    expect_tensor(input.expert_num_tokens, DType::kI32, {desc.num_local_experts},
                  "expert_num_tokens");
  } else {
    expect_id_dtype(input.topk_ids, "topk_ids");
    expect_shape(input.topk_ids, {rows, desc.topk}, "topk_ids");
    if (input.expert_map) {
      expect_tensor(input.expert_map, DType::kI32, {desc.num_experts}, "expert_map");
    }
  }
  if (input.x.dtype() != desc.in_dtype) {
    validate_codes(experts, input);
  }
  if (input.lora_ids) {
    expect_tensor(input.lora_ids, DType::kI32,
                  batched ? Shape{desc.num_local_experts, rows} : Shape{rows}, "lora_ids");
    expect(desc.num_adapters > 0, "lora_ids are given, but num_adapters is 0");
  }
  expect_a2_scale(experts, input.a2_scale,
                  batched ? Shape{desc.num_local_experts, rows} : Shape{rows});
  if (input.row_counts) {
    expect(experts.traits().counts_rows, [&] {
      return fmt::format("row_counts are given, experts {} do not count {} rows", experts.name(),
                         name(desc.format));
    });
    expect_tensor(input.row_counts, DType::kI32, {desc.num_local_experts}, "row_counts");
    expect_writable(input.row_counts, "row_counts");
  }
  if (input.order) {
    expect(experts.traits().takes_order, [&] {
      return fmt::format("an order is given, experts {} make that of {} rows themselves",
                         experts.name(), name(desc.format));
    });
    expect(!input.row_counts, "row_counts are given, but the order has counted the rows");
    expect_order(*input.order, rows, desc.topk, desc.num_local_experts, device);
  }

  if (experts.traits().weight_and_reduce == WeightAndReduceKind::kNoOp &&
      !input.apply_router_weight_on_input) {
    expect_tensor(input.topk_weights, DType::kF32, {rows, desc.topk}, "topk_weights");
    expect_on(input.topk_weights, device, "topk_weights");
  }

  const std::pair<const Tensor*, std::string_view> operands[] = {
      {&input.x, "x"},
      {&input.x_scale, "x_scale"},
      {&input.topk_ids, "topk_ids"},
      {&input.expert_num_tokens, "expert_num_tokens"},
      {&input.expert_map, "expert_map"},
      {&input.lora_ids, "lora_ids"},
      {&input.a2_scale, "a2_scale"},
      {&input.row_counts, "row_counts"}};
  for (const auto& [operand, what] : operands) {
    if (*operand) {
      expect_on(*operand, device, what);
    }
  }

  const ExpertsWorkspace needed = experts.workspace(rows);
  expect_le(rows * (batched ? desc.num_local_experts : desc.topk),
            std::numeric_limits<int32_t>::max(), "number of selections");
  expect_tensor(output, needed.dtype, needed.output, "output");
  expect_on(output, device, "output");
  expect_writable(output, "output");
  expect_room(intermediate, needed.intermediate, needed.dtype, device, "intermediate");
  if (needed.scratch_bytes > 0) {
    expect_defined(scratch, "scratch");
    expect_ge(scratch.nbytes(), needed.scratch_bytes, "bytes of scratch");
    expect_on(scratch, device, "scratch");
    expect_multiple_of(
        static_cast<int64_t>(reinterpret_cast<uintptr_t>(scratch.raw()) % Scratch::kAlignment),
        Scratch::kAlignment, "address of scratch");
  }
}

}  // namespace moebius
