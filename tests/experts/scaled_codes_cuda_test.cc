// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Rows in nvfp4 and mx formats are compared with what the quant stage makes of them on a CPU.
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "experts/cuda/activation/activation.h"
#include "experts/cuda/rows/scaled_codes.h"
#include "moebius/quantize.h"
#include "tests/experts/hopper_test.h"
#include "tests/experts/random_operands.h"

namespace moebius::cuda {
namespace {

using testing::random_uniform;

constexpr int64_t kRows = 37;
constexpr int64_t kUsed = 35;

QuantizeSpec spec_of(QuantFormat format) {
  const bool is_nvfp4 = format == QuantFormat::kNvfp4;
  return {.format = format, .group = {1, is_nvfp4 ? 16 : 32}, .global_scale_per_row = is_nvfp4};
}

class ScaledCodesTest : public HopperTest {
 protected:
  // Some rows and blocks are much larger than others, and some are zero.
  static Tensor rows_of(int64_t width, DType dtype) {
    const Tensor x = random_uniform({kRows, width}, DType::kF32, 1, -1.0f, 1.0f);
    float* v = x.data<float>();
    for (int64_t i = 0; i < x.numel(); ++i) {
      const int64_t row = i / width;
      const int64_t block = i % width / 16;
      v[i] *= row == 3 || block % 7 == 5 ? 0.0f
              : row % 5 == 0             ? 0x1p-9f
              : block % 3 == 1           ? 100.0f
                                         : 1.0f;
    }
    return convert(x, dtype);
  }
  // Returns the values of the rows in use; others stay as they are.
  Tensor values_of(const QuantizeSpec& spec,
                   const std::optional<ActivationSpec>& activation,
                   const Tensor& x,
                   int64_t width,
                   RowOperand out) const {
    Tensor filled = Tensor::zeros({kRows, width}, DType::kBF16, Device::cpu());
    std::memset(filled.raw(), 0x5a, static_cast<size_t>(filled.nbytes()));
    out.values = there(filled);
    const GroupedRows rows = grouped({20, kUsed - 20}, 0);
    put_scaled_codes(spec, activation, rows.groups, there(x), out, stream_);
    const Tensor values = here(out.values);
    EXPECT_TRUE(same(values.slice(kUsed, kRows), filled.slice(kUsed, kRows)));
    return values.slice(0, kUsed);
  }
};

TEST_F(ScaledCodesTest, AreThoseOfTheQuantStage) {
  for (const QuantFormat format :
       {QuantFormat::kNvfp4, QuantFormat::kMxfp4, QuantFormat::kMxfp6E3M2, QuantFormat::kMxfp6E2M3,
        QuantFormat::kMxfp8}) {
    const QuantizeSpec spec = spec_of(format);
    for (const int64_t width : {32, 96, 768, 2048, 7168, 8192}) {
      for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
        SCOPED_TRACE(std::string(name(format)) + " " + std::string(moebius::name(dtype)) +
                     ", width " + std::to_string(width));
        ASSERT_TRUE(takes_scaled_codes(spec, width));
        const Tensor x = rows_of(width, dtype);
        Tensor expected = Tensor::empty({kUsed, width}, DType::kBF16);
        quantize_dequantize(x.slice(0, kUsed), spec, expected, Stream::cpu());
        EXPECT_TRUE(same(expected, values_of(spec, {}, x, width, {})));
      }
    }
  }
}

// A global scale that is known stays out of the values.
TEST_F(ScaledCodesTest, MayHaveAGlobalScalePerGroup) {
  QuantizeSpec spec = spec_of(QuantFormat::kNvfp4);
  spec.global_scale_per_row = false;
  const Tensor x = rows_of(768, DType::kBF16);
  for (const bool is_per_group : {false, true}) {
    RowOperand out;
    out.scales = is_per_group ? RowScales::kPerGroup : RowScales::kAll;
    const Tensor global = Tensor::zeros({is_per_group ? 2 : 1}, DType::kF32, Device::cpu());
    for (int64_t g = 0; g < global.numel(); ++g) {
      global.data<float>()[g] = g == 0 ? 8.0f : 0.5f;
    }
    out.scale = there(global);
    const Tensor values = convert(values_of(spec, {}, x, 768, out), DType::kF32);
    for (int64_t g = 0; g < 2; ++g) {
      const Tensor own = global.slice(is_per_group ? g : 0, (is_per_group ? g : 0) + 1);
      const Tensor rows = g == 0 ? x.slice(0, 20) : x.slice(20, kUsed);
      Tensor expected = Tensor::empty(rows.shape(), DType::kF32);
      quantize_dequantize(rows, spec, expected, Stream::cpu(), {}, own);
      for (int64_t i = 0; i < expected.numel(); ++i) {
        expected.data<float>()[i] *= own.data<float>()[0];
      }
      EXPECT_TRUE(same(expected, g == 0 ? values.slice(0, 20) : values.slice(20, kUsed)));
    }
  }
}

TEST_F(ScaledCodesTest, OfActivatedRowsAreThoseOfTwoPasses) {
  for (const QuantFormat format : {QuantFormat::kNvfp4, QuantFormat::kMxfp4}) {
    const QuantizeSpec spec = spec_of(format);
    for (const ActivationSpec& activation : {ActivationSpec{},
                                             {.kind = Activation::kSwigluOai, .interleaved = true},
                                             {.kind = Activation::kRelu2, .gated = false}}) {
      for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
        for (const int64_t width : {96, 2048}) {
          SCOPED_TRACE(std::string(name(format)) + " " + std::string(moebius::name(dtype)) +
                       ", width " + std::to_string(width));
          const Tensor x = rows_of(activation.gated ? 2 * width : width, dtype);
          const Tensor activated = room({kRows, width}, dtype);
          const GroupedRows rows = grouped({20, kUsed - 20}, 0);
          activate(activation, rows.groups, there(x), activated, stream_);
          EXPECT_TRUE(same(values_of(spec, {}, here(activated), width, {}),
                           values_of(spec, activation, x, width, {})));
        }
      }
    }
  }
}

}  // namespace
}  // namespace moebius::cuda
