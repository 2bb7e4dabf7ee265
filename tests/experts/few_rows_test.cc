// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels multiply few rows in other loops than many, which must not change a bit: for any number
// of steps, groups of any number of steps, and any distance at which codes are fetched.  Nor may a
// decoder, of vectors of any width.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "experts/cpu/tiles/packed_rows.h"
#include "experts/cpu/tiles/tile_kernels.h"
#include "tests/experts/tile_kernel_sets.h"

namespace moebius::cpu {
namespace {

constexpr int64_t kRows = 40;  // more than any kernel takes for few

struct alignas(64) Line {
  std::array<std::byte, 64> bytes{};
};

// Lines of random bytes.  `words` masks and sets bits of each 32-bit word.
std::vector<Line> random_lines(int64_t bytes, uint32_t kept, uint32_t set, uint32_t seed) {
  std::vector<Line> lines(static_cast<size_t>((bytes + 63) / 64));
  std::mt19937 generator(seed);
  for (Line& line : lines) {
    for (size_t i = 0; i < 64; i += 4) {
      const uint32_t word = (static_cast<uint32_t>(generator()) & kept) | set;
      std::memcpy(line.bytes.data() + i, &word, 4);
    }
  }
  return lines;
}
const std::byte* bytes_of(const std::vector<Line>& lines) {
  return lines.front().bytes.data();
}

struct Case {
  TileCode code;
  int64_t steps;
  int64_t group_steps;
  bool has_zero_points;
};

class Block {
 public:
  Block(const TileKernels& kernels, const Case& c) : kernels_(kernels) {
    const bool is_i8 = c.code == TileCode::kI8;
    const bool is_f32 = kernels.operand == Operand::kF32 && !is_i8;
    // Values of about 1, of either sign; integers of any bits.
    const uint32_t kept = is_i8 ? ~0u : is_f32 ? 0x807fffff : 0x807f807f;
    const uint32_t set = is_i8 ? 0 : is_f32 ? 0x3f000000 : 0x3f003f00;
    a_ = random_lines(panels_bytes(kRows, (is_f32 ? 2 : 1) * c.steps), kept, set, 1);
    // The last row's values are tiny: f32 products would not have the bits of bf16 products, and
    // the kernels that choose between them take the latter for all rows.
    for (int64_t s = 0; kernels.operand == Operand::kBF16 && !is_i8 && s < c.steps; ++s) {
      const int64_t line = (kRows / 32 * c.steps + s) * 32 + (kRows - 1) % 32;
      const uint32_t tiny = 0x00800080;
      for (size_t i = 0; i < 64; i += 4) {
        std::memcpy(a_[static_cast<size_t>(line)].bytes.data() + i, &tiny, 4);
      }
    }
    // Weights are numbers: which of two NaNs a sum becomes is up to the compiler.
    const bool is_bf16 = c.code == TileCode::kBF16;
    const uint32_t kept_codes = is_bf16 || c.code == TileCode::kF16 ? 0x807f807f
                                : c.code == TileCode::kF8E4M3       ? 0xf7f7f7f7
                                                                    : ~0u;
    units_ = random_lines(c.steps * unit_bytes(c.code) + kReadPast, kept_codes,
                          is_bf16 ? 0x3f003f00 : 0, 2);
    step_scales_ = random_lines(c.steps * step_scale_bytes(c.code) + 64, 0x07070707, 0x70707070, 3);
    // For bf16 products some codes are not normal.
    others_.assign(static_cast<size_t>(c.steps), kernels.operand == Operand::kBF16 ? 0xffff : 0);
    const int64_t groups = c.group_steps > 0 ? (c.steps + c.group_steps - 1) / c.group_steps : 1;
    for (int64_t i = 0; i < groups * kBlockColumns; ++i) {
      scales_.push_back(0.01f + 0.003f * static_cast<float>(i % 29));
      zero_points_.push_back(static_cast<uint8_t>(i % 16));
    }
    for (int64_t i = 0; i < groups * kRows; ++i) {
      row_scales_.push_back(0.5f + 0.01f * static_cast<float>(i % 31));
    }
    gemm_.a = bytes_of(a_);
    gemm_.steps = c.steps;
    gemm_.code = c.code;
    gemm_.units = bytes_of(units_);
    gemm_.others = others_.data();
    gemm_.step_scales = bytes_of(step_scales_);
    gemm_.scale_exponents = {0x70, 0x77};
    gemm_.group_steps = c.group_steps;
    if (c.group_steps > 0) {
      gemm_.group_scales = reinterpret_cast<const std::byte*>(scales_.data());
      gemm_.row_scales = row_scales_.data();
      gemm_.row_groups = groups;
    }
    gemm_.zero_points = c.has_zero_points ? zero_points_.data() : nullptr;
  }

