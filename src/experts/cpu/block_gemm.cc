// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/block_gemm.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>

namespace moebius::cpu {

namespace {

// Rows of a oneDNN call, largest first.  The smallest is for native types only: there the dot
// products are so much slower that up to 12 rows of padding pay.
constexpr int64_t kTiles[] = {256, 64, 16};
constexpr int64_t kSmallestF32Tile = 64;
// Fewer rows than this are not worth a padded tile.
constexpr int64_t kMinPaddedRows = 4;

// Fewest rows left over that still go to a tile, where there is a library that has tiles.
[[maybe_unused]] int64_t min_tile_rows(DType operand) {
  return operand == DType::kF32 ? kSmallestF32Tile : kMinPaddedRows;
}
constexpr int64_t kLargestTile = kTiles[0];

// Decoded weight rows that dot products work on: 256 KiB, half of a common L2.
constexpr int64_t kDotBlockBytes = 256 * 1024;

// Rows that are widened at a time where activations are bf16 but dot products want f32.
constexpr int64_t kWidenedRows = 16;

}  // namespace

struct BlockGemm::Buffers {
  float* weights;     // decoded rows of all ranges, [max_columns, k]
  std::byte* rows;    // gathered rows of a tile, [kLargestTile, k]
  float* widened;     // [kWidenedRows, k]
  std::byte* onednn;  // its scratchpad

