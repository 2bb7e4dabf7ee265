// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/lora.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/scratch.h"
#include "experts/quantized_rows.h"

namespace moebius::cpu {

namespace {

// Rows whose products are computed at a time, before they are put in place.
constexpr int64_t kRows = 16;
// Columns of u computed at a time, so that a block of A stays in cache.
constexpr int64_t kShrinkColumns = 16;

// Calls body(adapter, rows, count) for runs of at most kRows rows of a tile with one adapter.
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
  float* out;      // [kRows, kMostRows]
  float* rows;     // [kRows, k], activations as f32
  float* weights;  // a block of A or B as f32

  Buffers(const Lora& lora, Scratch& scratch) {
    const int64_t k = lora.a_.dim(3);
    const int64_t rank = lora.b_.dim(3);
    out = scratch.take<float>(kRows * kMostRows);
    rows = scratch.take<float>(kRows * k);
    weights = scratch.take<float>(std::max(kShrinkColumns * k, kMostRows * rank));
  }
};

Lora::Lora(Tensor a, Tensor b, Tensor scaling)
    : a_(std::move(a)), b_(std::move(b)), scaling_(std::move(scaling)), kernels_(&cpu_kernels()) {}

int64_t Lora::scratch_bytes() const {
  if (!defined()) {
    return 0;
  }
  Scratch scratch;
  Buffers(*this, scratch);
  return scratch.bytes();
}

void Lora::dot(const float* const* x, int64_t m, const Block& block, const Buffers& buffers) const {
  const Tensor& w = block.w;
  const int64_t k = w.dim(3);
  DotProducts products = {x, m, buffers.weights, k, block.n, k, buffers.out, block.n};
  if (w.dtype() == DType::kF32) {
    products.b = w.data<float>() + block.first;
    products.ldb = block.stride;
  } else {
    const int64_t size = bits(w.dtype()) / 8;
    for (int64_t j = 0; j < block.n; ++j) {
      kernels_->widen(w.dtype(), w.bytes() + (block.first + j * block.stride) * size,
                      buffers.weights + j * k, k);
    }
  }
  kernels_->dot_f32(products);
}

void Lora::shrink(const LoraTile& tile,
                  const std::byte* const* x,
                  DType dtype,
                  const RowScales& scales,
                  std::byte* scratch) const {
  Scratch block(scratch);
  const Buffers buffers(*this, block);
  const int64_t k = a_.dim(3);
  const bool is_code = dtype == DType::kI8 || dtype == DType::kF8E4M3;
  for_each_run(tile, [&](int32_t adapter, const int32_t* rows, int64_t m) {
    const float* values[kRows];
    for (int64_t i = 0; i < m; ++i) {
      float* widened = buffers.rows + i * k;
      if (is_code) {
        const float* row_scales = scales.scales + rows[i] * scales.per_row;
        decode_row(x[rows[i]], dtype, row_scales, scales.block, k, widened);
      } else {
        kernels_->widen(dtype, x[rows[i]], widened, k);
      }
      values[i] = widened;
    }
    for (int64_t column = 0; column < num_columns(); column += kShrinkColumns) {
      const int64_t count = std::min(kShrinkColumns, num_columns() - column);
      const int64_t first = ((adapter * a_.dim(1) + tile.e) * a_.dim(2) + column) * k;
      dot(values, m, {a_, first, k, count}, buffers);
      for (int64_t i = 0; i < m; ++i) {
        std::copy_n(buffers.out + i * count, count, tile.u + rows[i] * num_columns() + column);
      }
    }
  });
}

void Lora::expand(const LoraTile& tile,
                  const LoraRows& weight_rows,
                  float* c,
                  int64_t ldc,
                  std::byte* scratch) const {
  Scratch block(scratch);
  const Buffers buffers(*this, block);
  const int64_t rank = b_.dim(3);
  const int64_t count = weight_rows.count;
  for_each_run(tile, [&](int32_t adapter, const int32_t* rows, int64_t m) {
    const float* u[kRows];
    for (int64_t i = 0; i < m; ++i) {
      u[i] = tile.u + rows[i] * num_columns() + weight_rows.half * rank;
    }
    const int64_t first = ((adapter * b_.dim(1) + tile.e) * b_.dim(2) + weight_rows.first) * rank;
    dot(u, m, {b_, first, weight_rows.step * rank, count}, buffers);
    const float scaling = scaling_.data<float>()[adapter];
    for (int64_t i = 0; i < m; ++i) {
      float* out = c + rows[i] * ldc;
      for (int64_t j = 0; j < count; ++j) {
        out[j] += scaling * buffers.out[i * count + j];
      }
    }
  });
}

}  // namespace moebius::cpu