  // Outputs [rows][32] of bf16 and, where the kernels leave them in C, sums of f32 or i32.
  std::vector<std::byte> products(int64_t rows, int64_t fetch_ahead) const {
    return products(gemm_, rows, fetch_ahead);
  }

  // The same with activations of these exponents, other weights or other scales.
  void set_activations(int least, int most) {
    const bool is_f32 = kernels_.operand == Operand::kF32;
    std::mt19937 generator(4);
    const auto value = [&] {
      const auto exponent =
          static_cast<uint32_t>(least) +
          static_cast<uint32_t>(generator()) % static_cast<uint32_t>(most - least + 1);
      return (static_cast<uint32_t>(generator()) & 0x807fffff) | exponent << 23;
    };
    for (Line& line : a_) {
      for (size_t i = 0; i < 64; i += 4) {
        const uint32_t word = is_f32 ? value() : (value() >> 16 | (value() & 0xffff0000));
        std::memcpy(line.bytes.data() + i, &word, 4);
      }
    }
  }
  void set_weights(uint32_t kept, uint32_t set) {
    units_ = random_lines(gemm_.steps * unit_bytes(gemm_.code) + kReadPast, kept, set, 5);
    gemm_.units = bytes_of(units_);
  }
  void set_mxfp4_scales(int least, int most) {
    for (int64_t i = 0; i < gemm_.steps * kBlockColumns; ++i) {
      auto& scale = step_scales_[static_cast<size_t>(i / 64)].bytes[static_cast<size_t>(i % 64)];
      scale = static_cast<std::byte>(least + static_cast<int>(i) * 37 % (most - least + 1));
    }
    gemm_.scale_exponents = {least, most};
  }
  // Whether kernels may choose what is shorter but does not have the same bits for all values:
  // those of bf16 products may multiply by f32, and those of f32 products scale sums of mxfp4.
  void set_may_choose(bool may_choose) { gemm_.f32_products = knows_exponents_ = may_choose; }

  // The products with the values of the weights as f32, as vectors of another width decode them.
  std::vector<std::byte> products_of_values(int64_t rows) const {
    const std::vector<Line> values = decoded();
    TileGemm gemm = gemm_;
    gemm.code = TileCode::kF32;
    gemm.units = bytes_of(values);
    return products(gemm, rows, 0);
  }

 private:
  // Each row of activations picks one k of a step.
  std::vector<Line> decoded() const {
    std::vector<Line> units(static_cast<size_t>(gemm_.steps * unit_bytes(TileCode::kF32) / 64));
    std::vector<Line> ones(static_cast<size_t>(2 * kStepBytes / 64));
    for (size_t k = 0; k < 32; ++k) {
      const float one = 1.0f;
      std::memcpy(ones[k / 16 * 32 + k].bytes.data() + k % 16 * 4, &one, 4);
    }
    for (int64_t step = 0; step < gemm_.steps; ++step) {
      TileGemm gemm = gemm_;
      gemm.a = bytes_of(ones);
      gemm.steps = 1;
      gemm.units += step * unit_bytes(gemm.code);
      gemm.step_scales += step * step_scale_bytes(gemm.code);
      gemm.others += step;
      if (gemm.zero_points != nullptr && gemm.group_steps > 0) {
        gemm.zero_points += step / gemm.group_steps * kBlockColumns;
      }
      gemm.group_steps = 0;
      gemm.row_scales = nullptr;
      std::array<Line, kPanelFloats / 16> c;
      std::array<std::byte, 32 * kBlockColumns * 2> out;
      std::array<std::byte*, 32> to;
      to.fill(out.data());
      gemm.rows = 32;
      gemm.c = reinterpret_cast<float*>(c.data());
      TileEpilogue epilogue;
      epilogue.out = to.data();
      TileRest rest;
      plain_tiles().multiply(gemm, epilogue, rest);
      plain_tiles().finish(rest);
      for (size_t k = 0; k < 32; ++k) {
        for (size_t tile = 0; tile < 2; ++tile) {
          units[static_cast<size_t>(step) * 64 + tile * 32 + k] =
              c[(k / 16 * 2 + tile) * 16 + k % 16];
        }
      }
    }
    return units;
  }

