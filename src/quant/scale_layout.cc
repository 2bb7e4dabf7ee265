// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/scale_layout.h"

#include <fmt/format.h>

namespace moebius {

namespace {

constexpr int64_t kTileRows = 128;
constexpr int64_t kTileCols = 4;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

void expect_matrix_of_bytes(const Tensor& tensor, std::string_view what) {
  expect_defined(tensor, what);
  expect(tensor.device().is_cpu(), [&] {
    return fmt::format("{} is on {}, expected cpu", what, to_string(tensor.device()));
  });
  expect_eq(tensor.num_dims(), 2, fmt::format("dimensions of {}", what));
  const DType dtype = tensor.dtype();
  expect(dtype == DType::kE8M0 || dtype == DType::kF8E4M3 || dtype == DType::kU8,
         [&] { return fmt::format("{} is {}, expected e8m0, f8e4m3 or u8", what, name(dtype)); });
}

}  // namespace

Shape swizzled_scale_shape(int64_t rows, int64_t cols) {
  return {round_up(rows, kTileRows), round_up(cols, kTileCols)};
}

int64_t swizzled_scale_offset(int64_t row, int64_t col, int64_t cols) {
  const int64_t tiles_per_row = round_up(cols, kTileCols) / kTileCols;
  const int64_t tile = row / kTileRows * tiles_per_row + col / kTileCols;
  return tile * (kTileRows * kTileCols) + row % 32 * 16 + row / 32 % 4 * 4 + col % kTileCols;
}

Tensor swizzle_scales(const Tensor& scales) {
  expect_matrix_of_bytes(scales, "scales");
  const int64_t rows = scales.dim(0);
  const int64_t cols = scales.dim(1);
  const Tensor result = Tensor::zeros(swizzled_scale_shape(rows, cols), scales.dtype());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      result.bytes()[swizzled_scale_offset(row, col, cols)] = scales.bytes()[row * cols + col];
    }
  }
  return result;
}

Tensor unswizzle_scales(const Tensor& swizzled, int64_t rows, int64_t cols) {
  expect_matrix_of_bytes(swizzled, "swizzled scales");
  expect_shape(swizzled, swizzled_scale_shape(rows, cols), "swizzled scales");
  const Tensor result = Tensor::empty({rows, cols}, swizzled.dtype());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      result.bytes()[row * cols + col] = swizzled.bytes()[swizzled_scale_offset(row, col, cols)];
    }
  }
  return result;
}

}  // namespace moebius