  Buffers(const BlockGemm& gemm, Scratch& scratch) {
    const Config& config = gemm.config_;
    const int64_t k = gemm.k();
    const bool decodes = config.operand == DType::kF32;
    weights = scratch.take<float>(decodes ? config.max_columns * k : 0);
    widened = scratch.take<float>(config.operand == DType::kBF16 ? kWidenedRows * k : 0);
    int64_t scratchpad = 0;
#ifdef MOEBIUS_HAVE_ONEDNN
    for (const auto& [shape, matmul] : gemm.matmuls_) {
      scratchpad = std::max(scratchpad, static_cast<int64_t>(matmul.scratchpad_bytes()));
    }
    rows = scratch.take<std::byte>(
        gemm.matmuls_.empty() ? 0 : kLargestTile * k * bits(config.operand) / 8);
#else
    rows = nullptr;
#endif
    onednn = scratch.take<std::byte>(scratchpad);
  }
};

BlockGemm::BlockGemm(Config config) : config_(std::move(config)), kernels_(&cpu_kernels()) {
#ifdef MOEBIUS_HAVE_ONEDNN
  if (!config_.use_onednn) {
    return;
  }
  for (const int64_t rows : kTiles) {
    if (config_.operand == DType::kF32 && rows < kSmallestF32Tile) {
      continue;
    }
    for (const int64_t count : {std::min(config_.range_rows, config_.range_total),
                                config_.range_total % config_.range_rows}) {
      if (count > 0) {
        matmuls_.try_emplace({rows, count}, config_.operand, rows, count, k(), config_.max_columns);
      }
    }
  }
#endif
}

int64_t BlockGemm::most_dot_rows() const {
#ifdef MOEBIUS_HAVE_ONEDNN
  if (!matmuls_.empty()) {
    return min_tile_rows(config_.operand) - 1;
  }
#endif
  return std::numeric_limits<int64_t>::max();
}

int64_t BlockGemm::scratch_bytes() const {
  Scratch scratch;
  Buffers(*this, scratch);
  return scratch.bytes();
}

void BlockGemm::run(int64_t e,
                    std::span<const WeightRange> ranges,
                    const void* const* a,
                    int64_t m,
                    void* c,
                    std::byte* scratch) const {
  Scratch block(scratch);
  const Buffers buffers(*this, block);
  const int64_t done = run_tiles(e, ranges, a, m, static_cast<float*>(c), buffers);
  if (done == m) {
    return;
  }
  // f32 and i32 are equally wide.
  float* rest = static_cast<float*>(c) + done * config_.max_columns;
  for (const WeightRange& range : ranges) {
    dot(e, range, a + done, m - done, rest + range.column, buffers);
  }
}

bool BlockGemm::in_place() const {
  const DType stored = config_.weight.dtype();
  return stored == config_.operand || (stored == DType::kBF16 && !config_.desc.format);
}

const void* BlockGemm::stored(int64_t e, int64_t row) const {
  const int64_t offset = row_bytes(config_.weight.dtype(), (e * config_.weight.dim(1) + row) * k());
  return config_.weight.bytes() + offset;
}

void BlockGemm::decode(
    int64_t e, const WeightRange& range, int64_t begin, int64_t end, float* out) const {
  dequantize_weight_rows(config_.weight, config_.desc, e, range.first + begin, range.first + end,
                         config_.gate_rows, out, config_.a_gscale);
}

void BlockGemm::dot(int64_t e,
                    const WeightRange& range,
                    const void* const* a,
                    int64_t m,
                    void* c,
                    const Buffers& buffers) const {
  const int64_t ldc = config_.max_columns;
  if (config_.operand == DType::kI8) {
    kernels_->dot_s8(reinterpret_cast<const int8_t* const*>(a), m,
                     static_cast<const int8_t*>(stored(e, range.first)), k(), range.count, k(),
                     static_cast<int32_t*>(c), ldc);
    return;
  }
  const auto* rows = reinterpret_cast<const float* const*>(a);
  float* out = static_cast<float*>(c);
  if (config_.operand == DType::kBF16) {
    const float* widened[kWidenedRows];
    for (int64_t i = 0; i < m; i += kWidenedRows) {
      const int64_t count = std::min(kWidenedRows, m - i);
      for (int64_t j = 0; j < count; ++j) {
        kernels_->widen(DType::kBF16, a[i + j], buffers.widened + j * k(), k());
        widened[j] = buffers.widened + j * k();
      }
      kernels_->dot_bf16(widened, count, static_cast<const uint16_t*>(stored(e, range.first)), k(),
                         range.count, k(), out + i * ldc, ldc);
    }
  } else if (!in_place()) {
    const int64_t step =
        std::max<int64_t>(4, kDotBlockBytes / (k() * static_cast<int64_t>(sizeof(float))));
    for (int64_t begin = 0; begin < range.count; begin += step) {
      const int64_t end = std::min(range.count, begin + step);
      decode(e, range, begin, end, buffers.weights);
      kernels_->dot_f32(rows, m, buffers.weights, k(), end - begin, k(), out + begin, ldc);
    }
  } else if (config_.weight.dtype() == DType::kBF16) {
    kernels_->dot_bf16(rows, m, static_cast<const uint16_t*>(stored(e, range.first)), k(),
                       range.count, k(), out, ldc);
  } else {
    kernels_->dot_f32(rows, m, static_cast<const float*>(stored(e, range.first)), k(), range.count,
                      k(), out, ldc);
  }
}

#ifdef MOEBIUS_HAVE_ONEDNN

// Returns how many leading rows it has computed.
int64_t BlockGemm::run_tiles(int64_t e,
                             std::span<const WeightRange> ranges,
                             const void* const* a,
                             int64_t m,
                             float* c,
                             const Buffers& buffers) const {
  const int64_t smallest = min_tile_rows(config_.operand);
  if (matmuls_.empty() || m < smallest) {
    return 0;
  }
  // Weights that oneDNN cannot read are decoded once for all tiles.
  const bool decoded = config_.weight.dtype() != config_.operand;
  const void* weights[2];
  assert(ranges.size() <= std::size(weights));
  for (size_t i = 0; i < ranges.size(); ++i) {
    weights[i] = stored(e, ranges[i].first);
    if (decoded) {
      float* out = buffers.weights + ranges[i].column * k();
      decode(e, ranges[i], 0, ranges[i].count, out);
      weights[i] = out;
    }
  }
  const auto row_size = static_cast<size_t>(k() * bits(config_.operand) / 8);
  int64_t done = 0;
  while (m - done >= smallest) {
    const int64_t* tile = std::find_if(std::begin(kTiles), std::end(kTiles) - 1,
                                       [&](int64_t t) { return t <= m - done; });
    const int64_t rows = std::min(*tile, m - done);
    bool dense = rows == *tile;
    for (int64_t i = 1; i < rows && dense; ++i) {
      dense = static_cast<const std::byte*>(a[done + i]) ==
              static_cast<const std::byte*>(a[done + i - 1]) + row_size;
    }
    const void* tile_rows = a[done];
    if (!dense) {
      for (int64_t i = 0; i < rows; ++i) {
        std::memcpy(buffers.rows + static_cast<size_t>(i) * row_size, a[done + i], row_size);
      }
      std::memset(buffers.rows + static_cast<size_t>(rows) * row_size, 0,
                  static_cast<size_t>(*tile - rows) * row_size);
      tile_rows = buffers.rows;
    }
    for (size_t i = 0; i < ranges.size(); ++i) {
      matmuls_.at({*tile, ranges[i].count})
          .run(tile_rows, weights[i], c + done * config_.max_columns + ranges[i].column,
               buffers.onednn);
    }
    done += rows;
  }
  return done;
}

#else

int64_t BlockGemm::run_tiles(int64_t,
                             std::span<const WeightRange>,
                             const void* const*,
                             int64_t,
                             float*,
                             const Buffers&) const {
  return 0;
}

#endif  // MOEBIUS_HAVE_ONEDNN

}  // namespace moebius::cpu
