// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/quantized_rows.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "core/parallel.h"
#include "experts/cpu/kernels.h"
#include "quant/e4m3_values.h"
#include "quant/given_scales.h"
#include "quant/groups.h"

namespace moebius {

namespace {

constexpr int64_t kRowGrain = 16;

Tensor as_rows(const Tensor& x) {
  return x.view({x.numel() / x.shape().back(), x.shape().back()});
}

// Calls body(expert, begin, end) for each part of the rows, sorted by expert, that is quantized by
// a call of its own.
template <typename Body>
void for_each_sorted_group(const CallRows& call, Body body) {
  const RowOrder& order = call.order;
  if (!call.quantizer.per_expert()) {
    body(0, 0, order.num_rows);
    return;
  }
  for (int64_t e = 0; e < call.desc.num_local_experts; ++e) {
    if (order.rows_of(e) > 0) {
      body(e, order.expert_offsets[e], order.expert_offsets[e + 1]);
    }
  }
}

// The same for x's rows in x's order: all of them, or the valid rows of each expert.
template <typename Body>
void for_each_input_group(const CallRows& call, int64_t num_input_rows, Body body) {
  const ExpertsDesc& desc = call.desc;
  const RowOrder& order = call.order;
  if (desc.format == ActivationFormat::kStandard) {
    body(0, 0, num_input_rows);
    return;
  }
  const int64_t max_rows = order.num_slots / desc.num_local_experts;
  for (int64_t e = 0; e < desc.num_local_experts; ++e) {
    if (order.rows_of(e) > 0) {
      body(e, e * max_rows, e * max_rows + order.rows_of(e));
    }
  }
}

void widen_rows(const Tensor& rows, const Tensor& values, const Stream& stream) {
  const int64_t k = rows.dim(1);
  const auto& kernels = cpu::cpu_kernels();
  parallel_for(stream, rows.dim(0), kRowGrain, [&](int64_t begin, int64_t end) {
    kernels.widen(rows.dtype(), rows.slice(begin, end).raw(), values.data<float>() + begin * k,
                  (end - begin) * k);
  });
}

// Spreads x_scale to one set of scales per row.  In the batched format, scales per tensor are one
// per expert.
void spread_scales(const ExpertsDesc& desc,
                   const Tensor& x_scale,
                   int64_t num_rows,
                   int64_t num_blocks,
                   float* scales) {
  const float* given = x_scale.data<float>();
  if (x_scale.numel() == num_rows * num_blocks) {
    std::copy_n(given, num_rows * num_blocks, scales);
    return;
  }
  const int64_t rows_per_scale =
      desc.format == ActivationFormat::kBatched ? num_rows / desc.num_local_experts : num_rows;
  for (int64_t i = 0; i < num_rows * num_blocks; ++i) {
    scales[i] = given[i / num_blocks / rows_per_scale];
  }
}

void decode(const Tensor& codes,
            const float* scales,
            int64_t num_blocks,
            int64_t block,
            const Tensor& values,
            const Stream& stream) {
  const int64_t k = codes.dim(1);
  parallel_for(stream, codes.dim(0), kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      decode_row(codes.bytes() + r * k, codes.dtype(), scales + r * num_blocks, block, k,
                 values.data<float>() + r * k);
    }
  });
}

}  // namespace

void decode_row(const std::byte* codes,
                DType dtype,
                const float* scales,
                int64_t block,
                int64_t k,
                float* out) {
  const auto* row = reinterpret_cast<const uint8_t*>(codes);
  const bool is_fp8 = dtype == DType::kF8E4M3;
  for (int64_t i = 0; i < k; ++i) {
    const float code =
        is_fp8 ? quant::kE4M3Values[row[i]] : static_cast<float>(static_cast<int8_t>(row[i]));
    out[i] = code * scales[i / block];
  }
}

RowQuantizer::RowQuantizer(const QuantDesc& desc, ActivationFormat format)
    : spec_(activation_spec(desc)),
      static_scale_(desc.scale),
      global_scale_(desc.alpha_or_gscale),
      takes_scales_(desc.calls_bring_scales) {
  if (!spec_) {
    return;
  }
  const bool is_nvfp4 = spec_->format == QuantFormat::kNvfp4;
  const Tensor& constant = is_nvfp4 ? global_scale_ : static_scale_;
  const bool over_all_rows = spec_->group.is_per_tensor();
  per_expert_ =
      constant ? constant.numel() > 1 : over_all_rows && format == ActivationFormat::kBatched;
}

int64_t RowQuantizer::num_blocks(int64_t k) const {
  const int64_t block = spec_ ? spec_->group.col : k;
  return block > 0 ? (k + block - 1) / block : 1;
}

Tensor RowQuantizer::of_expert(const Tensor& constant, int64_t e) const {
  return constant && constant.numel() > 1 ? constant.view({constant.numel()}).slice(e, e + 1)
                                          : constant;
}

void RowQuantizer::values(const Tensor& rows,
                          int64_t e,
                          const Tensor& values,
                          const float* scales,
                          const Stream& stream) const {
  if (takes_scales_) {
    return quant::quantize_dequantize_given(rows, *spec_, scales, values, stream);
  }
  quantize_dequantize(rows, *spec_, values, stream, of_expert(static_scale_, e),
                      of_expert(global_scale_, e));
}

