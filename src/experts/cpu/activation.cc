// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/activation.h"

#include <algorithm>

#include "core/parallel.h"
#include "experts/cpu/kernels.h"
#include "experts/ref/activation.h"

namespace moebius::cpu {

namespace {

constexpr int64_t kChunk = 256;

const float* contiguous(const float* values, int64_t stride, float* buffer, int64_t n) {
  if (stride == 1) {
    return values;
  }
  for (int64_t i = 0; i < n; ++i) {
    buffer[i] = values[i * stride];
  }
  return buffer;
}

// Sets out = act(gate) before any rounding, for the kinds that multiply by `up` afterwards.
// Why gelu_tanh is a sigmoid: 0.5 (1 + tanh(t)) = sigmoid(2 t).
void activate_gate(
    const CpuKernels& kernels, Activation kind, const float* gate, float* out, int64_t n) {
  switch (kind) {
    case Activation::kSilu:
      return kernels.mul_sigmoid(gate, gate, out, n);
    case Activation::kGeluTanh: {
      constexpr float kScale = 2 * std::numbers::sqrt2_v<float> * std::numbers::inv_sqrtpi_v<float>;
      float z[kChunk];
      for (int64_t i = 0; i < n; ++i) {
        z[i] = kScale * (gate[i] + 0.044715f * gate[i] * gate[i] * gate[i]);
      }
      return kernels.mul_sigmoid(gate, z, out, n);
    }
    default:
      for (int64_t i = 0; i < n; ++i) {
        out[i] = ref::gelu(gate[i]);
      }
  }
}

void swiglu_oai(const CpuKernels& kernels,
                const ActivationSpec& spec,
                const float* gate,
                const float* up,
                float* out,
                int64_t n) {
  float g[kChunk];
  float z[kChunk];
  for (int64_t i = 0; i < n; ++i) {
    g[i] = std::min(gate[i], spec.limit);
    z[i] = spec.alpha * g[i];
  }
  kernels.mul_sigmoid(g, z, out, n);
  for (int64_t i = 0; i < n; ++i) {
    out[i] = (std::clamp(up[i], -spec.limit, spec.limit) + spec.beta) * out[i];
  }
}

void swiglu_step(const CpuKernels& kernels,
                 float limit,
                 const float* gate,
                 const float* up,
                 float* out,
                 int64_t n) {
  kernels.mul_sigmoid(gate, gate, out, n);
  for (int64_t i = 0; i < n; ++i) {
    out[i] = std::min(out[i], limit) * std::clamp(up[i], -limit, limit);
  }
}

void activate_chunk(const CpuKernels& kernels,
                    const ActivationSpec& spec,
                    DType dtype,
                    const float* gate,
                    const float* up,
                    float* out,
                    int64_t n) {
  if (spec.kind == Activation::kSwigluOai) {
    swiglu_oai(kernels, spec, gate, up, out, n);
  } else if (spec.kind == Activation::kSwigluStep) {
    swiglu_step(kernels, spec.limit, gate, up, out, n);
  } else if (spec.kind == Activation::kRelu2) {
    for (int64_t i = 0; i < n; ++i) {
      const float positive = std::max(gate[i], 0.0f);
      out[i] = positive * positive;
    }
  } else {
    activate_gate(kernels, spec.kind, gate, out, n);
    if (spec.gated) {
      kernels.round_to(dtype, out, n);
      for (int64_t i = 0; i < n; ++i) {
        out[i] *= up[i];
      }
    }
  }
  kernels.round_to(dtype, out, n);
}

}  // namespace

void activate(const ActivationSpec& spec, DType dtype, const GateAndUp& in, float* out, int64_t n) {
  const CpuKernels& kernels = cpu_kernels();
  float gate_buffer[kChunk];
  float up_buffer[kChunk];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = std::min(kChunk, n - i);
    const float* g = contiguous(in.gate + i * in.stride, in.stride, gate_buffer, count);
    const float* u =
        spec.gated ? contiguous(in.up + i * in.stride, in.stride, up_buffer, count) : nullptr;
    activate_chunk(kernels, spec, dtype, g, u, out + i, count);
  }
}

void activate_rows(const ActivationSpec& spec,
                   const Tensor& input,
                   const Tensor& output,
                   const Stream& stream) {
  const DType dtype = input.dtype();
  constexpr int64_t kColumns = 256;
  const int64_t n = output.dim(1);
  const size_t element = static_cast<size_t>(bits(dtype) / 8);
  const auto& kernels = cpu_kernels();
  const auto load = [&](int64_t row, int64_t column, float* values, int64_t count) {
    const auto at = static_cast<size_t>(row * input.dim(1) + column);
    kernels.widen(dtype, input.bytes() + at * element, values, count);
  };
  parallel_for(stream, input.dim(0), 4, [&](int64_t begin, int64_t end) {
    float in[2 * kColumns];
    float out[kColumns];
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t c = 0; c < n; c += kColumns) {
        const int64_t count = std::min(kColumns, n - c);
        if (spec.interleaved) {
          load(row, 2 * c, in, 2 * count);
          activate(spec, dtype, {in, in + 1, 2}, out, count);
        } else {
          load(row, c, in, count);
          if (spec.gated) {
            load(row, n + c, in + kColumns, count);
          }
          activate(spec, dtype, {in, in + kColumns}, out, count);
        }
        kernels.narrow(dtype, out, output.bytes() + static_cast<size_t>(row * n + c) * element,
                       count);
      }
    }
  });
}

}  // namespace moebius::cpu