  std::vector<std::byte> products(TileGemm gemm, int64_t rows, int64_t fetch_ahead) const {
    std::vector<Line> c(static_cast<size_t>(num_panels(rows) * kPanelFloats / 16));
    std::vector<std::byte> out(static_cast<size_t>(rows * kBlockColumns * 2));
    std::vector<std::byte*> to;
    for (int64_t r = 0; r < rows; ++r) {
      to.push_back(out.data() + r * kBlockColumns * 2);
    }
    gemm.rows = rows;
    if (knows_exponents_ && kernels_.exponents != nullptr && gemm.code != TileCode::kI8) {
      gemm.exponents = kernels_.exponents(gemm.a, rows, gemm.steps);
    }
    gemm.fetch_ahead = fetch_ahead;
    gemm.fetch_by_pages = fetch_ahead == 0;
    gemm.c = reinterpret_cast<float*>(c.data());
    TileEpilogue epilogue;
    epilogue.integers = gemm.code == TileCode::kI8;
    epilogue.out = to.data();
    TileRest rest;
    kernels_.multiply(gemm, epilogue, rest);
    kernels_.finish(rest);
    // Why C as well: rounding to bf16 hides most differences.
    const bool leaves_sums = kernels_.operand == Operand::kF32 || kernels_.exponents != nullptr;
    for (int64_t r = 0; leaves_sums && r < rows; ++r) {
      for (int64_t half = 0; half < 2; ++half) {
        const float* sums =
            gemm.c + (r / kTileRows * 2 + half) * kTileFloats + r % kTileRows * kTileColumns;
        for (int64_t i = 0; i < kTileColumns; ++i) {
          // Subnormal sums are zero to what follows bf16 products.
          const bool is_zero = kernels_.operand == Operand::kBF16 && gemm.code != TileCode::kI8 &&
                               std::abs(sums[i]) < 0x1p-126f;
          const auto bits = std::bit_cast<std::array<std::byte, 4>>(is_zero ? 0.0f : sums[i]);
          out.insert(out.end(), bits.begin(), bits.end());
        }
      }
    }
    return out;
  }

  const TileKernels& kernels_;
  std::vector<Line> a_;
  std::vector<Line> units_;
  std::vector<Line> step_scales_;
  std::vector<uint16_t> others_;
  std::vector<float> scales_;
  std::vector<uint8_t> zero_points_;
  std::vector<float> row_scales_;
  TileGemm gemm_;
  bool knows_exponents_ = false;
};

// Compares the first rows of `many` with `few`: outputs, then sums.
bool begins_with(const std::vector<std::byte>& many,
                 const std::vector<std::byte>& few,
                 int64_t rows) {
  const int64_t out = kBlockColumns * 2;
  const bool has_sums = static_cast<int64_t>(few.size()) > rows * out;
  const auto same = [&](int64_t at_many, int64_t at_few, int64_t bytes) {
    return std::equal(few.begin() + at_few, few.begin() + at_few + bytes, many.begin() + at_many);
  };
  return same(0, 0, rows * out) &&
         (!has_sums || same(kRows * out, rows * out, rows * kBlockColumns * 4));
}

void expect_same_bits(const Case& c) {
  for (const TileKernels* kernels : all_kernel_sets()) {
    Block block(*kernels, c);
    const auto many = block.products(kRows, 4096);
    for (const bool may_choose : {false, true}) {
      if (may_choose && kernels->exponents == nullptr) {
        break;
      }
      block.set_may_choose(may_choose);
      for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 12, 13}) {
        for (const int64_t ahead : {0, 1024, 16384}) {
          EXPECT_TRUE(begins_with(many, block.products(rows, ahead), rows))
              << kernels->name << ": " << rows << " rows, " << c.steps << " steps, groups of "
              << c.group_steps << ", code " << static_cast<int>(c.code) << ", " << ahead
              << " ahead, may choose " << may_choose;
        }
      }
    }
  }
}

