// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Every code of every packed format, as the tile kernels decode it: rows that pick one k each, so
// that results are the weights themselves.
#include "experts/cpu/tiles/tile_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <string>
#include <vector>

#include "core/cpu_features.h"
#include "moebius/float_types.h"

namespace moebius::cpu {
namespace {

constexpr int64_t kDepth = 32;  // of a step

std::vector<const TileKernels*> kernel_sets() {
  std::vector<const TileKernels*> sets;
  [[maybe_unused]] const CpuFeatures& has = cpu_features();
#ifdef MOEBIUS_HAVE_AVX512_BF16
  if (has.avx512_bf16) {
    sets.push_back(&avx512_tiles());
  }
#endif
#ifdef MOEBIUS_HAVE_AMX
  if (has.amx_bf16 && has.amx_int8 && has.avx512_bf16 && has.avx512_fp16) {
    sets.push_back(&amx_tiles());
  }
#endif
  return sets;
}

struct alignas(64) Unit {
  std::array<std::byte, kStepBytes> codes{};
  std::array<std::byte, 2 * kBlockColumns> scales{};
};

// [rows][32]: weights k = 0, 1, ... of 32 columns.
std::vector<BFloat16> weights_of(
    const TileKernels& kernels, TileCode code, const Unit& unit, bool has_nan, int64_t rows) {
  alignas(64) std::array<BFloat16, kStepBytes / 2> a{};
  alignas(64) std::array<float, kPanelFloats> c{};
  std::array<float, kBlockColumns> column_scales;
  column_scales.fill(value_factor(code));
  std::vector<BFloat16> out(static_cast<size_t>(rows * kBlockColumns));
  std::vector<uint16_t*> to;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = r / kTileRows * kTileBytes + r % kTileRows * kTileRowBytes;
    a[static_cast<size_t>(at / 2 + r)] = BFloat16(value_factor(code));
    to.push_back(&out[static_cast<size_t>(r * kBlockColumns)].bits);
  }
  TileGemm gemm;
  gemm.a = reinterpret_cast<const std::byte*>(a.data());
  gemm.rows = rows;
  gemm.steps = 1;
  gemm.code = code;
  gemm.units = unit.codes.data();
  gemm.step_scales = unit.scales.data();
  gemm.has_nan = has_nan;
  gemm.c = c.data();
  TileEpilogue epilogue;
  epilogue.column_scales = column_scales.data();
  epilogue.out = to.data();
  TileRest rest;
  kernels.multiply(gemm, epilogue, rest);
  kernels.finish(rest);
  return out;
}

void expect_as_portable(TileCode code, const Unit& unit, bool has_nan = false) {
  for (const int64_t rows : {int64_t{5}, kDepth}) {
    const std::vector<BFloat16> expected = weights_of(portable_tiles(), code, unit, has_nan, rows);
    for (const TileKernels* kernels : kernel_sets()) {
      const std::vector<BFloat16> actual = weights_of(*kernels, code, unit, has_nan, rows);
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
    GTEST_SKIP() << "skipped: this processor has no AVX-512 BF16";
  }
  for (const TileCode code : kCodes) {
    SCOPED_TRACE(static_cast<int>(code));
    for (int shift = 0; shift < 256; ++shift) {
      Unit unit;
      for (size_t i = 0; i < unit.codes.size(); ++i) {
        const auto byte = static_cast<uint8_t>(i + i / 256 + static_cast<size_t>(shift));
        const bool is_finite = code != TileCode::kF8E4M3 || (byte & 0x7f) != 0x7f;
        unit.codes[i] = std::byte{is_finite ? byte : uint8_t{0x3c}};
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

// Normal numbers are decoded by themselves: with a subnormal one, a zero or NaN anywhere.
TEST(TileKernels, DecodeE4M3AmongNormalNumbers) {
  if (kernel_sets().empty()) {
    GTEST_SKIP() << "skipped: this processor has no AVX-512 BF16";
  }
  for (const int other : {0x00, 0x80, 0x01, 0x87, 0x08, 0x88, 0x7e, 0xfe, 0x7f, 0xff}) {
    for (const size_t at : std::initializer_list<size_t>{0, 1, 62, 63, 64, 511, 512, 1023}) {
      Unit unit;
      for (size_t i = 0; i < 1024; ++i) {
        unit.codes[i] = std::byte{static_cast<uint8_t>((8 + i % 100) | (i % 3 == 0 ? 0x80 : 0))};
      }
      unit.codes[at] = std::byte{static_cast<uint8_t>(other)};
      SCOPED_TRACE(std::to_string(other) + " at " + std::to_string(at));
      expect_as_portable(TileCode::kF8E4M3, unit, (other & 0x7f) == 0x7f);
    }
  }
}

}  // namespace
}  // namespace moebius::cpu
