// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/lora.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/scratch.h"

namespace moebius::cpu {

namespace {

// Rows whose products are computed before they are put in place.
constexpr int64_t kRows = 16;

// body(adapter, rows, count) for runs of at most kRows rows of a tile with one adapter.
template <typename Body>
void for_each_run(const LoraTile& tile, Body body) {
  const int32_t* rows = tile.by_adapter;
  for (int64_t i = 0; i < tile.num_rows;) {
    const int32_t adapter = tile.adapters[rows[i]];
    int64_t end = i + 1;
    while (end < tile.num_rows && end - i < kRows && tile.adapters[rows[end]] == adapter) {
      ++end;
    }
    if (adapter >= 0) {
      body(adapter, rows + i, end - i);
    }
    i = end;
  }
}

}  // namespace

void sort_by_adapter(const int32_t* adapters, int64_t n, int32_t* order) {
  std::iota(order, order + n, 0);
  std::sort(order, order + n, [adapters](int32_t a, int32_t b) {
    return std::pair(adapters[a], a) < std::pair(adapters[b], b);
  });
}

struct Lora::Buffers {
  float* out;      // [kRows, max_columns]
  float* rows;     // [kRows, k], activations as f32
  float* weights;  // a block of A or B as f32

  Buffers(const Lora& lora, Scratch& scratch) {
    const int64_t k = lora.a_.dim(3);
    const int64_t rank = lora.b_.dim(3);
    const auto widened = [](const Tensor& w, int64_t numel) {
      return w.dtype() == DType::kF16 ? numel : 0;
    };
    out = scratch.take<float>(kRows * std::max(lora.max_columns_, kShrinkColumns));
    rows = scratch.take<float>(lora.operand_ == DType::kF32 ? 0 : kRows * k);
    weights = scratch.take<float>(
        std::max(widened(lora.a_, kShrinkColumns * k), widened(lora.b_, lora.max_columns_ * rank)));
  }
};

Lora::Lora(Tensor a, Tensor b, Tensor scaling, Halves halves, DType operand, int64_t max_columns)
    : a_(std::move(a)),
      b_(std::move(b)),
      scaling_(std::move(scaling)),
      halves_(halves),
      operand_(operand),
      max_columns_(max_columns),
      kernels_(&cpu_kernels()) {}

int64_t Lora::scratch_bytes() const {
  if (!defined()) {
    return 0;
  }
  Scratch scratch;
  Buffers(*this, scratch);
  return scratch.bytes();
}

void Lora::dot(const float* const* x,
               int64_t m,
               const Tensor& w,
               int64_t first,
               int64_t stride,
               int64_t n,
               int64_t k,
               const Buffers& buffers) const {
  if (w.dtype() == DType::kF32) {
    kernels_->dot_f32(x, m, w.data<float>() + first, stride, n, k, buffers.out, n);
  } else if (w.dtype() == DType::kBF16) {
    const auto* rows = static_cast<const uint16_t*>(w.raw()) + first;
    kernels_->dot_bf16(x, m, rows, stride, n, k, buffers.out, n);
  } else {
    for (int64_t j = 0; j < n; ++j) {
      const auto* row = static_cast<const uint16_t*>(w.raw()) + first + j * stride;
      kernels_->widen(w.dtype(), row, buffers.weights + j * k, k);
    }
    kernels_->dot_f32(x, m, buffers.weights, k, n, k, buffers.out, n);
  }
}

void Lora::shrink(const LoraTile& tile,
                  int64_t column,
                  int64_t count,
                  const void* const* x,
                  const float* row_scales,
                  std::byte* scratch) const {
  Scratch block(scratch);
  const Buffers buffers(*this, block);
  const int64_t k = a_.dim(3);
  for_each_run(tile, [&](int32_t adapter, const int32_t* rows, int64_t m) {
    const float* values[kRows];
    for (int64_t i = 0; i < m; ++i) {
      const void* row = x[rows[i]];
      float* widened = buffers.rows + i * k;
      if (operand_ == DType::kF32) {
        values[i] = static_cast<const float*>(row);
        continue;
      }
      if (operand_ == DType::kI8) {
        std::copy_n(static_cast<const int8_t*>(row), k, widened);
      } else {
        kernels_->widen(operand_, row, widened, k);
      }
      values[i] = widened;
    }
    const int64_t first = ((adapter * a_.dim(1) + tile.e) * a_.dim(2) + column) * k;
    dot(values, m, a_, first, k, count, k, buffers);
    for (int64_t i = 0; i < m; ++i) {
      const float scale = row_scales != nullptr ? row_scales[rows[i]] : 1.0f;
      for (int64_t j = 0; j < count; ++j) {
        tile.u[rows[i] * num_columns() + column + j] = buffers.out[i * count + j] * scale;
      }
    }
  });
}

void Lora::expand_half(const LoraTile& tile,
                       const WeightRange& range,
                       int64_t half,
                       int64_t step,
                       float* c,
                       int64_t ldc,
                       const Buffers& buffers) const {
  const int64_t rank = b_.dim(3);
  for_each_run(tile, [&](int32_t adapter, const int32_t* rows, int64_t m) {
    const float* u[kRows];
    for (int64_t i = 0; i < m; ++i) {
      u[i] = tile.u + rows[i] * num_columns() + half * rank;
    }
    const int64_t first = ((adapter * b_.dim(1) + tile.e) * b_.dim(2) + range.first) * rank;
    dot(u, m, b_, first, step * rank, range.count, rank, buffers);
    const float scaling = scaling_.data<float>()[adapter];
    for (int64_t i = 0; i < m; ++i) {
      float* out = c + rows[i] * ldc + range.column;
      for (int64_t j = 0; j < range.count; ++j) {
        out[j * step] += scaling * buffers.out[i * range.count + j];
      }
    }
  });
}

void Lora::expand(const LoraTile& tile,
                  const WeightRange& range,
                  float* c,
                  int64_t ldc,
                  std::byte* scratch) const {
  Scratch block(scratch);
  const Buffers buffers(*this, block);
  if (halves_ == Halves::kInterleaved) {
    for (const int64_t half : {0, 1}) {
      const WeightRange rows = {range.first + half, range.count / 2, range.column + half};
      expand_half(tile, rows, half, 2, c, ldc, buffers);
    }
    return;
  }
  const bool is_up = halves_ == Halves::kGateThenUp && range.first >= b_.dim(2) / 2;
  expand_half(tile, range, is_up ? 1 : 0, 1, c, ldc, buffers);
}

}  // namespace moebius::cpu