// Compares what kernels choose with what they do where they may not choose.
void expect_same_choices(const TileKernels& kernels, Block& block, const std::string& of) {
  for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 13, 40}) {
    block.set_may_choose(false);
    const auto expected = block.products(rows, 0);
    block.set_may_choose(true);
    EXPECT_TRUE(block.products(rows, 0) == expected)
        << kernels.name << ", " << rows << " rows, " << of;
  }
}
std::vector<const TileKernels*> choosing_sets() {
  std::vector<const TileKernels*> sets = all_kernel_sets();
  std::erase_if(sets, [](const TileKernels* set) { return set->exponents == nullptr; });
  return sets;
}

// Vectors of any width multiply by the values that plain C++ decodes.
void expect_values_of_plain(const Case& c) {
  for (const TileKernels* kernels : all_kernel_sets()) {
    if (kernels->operand != Operand::kF32) {
      continue;
    }
    const Block block(*kernels, c);
    for (const int64_t rows : {1, 2, 3, 4, 5, 6, 12, 40}) {
      EXPECT_EQ(block.products(rows, 1024), block.products_of_values(rows))
          << kernels->name << ": " << rows << " rows, " << c.steps << " steps, groups of "
          << c.group_steps << ", code " << static_cast<int>(c.code);
    }
  }
}

constexpr int64_t kSteps[] = {1, 2, 5, 8, 9, 24, 64, 71, 224, 600};

TEST(FewRows, HaveTheBitsOfManyRowsWithoutGroups) {
  for (const TileCode code :
       {TileCode::kBF16, TileCode::kI8, TileCode::kF8E4M3, TileCode::kI8AsBF16, TileCode::kInt4,
        TileCode::kMxfp4, TileCode::kNvfp4}) {
    for (const int64_t steps : kSteps) {
      expect_same_bits({code, steps, 0, false});
    }
  }
}

TEST(FewRows, HaveTheBitsOfManyRowsWithGroups) {
  for (const TileCode code : {TileCode::kF8E4M3, TileCode::kI8AsBF16, TileCode::kInt4}) {
    for (const int64_t group_steps : {1, 2, 4, 5, 32}) {
      for (const int64_t steps : kSteps) {
        expect_same_bits({code, steps, group_steps, false});
      }
    }
  }
}

TEST(FewRows, HaveTheBitsOfManyRowsWithZeroPoints) {
  for (const int64_t group_steps : {0, 1, 4}) {
    for (const int64_t steps : kSteps) {
      expect_same_bits({TileCode::kInt4, steps, group_steps, true});
    }
  }
}

TEST(FewRows, HaveTheBitsOfTheValuesThatPlainVectorsDecode) {
  for (const TileCode code :
       {TileCode::kBF16, TileCode::kF16, TileCode::kF8E4M3, TileCode::kI8AsBF16, TileCode::kInt4,
        TileCode::kMxfp4, TileCode::kNvfp4}) {
    expect_values_of_plain({code, 21, 0, false});
  }
  for (const TileCode code : {TileCode::kI8AsBF16, TileCode::kInt4}) {
    expect_values_of_plain({code, 21, 4, true});
  }
}

// Activations and weights below 2, of which one in 128 is zero or subnormal.  With the larger
// weights and the smaller activations, sums and products are about the least normal number.
TEST(Choice, OfF32ProductsOfBF16ChangesNoBit) {
  constexpr std::array<std::pair<int, int>, 3> kExponents = {{{0, 127}, {0, 31}, {16, 30}}};
  for (const TileKernels* kernels : choosing_sets()) {
    for (const int64_t steps : {1, 5, 24, 64}) {
      for (const uint32_t set : {0x00000000u, 0x20002000u, 0x30003000u}) {
        for (const auto& [least, most] : kExponents) {
          Block block(*kernels, {TileCode::kBF16, steps, 0, false});
          block.set_activations(least, most);
          block.set_weights(0xbfffbfff, set);
          expect_same_choices(*kernels, block,
                              fmt::format("{} steps, weights with {:x}, exponents {} to {}", steps,
                                          set, least, most));
        }
      }
    }
  }
}

