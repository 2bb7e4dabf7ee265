// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Blocks that are multiplied in turn, so that their epilogues may take place beside the products of
// the next block, have the bits of blocks that are multiplied alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "experts/cpu/tiles/packed_rows.h"
#include "experts/cpu/tiles/read_ahead.h"
#include "experts/cpu/tiles/tile_kernels.h"
#include "moebius/float_types.h"
#include "tests/experts/tile_kernel_sets.h"

namespace moebius::cpu {
namespace {

constexpr int64_t kBlocks = 3;

struct alignas(64) Line {
  std::array<std::byte, 64> bytes{};
  bool operator==(const Line&) const = default;
};
using Lines = std::vector<Line>;

Lines lines(int64_t bytes) {
  return Lines(static_cast<size_t>((bytes + 63) / 64));
}
std::byte* bytes_of(Lines& all) {
  return all.data()->bytes.data();
}

// The operands of three blocks of some rows.
struct Problem {
  Problem(TileCode tile_code, int64_t num_rows, int64_t num_steps)
      : code(tile_code), rows(num_rows), steps(num_steps) {
    a = lines(panels_bytes(rows, 2 * steps));
    units = lines(kBlocks * steps * kStepBytes);
    std::mt19937 generator(7);
    std::normal_distribution<float> normal;
    for (Lines* operand : {&a, &units}) {
      for (Line& line : *operand) {
        for (size_t i = 0; i < line.bytes.size(); i += 2) {
          // A pair of bf16 can be read as an f32, too.
          const auto bits = code == TileCode::kI8 ? static_cast<uint16_t>(generator())
                                                  : BFloat16(normal(generator)).bits;
          line.bytes[i] = static_cast<std::byte>(bits);
          line.bytes[i + 1] = static_cast<std::byte>(bits >> 8);
        }
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      row_scales.push_back(0.01f + 0.001f * static_cast<float>(r % 7));
      weights.push_back(0.1f + 0.01f * static_cast<float>(r % 5));
    }
    column_scales.fill(0.02f);
  }

  TileCode code;
  int64_t rows;
  int64_t steps;
  Lines a;
  Lines units;
  std::vector<float> row_scales;
  std::vector<float> weights;
  std::array<float, kBlockColumns> column_scales;
};

// Computes activations, or weighted rows of output.  Each block is finished before the next begins,
// or all are multiplied in turn.
Lines results(const TileKernels& kernels, Problem& problem, bool activates, bool in_turn) {
  const int64_t row_bytes = kBlocks * 2 * kBlockColumns;
  Lines out = lines(problem.rows * row_bytes);
  const int64_t block_bytes = num_panels(problem.rows) * kPanelFloats * 4;
  Lines c = lines(2 * block_bytes);
  const ActivationSpec silu;
  std::vector<std::byte*> to;
  for (int64_t r = 0; r < problem.rows; ++r) {
    to.push_back(bytes_of(out) + r * row_bytes);
  }
  TileRest rest;
  for (int64_t block = 0; block < kBlocks; ++block) {
    TileGemm gemm;
    gemm.code = problem.code;
    gemm.a = bytes_of(problem.a);
    gemm.rows = problem.rows;
    gemm.steps = problem.steps;
    gemm.units = bytes_of(problem.units) + block * problem.steps * kStepBytes;
    gemm.c = reinterpret_cast<float*>(bytes_of(c) + block % 2 * block_bytes);
    gemm.next[0] = {gemm.units, static_cast<size_t>(problem.steps * kStepBytes)};
    TileEpilogue epilogue;
    if (problem.code == TileCode::kI8) {
      epilogue.integers = true;
      epilogue.row_scales = problem.row_scales.data();
      epilogue.column_scales = problem.column_scales.data();
    }
    if (activates) {
      epilogue.activation = &silu;
      epilogue.row_stride = row_bytes;
      epilogue.tile_stride = kTileRows * row_bytes;
      epilogue.panel_stride = kPanelRows * row_bytes;
      epilogue.act = bytes_of(out) + block * kBlockColumns;
    } else {
      epilogue.out = to.data();
      epilogue.weights = problem.weights.data();
      epilogue.column = block * kBlockColumns;
      epilogue.past_caches = true;
    }
    kernels.multiply(gemm, epilogue, rest);
    if (!in_turn || block + 1 == kBlocks) {
      kernels.finish(rest);
    }
  }
  return out;
}

TEST(TileBlocks, GiveInTurnWhatTheyGiveAlone) {
  if (kernel_sets().empty()) {
    GTEST_SKIP() << "skipped: this processor runs the plain kernels alone";
  }
  for (const TileCode code : {TileCode::kBF16, TileCode::kI8}) {
    for (const int64_t rows : {1, 2, 3, 31, 33, 64, 65, 97}) {
      for (const int64_t steps : {1, 2, 3, 4, 5, 7, 16, 24, 25, 64, 71}) {
        Problem problem(code, rows, steps);
        for (const TileKernels* kernels : kernel_sets()) {
          for (const bool activates : {true, false}) {
            const Lines alone = results(*kernels, problem, activates, false);
            const Lines in_turn = results(*kernels, problem, activates, true);
            ASSERT_NE(alone, Lines(alone.size()));
            ASSERT_TRUE(alone == in_turn)
                << kernels->name << ", " << rows << " rows, " << steps << " steps, code "
                << static_cast<int>(code) << (activates ? ", activations" : ", output");
          }
        }
      }
    }
  }
}

TEST(ReadAhead, PartsOfTheLastBlocksCoverAllLinesOnce) {
  Lines later = lines(64 * 37);
  const std::span<const std::byte> bytes(bytes_of(later), 64 * 37);
  for (const int64_t num_blocks : {1, 3, 4, 9}) {
    const std::byte* at = bytes.data();
    for (int64_t block = 0; block < num_blocks; ++block) {
      const std::span<const std::byte> part = part_ahead(bytes, block, num_blocks);
      if (block + kBlocksAhead < num_blocks) {
        EXPECT_TRUE(part.empty());
        continue;
      }
      EXPECT_EQ(part.data(), at);
      EXPECT_EQ(part.size() % 64, 0u);
      at += part.size();
    }
    EXPECT_EQ(at, bytes.data() + bytes.size()) << num_blocks << " blocks";
  }
}

TEST(ReadAhead, PagesByTurnsAreFetchedOnceAndThenWhatComesAfter) {
  constexpr int64_t kAll = PagesAhead::kPages * PagesAhead::kPageBytes;
  constexpr int64_t kTurn = PagesAhead::kPages * kTileRowBytes;
  struct alignas(kAll) Pages {
    std::array<std::byte, 3 * kAll> bytes;
  };
  const auto codes = std::make_unique<Pages>();
  const auto after = std::make_unique<Pages>();
  TileGemm gemm;
  for (const bool is_known : {false, true}) {
    if (is_known) {
      gemm.codes_end = codes->bytes.data() + 2 * kAll;
      gemm.codes_after = after->bytes.data();
    }
    for (int64_t pages = 0; pages < 2; ++pages) {
      std::set<const std::byte*> lines;
      for (int64_t at = pages * kAll; at < (pages + 1) * kAll; at += kTurn) {
        const std::byte* turn = PagesAhead::turn(codes->bytes.data() + at, gemm);
        for (int64_t line = 0; line < PagesAhead::kPages; ++line) {
          lines.insert(turn + PagesAhead::place(line));
        }
      }
      const bool is_beyond = is_known && pages == 1;
      EXPECT_EQ(*lines.begin(),
                is_beyond ? after->bytes.data() : codes->bytes.data() + (pages + 1) * kAll);
      EXPECT_EQ(static_cast<int64_t>(lines.size()), kAll / kTileRowBytes);
      EXPECT_EQ(*lines.rbegin() - *lines.begin(), kAll - kTileRowBytes);
    }
  }
}

}  // namespace
}  // namespace moebius::cpu
