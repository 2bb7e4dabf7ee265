// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests what quantize() and dequantize() promise for all formats.
#include "moebius/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/error_text.h"
#include "tests/quant/tensors.h"

namespace moebius {
namespace {

TEST(Quantize, ZeroRowsAreValid) {
  for (const GroupShape group : {GroupShape::per_tensor(), GroupShape::per_token(),
                                 GroupShape{1, 128}, GroupShape{128, 128}}) {
    const QuantizeSpec spec{QuantFormat::kFp8, group};
    const Tensor x = Tensor::empty({0, 256}, DType::kBF16);
    const Quantized q = quantize(x, spec);
    EXPECT_EQ(q.values.shape(), (Shape{0, 256}));
    dequantize(q, spec, x, Stream{});
    quantize_dequantize(x, spec, x, Stream{});
  }
}

TEST(Quantize, DequantizeQuantizeOfItselfMayAlias) {
  const QuantizeSpec specs[] = {
      {QuantFormat::kFp8, GroupShape::per_tensor()},
      {QuantFormat::kFp8, {128, 128}},
      {QuantFormat::kFp8, GroupShape::per_token()},
      {QuantFormat::kInt8, {1, 64}},
      {QuantFormat::kInt4, {1, 32}},
      {QuantFormat::kMxfp4, {1, 32}},
      {QuantFormat::kMxfp6E2M3, {1, 32}},
      {QuantFormat::kNvfp4, {1, 16}},
  };
  for (const QuantizeSpec& spec : specs) {
    // Enough rows for several tasks.
    const Tensor x = random_matrix(300, 320, DType::kBF16, 11);
    const Tensor expected = Tensor::empty(x.shape(), DType::kBF16);
    dequantize(quantize(x, spec), spec, expected, Stream{});
    quantize_dequantize(x, spec, x, Stream::cpu(3));
    EXPECT_EQ(raw_bytes(x), raw_bytes(expected)) << name(spec.format);
  }
}

TEST(Quantize, ResultsDoNotDependOnTheNumberOfThreads) {
  const Tensor x = random_matrix(257, 384, DType::kBF16, 3);
  for (const GroupShape group : {GroupShape::per_tensor(), GroupShape::per_token(),
                                 GroupShape{1, 128}, GroupShape{100, 128}}) {
    const QuantizeSpec spec{QuantFormat::kFp8, group};
    const Quantized one = quantize(x, spec, Stream::cpu(1));
    const Quantized many = quantize(x, spec, Stream::cpu(5));
    EXPECT_EQ(raw_bytes(one.values), raw_bytes(many.values));
    EXPECT_EQ(raw_bytes(one.scale), raw_bytes(many.scale));
  }
}

// Every element must be within half a step of its input, and scales must follow from group maxima.
TEST(Quantize, EveryElementIsNearItsInput) {
  struct Row {
    QuantFormat format;
    GroupShape group;
    float max_value;      // largest code, to tell the scale from the maximum
    float relative_step;  // half the distance of neighbouring codes, over the value
    float absolute_step;  // the same for the smallest codes, in units of the scale
  };
  const Row rows[] = {
      {QuantFormat::kFp8, {1, 128}, 448, 1 / 16.0f, 1 / 1024.0f},
      {QuantFormat::kFp8, {3, 48}, 448, 1 / 16.0f, 1 / 1024.0f},
      {QuantFormat::kFp8, GroupShape::per_token(), 448, 1 / 16.0f, 1 / 1024.0f},
      {QuantFormat::kInt8, GroupShape::per_token(), 127, 0, 0.51f},
      {QuantFormat::kInt8, {1, 48}, 127, 0, 1.01f},
  };
  const int64_t num_rows = 10;
  const int64_t cols = 160;
  const Tensor x = random_matrix(num_rows, cols, DType::kF32, 17);
  for (const Row& row : rows) {
    const QuantizeSpec spec{row.format, row.group};
    const Quantized q = quantize(x, spec);
    const std::vector<float> back = dequantized(q, spec);
    const int64_t group_cols = row.group.col == -1 ? cols : row.group.col;
    const int64_t scales_per_row = q.scale.dim(1);
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const int64_t r0 = r / row.group.row * row.group.row;
        const int64_t c0 = c / group_cols * group_cols;
        float absmax = 0;
        for (int64_t i = r0; i < std::min(num_rows, r0 + row.group.row); ++i) {
          for (int64_t j = c0; j < std::min(cols, c0 + group_cols); ++j) {
            absmax = std::max(absmax, std::fabs(get_float(x, i * cols + j)));
          }
        }
        const float scale = get_float(q.scale, r / row.group.row * scales_per_row + c / group_cols);
        ASSERT_EQ(scale, absmax / row.max_value) << name(row.format) << " " << r << " " << c;
        const float value = get_float(x, r * cols + c);
        ASSERT_LE(
            std::fabs(back[static_cast<size_t>(r * cols + c)] - value),
            1.0001f * std::max(std::fabs(value) * row.relative_step, scale * row.absolute_step))
            << name(row.format) << " " << r << " " << c;
      }
    }
  }
}