// Activations of all magnitudes, so that kernels have to see where sums could be subnormal.
TEST(Choice, OfF32ProductsOfCodesChangesNoBit) {
  for (const TileKernels* kernels : choosing_sets()) {
    for (const TileCode code : {TileCode::kF8E4M3, TileCode::kI8AsBF16, TileCode::kInt4,
                                TileCode::kMxfp4, TileCode::kNvfp4}) {
      for (int exponent = 0; exponent < 0xc0; exponent += 7) {
        Block block(*kernels, {code, 24, 0, false});
        block.set_activations(exponent, exponent + 1);
        expect_same_choices(*kernels, block,
                            fmt::format("code {}, exponent {}", static_cast<int>(code), exponent));
      }
    }
  }
}

TEST(Choice, OfSumsThatAreScaledChangesNoBit) {
  constexpr std::array<std::pair<int, int>, 12> kScales = {{{1, 1},
                                                            {1, 9},
                                                            {2, 2},
                                                            {2, 102},
                                                            {2, 103},
                                                            {2, 252},
                                                            {60, 130},
                                                            {100, 127},
                                                            {127, 127},
                                                            {120, 220},
                                                            {150, 252},
                                                            {252, 252}}};
  constexpr std::array<std::pair<int, int>, 9> kExponents = {{{1, 1},
                                                              {0, 60},
                                                              {32, 33},
                                                              {60, 160},
                                                              {80, 90},
                                                              {112, 127},
                                                              {140, 150},
                                                              {160, 161},
                                                              {90, 190}}};
  for (const TileKernels* kernels : choosing_sets()) {
    for (const auto& [least, most] : kScales) {
      for (const auto& [least_exponent, most_exponent] : kExponents) {
        Block block(*kernels, {TileCode::kMxfp4, 37, 0, false});
        block.set_mxfp4_scales(least, most);
        block.set_activations(least_exponent, most_exponent);
        expect_same_choices(*kernels, block,
                            fmt::format("scales {} to {}, exponents {} to {}", least, most,
                                        least_exponent, most_exponent));
      }
    }
  }
}

TEST(Exponents, AreThoseOfTheValuesOtherThanZero) {
  constexpr int64_t kNumSteps = 3;
  for (const TileKernels* kernels : choosing_sets()) {
    SCOPED_TRACE(kernels->name);
    const int64_t per_step = step_lines(kernels->operand);
    std::vector<Line> panels(static_cast<size_t>(panels_bytes(kRows, per_step * kNumSteps) / 64));
    const auto exponents = [&](int64_t rows) {
      const ExponentRange range = kernels->exponents(bytes_of(panels), rows, kNumSteps);
      return std::pair(range.least, range.most);
    };
    // bits: of a bf16.
    const auto set = [&](int64_t row, int64_t step, int64_t k, uint32_t bits) {
      const int64_t line = step * per_step + (per_step == 2 ? k / 16 : 0);
      std::byte* at =
          panels[static_cast<size_t>((row / 32 * kNumSteps * per_step + line) * 32 + row % 32)]
              .bytes.data();
      const uint32_t value = per_step == 2 ? bits << 16 : bits;
      std::memcpy(at + (per_step == 2 ? k % 16 * 4 : k * 2), &value, per_step == 2 ? 4 : 2);
    };
    EXPECT_EQ(exponents(kRows), std::pair(256, 0));
    set(0, 0, 0, 0x8000);  // -0
    EXPECT_EQ(exponents(1), std::pair(256, 0));
    set(0, 2, 31, 0xbf80);  // -1
    EXPECT_EQ(exponents(1), std::pair(127, 127));
    set(39, 1, 5, 0x0080);  // the least normal number
    EXPECT_EQ(exponents(39), std::pair(127, 127));
    EXPECT_EQ(exponents(40), std::pair(1, 127));
    set(32, 0, 6, 0x807f);  // subnormal
    EXPECT_EQ(exponents(32), std::pair(127, 127));
    EXPECT_EQ(exponents(33), std::pair(0, 127));
    set(1, 0, 6, 0x7f80);  // infinity
    EXPECT_EQ(exponents(2), std::pair(127, 255));
  }
}

}  // namespace
}  // namespace moebius::cpu
