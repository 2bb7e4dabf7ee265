// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Quantize: the size and the error of one matrix in several formats.
#include <cmath>
#include <cstdio>

#include "moebius/quantize.h"
#include "moebius/tolerance.h"

int main() {
  using namespace moebius;
  constexpr int64_t kRows = 64, kCols = 256;
  const Tensor x = Tensor::empty({kRows, kCols}, DType::kF32);
  for (int64_t i = 0; i < x.numel(); ++i) {
    set_float(x, i, std::sin(0.37f * static_cast<float>(i)));
  }

  struct Format {
    const char* label;
    QuantizeSpec spec;
    double largest_error;
  };
  const Format formats[] = {
      {"fp8, one scale per token", {QuantFormat::kFp8, GroupShape::per_token()}, 0.04},
      {"fp8, blocks of 128", {QuantFormat::kFp8, {1, 128}}, 0.04},
      {"int8, one scale per token", {QuantFormat::kInt8, GroupShape::per_token()}, 0.01},
      {"int4, groups of 32", {QuantFormat::kInt4, {1, 32}}, 0.1},
      {"mxfp4", {QuantFormat::kMxfp4, {1, 32}}, 0.2},
      {"nvfp4", {QuantFormat::kNvfp4, {1, 16}}, 0.2},
  };
  const Stream stream;
  bool ok = true;
  for (const Format& format : formats) {
    const Quantized q = quantize(x, format.spec, stream);
    const Tensor back = Tensor::empty(x.shape(), DType::kF32);
    dequantize(q, format.spec, back, stream);
    const double error = relative_error(back, x);
    const auto bytes = q.values.nbytes() + q.scale.nbytes();
    std::printf("%-28s %6.2f bits per element, relative error %.4f\n", format.label,
                8.0 * static_cast<double>(bytes) / static_cast<double>(x.numel()), error);
    ok = ok && error > 0 && error < format.largest_error;
  }
  return ok ? 0 : 1;
}
