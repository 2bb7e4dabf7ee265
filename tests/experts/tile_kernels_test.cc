// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests how the tile kernels decode every code of every packed format.  Each row of activations
// picks one k, so that the results are the weights themselves.
#include "experts/cpu/tiles/tile_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "experts/cpu/tiles/packed_rows.h"
#include "experts/cpu/tiles/packed_weight.h"
#include "moebius/float_types.h"
#include "tests/experts/tile_kernel_sets.h"

namespace moebius::cpu {
namespace {

constexpr int64_t kDepth = 32;  // values of k in a step

struct alignas(64) Unit {
  std::array<std::byte, 2 * kStepBytes> codes{};
  std::array<std::byte, 2 * kBlockColumns> scales{};
  uint16_t others = 0;  // see TileGemm
};

// Returns [rows][32]: weights k = 0, 1, ... of 32 columns.  The gemm and the epilogue say
// everything else.
std::vector<BFloat16> products(const TileKernels& kernels,
                               TileGemm gemm,
                               TileEpilogue epilogue,
                               int64_t rows) {
  alignas(64) std::array<std::byte, 2 * kStepBytes> a{};
  const bool is_float = kernels.operand == Operand::kF32;
  const float one = row_factor(gemm.code, kernels.operand);
  const int64_t per_line = is_float ? 16 : 32;
  alignas(64) std::array<float, kPanelFloats> c{};
  std::vector<BFloat16> out(static_cast<size_t>(rows * kBlockColumns));
  std::vector<std::byte*> to;
  for (int64_t r = 0; r < rows; ++r) {
    std::byte* line = a.data() + r / per_line * kStepBytes + r * kTileRowBytes;
    const BFloat16 narrow(one);
    if (is_float) {
      std::memcpy(line + r % per_line * 4, &one, 4);
    } else {
      std::memcpy(line + r % per_line * 2, &narrow, 2);
    }
    to.push_back(reinterpret_cast<std::byte*>(&out[static_cast<size_t>(r * kBlockColumns)]));
  }
  gemm.a = a.data();
  gemm.rows = rows;
  gemm.c = c.data();
  epilogue.out = to.data();
  TileRest rest;
  kernels.multiply(gemm, epilogue, rest);
  kernels.finish(rest);
  return out;
}

std::vector<BFloat16> weights_of(const TileKernels& kernels,
                                 TileCode code,
                                 const Unit& unit,
                                 int64_t rows) {
  std::array<float, kBlockColumns> column_scales;
  column_scales.fill(scale_factor(code, kernels.operand));
  TileGemm gemm;
  gemm.steps = 1;
  gemm.code = code;
  gemm.units = unit.codes.data();
  gemm.step_scales = unit.scales.data();
  gemm.others = &unit.others;
  TileEpilogue epilogue;
  epilogue.column_scales = column_scales.data();
  return products(kernels, gemm, epilogue, rows);
}

void expect_as_portable(TileCode code, const Unit& unit) {
  for (const int64_t rows : {int64_t{5}, kDepth}) {
    const std::vector<BFloat16> expected = weights_of(plain_tiles(), code, unit, rows);
    for (const TileKernels* kernels : kernel_sets()) {
      const std::vector<BFloat16> actual = weights_of(*kernels, code, unit, rows);
      for (size_t i = 0; i < expected.size(); ++i) {
        const auto x = static_cast<float>(actual[i]);
        const auto y = static_cast<float>(expected[i]);
        ASSERT_TRUE(x == y || (std::isnan(x) && std::isnan(y)))
            << kernels->name << " " << rows << " rows: " << x << ", expected " << y << " at " << i;
      }
    }
  }
}

constexpr std::array kCodes = {TileCode::kF8E4M3, TileCode::kI8AsBF16, TileCode::kInt4,
                               TileCode::kMxfp4, TileCode::kNvfp4};

TEST(TileKernels, DecodeEveryCode) {
  if (kernel_sets().empty()) {
    GTEST_SKIP() << "skipped: this processor runs the plain kernels alone";
  }
  for (const TileCode code : kCodes) {
    SCOPED_TRACE(static_cast<int>(code));
    for (int shift = 0; shift < 256; ++shift) {
      Unit unit;
      unit.others = 0xffff;
      for (size_t i = 0; i < unit.codes.size(); ++i) {
        unit.codes[i] = static_cast<std::byte>(i + i / 256 + static_cast<size_t>(shift));
      }
      for (size_t i = 0; i < unit.scales.size(); ++i) {
        const auto scale = static_cast<uint8_t>(3 * i + 7 * static_cast<size_t>(shift));
        unit.scales[i] = std::byte{code == TileCode::kMxfp4
                                       ? static_cast<uint8_t>(std::clamp<int>(scale, 2, 252))
                                   : (scale & 0x7f) == 0x7f ? uint8_t{0x38}
                                                            : scale};
      }
      expect_as_portable(code, unit);
    }
  }
}

// Every code is tested with every scale: a column has 16 codes with one scale.
TEST(TileKernels, DecodeEveryCodeTimesEveryScale) {
  if (kernel_sets().empty()) {
    GTEST_SKIP() << "skipped: this processor runs the plain kernels alone";
  }
  for (const TileCode code : {TileCode::kMxfp4, TileCode::kNvfp4}) {
    SCOPED_TRACE(static_cast<int>(code));
    for (int scale = 0; scale < 256; ++scale) {
      if (code == TileCode::kMxfp4 ? scale < 2 || scale > 252 : (scale & 0x7f) == 0x7f) {
        continue;
      }
      Unit unit;
      unit.scales.fill(static_cast<std::byte>(scale));
      // Rows 4b to 4b + 3 have two elements of a column each, which are 8 codes; two blocks have
      // all 16.
      for (size_t i = 0; i < 512; i += 4) {
        const bool is_odd = i / 64 % 2 == 1;
        const std::array<uint8_t, 4> codes = {0x10, 0x32, 0x54, 0x76};
        for (size_t j = 0; j < 4; ++j) {
          unit.codes[i + j] = static_cast<std::byte>(codes[j] | (is_odd ? 0x88 : 0));
        }
      }
      expect_as_portable(code, unit);
    }
  }
}

// Expects that kernels find these values in packed weights of 32 rows of 32 codes.
void expect_packed_values(const QuantDesc& desc,
                          const Tensor& w,
                          const std::vector<float>& values) {
  const BlockColumns columns{.num_rows = kBlockColumns};
  for (const TileKernels* kernels : all_kernel_sets()) {
    const PackedWeight packed(w, desc, columns, 0, Tensor(), kernels->operand, Stream());
    TileGemm gemm;
    TileEpilogue epilogue;
    packed.set(0, 0, gemm);
    packed.set(0, 0, epilogue);
    const std::vector<BFloat16> actual = products(*kernels, gemm, epilogue, kDepth);
    for (size_t k = 0; k < 32; ++k) {
      for (size_t n = 0; n < 32; ++n) {
        const auto x = static_cast<float>(actual[k * 32 + n]);
        const float y = values[n * 32 + k];
        ASSERT_TRUE(x == y || (std::isnan(x) && std::isnan(y)))
            << kernels->name << ": " << x << ", expected " << y << ", row " << n << " column " << k;
      }
    }
  }
}

// Each code is tested at each place, since neither packing nor decoding may depend on the place.
// Normal e4m3 numbers are decoded apart from others, which must therefore be known wherever they
// are.
TEST(TileKernels, PackedCodesAreTheirValues) {
  for (const bool is_e4m3 : {true, false}) {
    const QuantDesc desc = unscaled(is_e4m3 ? QuantFormat::kFp8 : QuantFormat::kInt8);
    const Tensor w = Tensor::empty({1, 32, 32}, is_e4m3 ? DType::kF8E4M3 : DType::kI8);
    std::vector<float> values(1024);
    const auto set = [&](size_t i, uint8_t code) {
      w.bytes()[i] = std::byte{code};
      F8E4M3 number;
      number.bits = code;
      values[i] =
          is_e4m3 ? static_cast<float>(number) : static_cast<float>(static_cast<int8_t>(code));
    };
    // A NaN makes all of its column NaN, since it is multiplied with 0, too.
    const auto is_nan = [&](uint8_t code) { return is_e4m3 && (code & 0x7f) == 0x7f; };
    for (size_t shift = 0; shift < 256; ++shift) {
      for (size_t i = 0; i < 1024; ++i) {
        const auto code = static_cast<uint8_t>(i + i / 256 + shift);
        set(i, is_nan(code) ? uint8_t{0} : code);
      }
      expect_packed_values(desc, w, values);
    }
    for (size_t at = 0; is_e4m3 && at < 1024; ++at) {
      for (const int other : {0x00, 0x87, at % 2 == 0 ? 0x7f : 0xff}) {
        for (size_t i = 0; i < 1024; ++i) {
          set(i, static_cast<uint8_t>((8 + i % 100) | (i % 3 == 0 ? 0x80 : 0)));
        }
        set(at, static_cast<uint8_t>(other));
        if (is_nan(static_cast<uint8_t>(other))) {
          std::fill_n(values.begin() + static_cast<int64_t>(at / 32 * 32), 32, NAN);
        }
        expect_packed_values(desc, w, values);
      }
    }
  }
}

// Sums of int8, including the largest, are held exactly by i32, and their bf16 is that of the exact
// sum.
TEST(TileKernels, IntegerSumsAreExact) {
  constexpr int64_t kSteps = 70;
  constexpr int64_t kDepthI8 = kSteps * 64;
  constexpr int64_t kRows = 37;
  std::mt19937 random(4);
  const auto fill = [&](const Tensor& codes) {
    for (int64_t i = 0; i < codes.numel(); ++i) {
      codes.bytes()[i] = random() % 3 == 0 ? static_cast<std::byte>(random()) : std::byte{0x80};
    }
  };
  const Tensor a = Tensor::empty({kRows, kDepthI8}, DType::kI8);
  const Tensor w = Tensor::empty({1, kBlockColumns, kDepthI8}, DType::kI8);
  fill(a);
  fill(w);
  const BlockColumns columns{.num_rows = kBlockColumns};
  const PackedWeight packed(w, unscaled(QuantFormat::kInt8), columns, 0, Tensor(), Operand::kI8,
                            Stream());
  std::vector<const std::byte*> rows;
  for (int64_t r = 0; r < kRows; ++r) {
    rows.push_back(a.bytes() + r * kDepthI8);
  }
  const Tensor panels = Tensor::empty({panels_bytes(kRows, kSteps)}, DType::kU8);
  pack_rows({DType::kI8, Operand::kI8, kDepthI8, kSteps}, rows.data(), kRows, nullptr,
            panels.bytes());
  const std::vector<float> row_scales(kRows, 0x1p-3f);
  const Tensor c = Tensor::empty({num_panels(kRows) * kPanelFloats}, DType::kF32);
  for (const TileKernels* kernels : all_kernel_sets()) {
    std::vector<BFloat16> out(static_cast<size_t>(kRows * kBlockColumns));
    std::vector<std::byte*> to;
    for (int64_t r = 0; r < kRows; ++r) {
      to.push_back(reinterpret_cast<std::byte*>(out.data() + r * kBlockColumns));
    }
    TileGemm gemm;
    gemm.a = panels.bytes();
    gemm.rows = kRows;
    gemm.c = c.data<float>();
    packed.set(0, 0, gemm);
    TileEpilogue epilogue;
    epilogue.integers = true;
    epilogue.row_scales = row_scales.data();
    epilogue.out = to.data();
    packed.set(0, 0, epilogue);
    TileRest rest;
    kernels->multiply(gemm, epilogue, rest);
    kernels->finish(rest);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t n = 0; n < kBlockColumns; ++n) {
        int64_t sum = 0;
        for (int64_t k = 0; k < kDepthI8; ++k) {
          sum += static_cast<int8_t>(a.bytes()[r * kDepthI8 + k]) *
                 static_cast<int8_t>(w.bytes()[n * kDepthI8 + k]);
        }
        const BFloat16 expected(static_cast<float>(sum) * 0x1p-3f);
        ASSERT_EQ(out[static_cast<size_t>(r * kBlockColumns + n)].bits, expected.bits)
            << kernels->name << ", row " << r << ", column " << n;
      }
    }
  }
}

}  // namespace
}  // namespace moebius::cpu
