// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/rows/quantize_rows.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "core/allocate.h"
#include "layer/rows/row_ops.h"
#include "quant/cuda/batched.h"
#include "quant/groups.h"

namespace moebius {

namespace {

// `desc` with the static scale of one expert, if every expert has its own.
QuantDesc of_expert(QuantDesc desc, int64_t local_expert) {
  for (Tensor* scales : {&desc.scale, &desc.alpha_or_gscale}) {
    if (*scales && scales->numel() > 1) {
      *scales = scales->view({scales->numel()}).slice(local_expert, local_expert + 1);
    }
  }
  return desc;
}

// A tensor for one call: in a vector on the host, in scratch of the stream on a GPU, so that calls
// which repeat ask no allocator.
class CallTensor {
 public:
  CallTensor(const Shape& shape, DType dtype, const Stream& stream) {
    const auto bytes = static_cast<size_t>(row_bytes(dtype, shape.numel()));
    void* data = nullptr;
    if (stream.device().is_cuda()) {
      on_gpu_ = allocate_on(static_cast<int64_t>(std::max<size_t>(bytes, 1)), stream);
      data = on_gpu_.get();
    } else {
      on_host_.resize(bytes);
      data = on_host_.data();
    }
    tensor_ = Tensor::borrow(data, shape, dtype, stream.device());
  }
  CallTensor(const CallTensor&) = delete;
  CallTensor& operator=(const CallTensor&) = delete;
  const Tensor& get() const { return tensor_; }

 private:
  std::vector<std::byte> on_host_;
  std::shared_ptr<void> on_gpu_;
  Tensor tensor_;
};

}  // namespace

QuantizedSpecs quantized_specs(const QuantizeSpec& spec, int64_t rows, int64_t cols) {
  const quant::Groups groups = quant::groups_of(spec.group, rows, cols);
  return {{{rows, cols}, storage_dtype(spec.format)},
          {{groups.num_row_groups, quant::num_row_scales(spec, cols)},
           quant::scale_dtype(spec.format)}};
}

void quantize_rows(const Tensor& x,
                   const RowQuant& how,
                   const QuantizedRows& out,
                   const Stream& stream) {
  const auto& [spec, desc] = how;
  Quantized q;
  q.values = out.values;
  if (spec.global_scale_per_row) {
    const CallTensor scales({x.dim(0), out.scale.dim(1) - quant::kRowGlobalScaleBytes},
                            out.scale.dtype(), stream);
    const CallTensor global_scales({x.dim(0)}, DType::kF32, stream);
    q.scale = scales.get();
    q.global_scale = global_scales.get();
    quantize(x, spec, q, stream);
    join_row_scales(q, out.scale, stream);
    return;
  }
  q.scale = out.scale;
  std::optional<CallTensor> global_scale;  // quantize() writes it, but the caller has it already
  if (spec.format == QuantFormat::kNvfp4) {
    q.global_scale = global_scale.emplace(Shape{1}, DType::kF32, stream).get();
  }
  quantize(x, spec, q, stream, desc.scale, desc.alpha_or_gscale);
}

QuantizedSpecs batched_quantized_specs(const QuantizeSpec& spec, const Shape& x) {
  const QuantizedSpecs one = quantized_specs(spec, x[1], x[2]);
  const auto per_expert = [&](const TensorSpec& s) {
    return TensorSpec{{x[0], s.shape[0], s.shape[1]}, s.dtype};
  };
  return {per_expert(one.values), per_expert(one.scale)};
}

void quantize_batched_rows(const Tensor& x,
                           const Tensor& counts,
                           const RowQuant& how,
                           const QuantizedRows& out,
                           const Stream& stream) {
  const auto& [spec, desc] = how;
  if (x.device().is_cuda()) {
    quant::cuda_quantize_batched(
        {.x = x,
         .counts = counts,
         .spec = spec,
         .tensor_scale = spec.format == QuantFormat::kNvfp4 ? desc.alpha_or_gscale : desc.scale,
         .values = out.values,
         .scale = out.scale},
        stream);
    return;
  }
  for (int64_t e = 0; e < x.dim(0); ++e) {
    const int64_t count = counts.data<int32_t>()[e];
    if (count == 0) {
      continue;
    }
    const QuantizedSpecs used = quantized_specs(spec, count, x.dim(2));
    quantize_rows(x[e].slice(0, count), {spec, of_expert(desc, e)},
                  {out.values[e].slice(0, count), out.scale[e].slice(0, used.scale.shape[0])},
                  stream);
  }
}

}  // namespace moebius