std::string refusal(const QuantizeSpec& spec, int64_t rows, int64_t cols) {
  const Support support = quantize_supported(spec, rows, cols);
  EXPECT_EQ(support.ok, support.reason.empty());
  return support.reason;
}

TEST(QuantizeSupported, SaysWhyNot) {
  using testing::expect_mentions;
  expect_mentions(refusal(QuantizeSpec{QuantFormat::kMxfp4, {1, 32}}, 4, 48),
                  "48 columns are not a multiple of mxfp4's group of 32");
  expect_mentions(refusal(QuantizeSpec{QuantFormat::kNvfp4, {1, 16}}, 4, 40), "40 columns");
  expect_mentions(refusal(QuantizeSpec{QuantFormat::kNvfp4, {1, 32}}, 4, 64),
                  "nvfp4 groups of {1, 32}, expected {1, 16}");
  expect_mentions(refusal(QuantizeSpec{QuantFormat::kMxfp8, GroupShape::per_tensor()}, 4, 64),
                  "mxfp8 groups of {-1, -1}, expected {1, 32}");
  expect_mentions(refusal(QuantizeSpec{QuantFormat::kInt8, {128, 128}}, 4, 64),
                  "int8 groups of {128, 128}");
  expect_mentions(refusal(QuantizeSpec{QuantFormat::kFp8, {-1, 1}}, 4, 64),
                  "fp8 groups of {-1, 1}");
  expect_mentions(refusal(QuantizeSpec{QuantFormat::kInt4, {1, 33}}, 4, 66),
                  "int4 groups of {1, 33}");
  expect_mentions(refusal(QuantizeSpec{QuantFormat::kInt4, {1, 32}}, 4, 33),
                  "33 columns are not a multiple of 2");
  expect_mentions(refusal(QuantizeSpec{QuantFormat::kFp8, {1, 32}}, -1, 33), "[-1, 33]");
  QuantizeSpec spec{QuantFormat::kFp8, GroupShape::per_token()};
  spec.power_of_two_scale = true;
  expect_mentions(refusal(spec, 4, 64), "power-of-two scales for fp8 groups of {1, -1}");
  spec = QuantizeSpec{QuantFormat::kInt8, {1, 32}};
  spec.asymmetric = true;
  expect_mentions(refusal(spec, 4, 64), "asymmetric int8");
  EXPECT_EQ(refusal(QuantizeSpec{QuantFormat::kFp8, {128, 128}}, 5, 200), "");
  EXPECT_EQ(refusal(QuantizeSpec{QuantFormat::kInt4, {1, 32}}, 5, 34), "");
}

TEST(Quantize, RefusesWrongTensors) {
  using testing::expect_mentions;
  using testing::message_of;
  const QuantizeSpec spec{QuantFormat::kFp8, GroupShape::per_token()};
  const Stream stream;
  const Tensor x = Tensor::zeros({4, 8}, DType::kF32);
  Quantized out = allocate_quantized(spec, 4, 9);
  expect_mentions(message_of([&] { quantize(x, spec, out, stream); }), "[4, 9]");
  out = allocate_quantized(spec, 4, 8);
  out.scale = Tensor::zeros({4, 1}, DType::kBF16);
  expect_mentions(message_of([&] { quantize(x, spec, out, stream); }), "bf16");
  out = allocate_quantized(spec, 4, 8);
  const Tensor scale = tensor_of({1}, {1});
  expect_mentions(message_of([&] { quantize(x, spec, out, stream, scale); }), "static scale");
  expect_mentions(message_of([&] { quantize(x, spec, out, stream, {}, scale); }), "global scale");
  expect_mentions(message_of([&] { quantize(Tensor::zeros({4, 8}, DType::kI8), spec); }), "i8");
  expect_mentions(message_of([&] { quantize(Tensor::zeros({4}, DType::kF32), spec); }), "[4]");
  expect_mentions(message_of([&] { quantize(Tensor{}, spec); }), "x is missing");
  out.values = x.reinterpret(DType::kF8E4M3, {4, 32}).view({16, 8}).slice(0, 4);
  expect_mentions(message_of([&] { quantize(x, spec, out, stream); }), "overlaps");
  const Tensor shifted = Tensor::zeros({9, 8}, DType::kF32);
  expect_mentions(message_of([&] {
                    quantize_dequantize(shifted.slice(0, 8), spec, shifted.slice(1, 9), stream);
                  }),
                  "overlap");
}

}  // namespace
}  // namespace moebius