void RowQuantizer::decode(const Tensor& codes,
                          const Tensor& scale,
                          const Tensor& values,
                          const Stream& stream) const {
  if (!spec_->global_scale_per_row) {
    Quantized q;
    q.values = codes;
    q.scale = scale;
    q.global_scale = global_scale_;
    dequantize(q, *spec_, values, stream);
    return;
  }
  const int64_t num_scales = scale.dim(1) - quant::kRowGlobalScaleBytes;
  parallel_for(stream, codes.dim(0), kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      std::byte* scales = scale.slice(r, r + 1).bytes();
      float global_scale;
      std::memcpy(&global_scale, scales + num_scales, sizeof(global_scale));
      Quantized q;
      q.values = codes.slice(r, r + 1);
      q.scale = Tensor::borrow(scales, {1, num_scales}, scale.dtype());
      q.global_scale = Tensor::borrow(&global_scale, {1}, DType::kF32);
      dequantize(q, *spec_, values.slice(r, r + 1), Stream::cpu(1));
    }
  });
}

void RowQuantizer::codes(
    const Tensor& rows, int64_t e, const Tensor& codes, float* scales, const Stream& stream) const {
  const int64_t num_rows = rows.dim(0);
  if (num_rows == 0) {
    return;
  }
  if (takes_scales_) {
    return quant::quantize_given(rows, *spec_, scales, codes, stream);
  }
  const bool per_tensor = spec_->group.is_per_tensor();
  const Shape scale_shape = per_tensor ? Shape{1, 1} : Shape{num_rows, num_blocks(rows.dim(1))};
  Quantized out;
  out.values = codes;
  out.scale = Tensor::borrow(scales, scale_shape, DType::kF32);
  quantize(rows, *spec_, out, stream, of_expert(static_scale_, e));
  if (per_tensor) {
    std::fill_n(scales, num_rows, scales[0]);
  }
}

void CallRows::input_values(const ExpertsInput& input, const Tensor& values, float* scales) const {
  const Tensor x = as_rows(input.x);
  const int64_t k = x.dim(1);
  if (x.dtype() != desc.in_dtype && !takes_codes(quantizer.spec().format)) {
    const Tensor scale = as_rows(input.x_scale);
    for_each_input_group(*this, x.dim(0), [&](int64_t, int64_t begin, int64_t end) {
      quantizer.decode(x.slice(begin, end), scale.slice(begin, end), values.slice(begin, end),
                       stream);
    });
    return;
  }
  if (x.dtype() != desc.in_dtype) {
    const int64_t num_blocks = quantizer.num_blocks(k);
    const int64_t block = num_blocks == 1 ? k : quantizer.spec().group.col;
    spread_scales(desc, input.x_scale, x.dim(0), num_blocks, scales);
    for_each_input_group(*this, x.dim(0), [&](int64_t, int64_t begin, int64_t end) {
      decode(x.slice(begin, end), scales + begin * num_blocks, num_blocks, block,
             values.slice(begin, end), stream);
    });
    return;
  }
  if (InputRows(quantizer, desc.format).gathered) {
    const size_t bytes = static_cast<size_t>(k * bits(x.dtype()) / 8);
    parallel_for(stream, order.num_rows, kRowGrain, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        cpu::cpu_kernels().widen(x.dtype(),
                                 x.bytes() + static_cast<size_t>(order.input_row(r)) * bytes,
                                 values.data<float>() + r * k, k);
      }
    });
    hidden_values(values);
    return;
  }
  for_each_input_group(*this, x.dim(0), [&](int64_t e, int64_t begin, int64_t end) {
    if (quantizer.active()) {
      quantizer.values(x.slice(begin, end), e, values.slice(begin, end), nullptr, stream);
    } else {
      widen_rows(x.slice(begin, end), values.slice(begin, end), stream);
    }
  });
}

Tensor CallRows::input_codes(const ExpertsInput& input, const Tensor& codes, float* scales) const {
  const Tensor x = as_rows(input.x);
  const int64_t num_blocks = quantizer.num_blocks(x.dim(1));
  if (x.dtype() != desc.in_dtype) {
    spread_scales(desc, input.x_scale, x.dim(0), num_blocks, scales);
    return x;
  }
  assert(!InputRows(quantizer, desc.format).gathered);
  for_each_input_group(*this, x.dim(0), [&](int64_t e, int64_t begin, int64_t end) {
    quantizer.codes(x.slice(begin, end), e, codes.slice(begin, end), scales + begin * num_blocks,
                    stream);
  });
  return codes;
}

void CallRows::take_scales(const Tensor& a2_scale,
                           int64_t begin,
                           int64_t end,
                           float* scales) const {
  if (!quantizer.takes_scales()) {
    return;
  }
  for (int64_t r = begin; r < end; ++r) {
    scales[r - begin] = a2_scale.data<float>()[order.input_row(r)];
  }
}

void CallRows::hidden_values(const Tensor& rows, const float* scales) const {
  for_each_sorted_group(*this, [&](int64_t e, int64_t begin, int64_t end) {
    const Tensor part = rows.slice(begin, end);
    quantizer.values(part, e, part, quantizer.takes_scales() ? scales + begin : nullptr, stream);
  });
}

void CallRows::hidden_codes(const Tensor& rows, const Tensor& codes, float* scales) const {
  const int64_t num_blocks = quantizer.num_blocks(rows.dim(1));
  for_each_sorted_group(*this, [&](int64_t e, int64_t begin, int64_t end) {
    quantizer.codes(rows.slice(begin, end), e, codes.slice(begin, end), scales + begin * num_blocks,
                    stream);
  });
}

}  // namespace moebius
