// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/tiles/packed_weight.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "core/allocate.h"
#include "core/ceil_div.h"
#include "core/node_tasks.h"
#include "core/parallel.h"
#include "experts/byte_limits.h"
#include "moebius/float_types.h"
#include "moebius/quantize.h"

namespace moebius::cpu {

namespace {

// Products of e2m1 codes with e8m0 scales between these two are all finite bf16 numbers.  Units of
// bf16 products hold the least of them instead of smaller scales.
constexpr uint8_t kLeastMxScale = 1;
constexpr uint8_t kLargestMxScale = 252;

std::shared_ptr<std::byte> allocate(int64_t bytes) {
  return bytes > 0 ? std::static_pointer_cast<std::byte>(moebius::allocate(bytes, Device::cpu()))
                   : nullptr;
}

bool is_6bit(QuantFormat format) {
  return format == QuantFormat::kMxfp6E2M3 || format == QuantFormat::kMxfp6E3M2;
}

// Whether the format is an mx format whose scales become those of groups.
bool has_mx_groups(QuantFormat format) {
  return format == QuantFormat::kMxfp8 || is_6bit(format);
}

// For bf16 products packed weights carry powers of two that their scales make up for, and NaN reads
// as 480.  So the largest scales, and NaN, are refused.
Support scale_codes_supported(const QuantDesc& desc) {
  const uint8_t most = *desc.format == QuantFormat::kMxfp4   ? kLargestMxScale
                       : has_mx_groups(*desc.format)         ? uint8_t{246}
                       : *desc.format == QuantFormat::kNvfp4 ? uint8_t{0x7e}
                                                             : uint8_t{0xff};
  const uint8_t magnitude = *desc.format == QuantFormat::kNvfp4 ? 0x7f : 0xff;
  const auto above = most < 0xff ? first_above(desc.scale, magnitude, most) : std::nullopt;
  return above ? Support::no(fmt::format("scale {} is the {} code {}, packed weights take up to {}",
                                         *above, name(desc.scale.dtype()),
                                         static_cast<int>(desc.scale.bytes()[*above]), most))
               : Support::yes();
}

// Whether units can hold the codes of a weight, and why not.
Support codes_supported(const QuantDesc& desc, Operand operand) {
  const int64_t columns = PackedWeight::group_columns(desc);
  if (columns % 32 != 0) {
    return Support::no(fmt::format("groups of {} columns are not a multiple of 32", columns));
  }
  // With f32 products the scale of a group multiplies a sum of codes, which may be finite where the
  // values that the codes stand for are not.
  return operand == Operand::kBF16 || has_mx_groups(*desc.format) ? scale_codes_supported(desc)
                                                                  : Support::yes();
}

TileCode code_of(DType dtype, const QuantDesc& desc, Operand operand) {
  if (!desc.format) {
    return dtype == DType::kF32   ? TileCode::kF32
           : dtype == DType::kF16 ? TileCode::kF16
                                  : TileCode::kBF16;
  }
  if (!codes_supported(desc, operand).ok) {
    return TileCode::kF32;
  }
  switch (*desc.format) {
    case QuantFormat::kInt8:
      return operand == Operand::kI8 ? TileCode::kI8 : TileCode::kI8AsBF16;
    case QuantFormat::kInt4:
      return TileCode::kInt4;
    case QuantFormat::kMxfp4:
      return TileCode::kMxfp4;
    case QuantFormat::kNvfp4:
      return TileCode::kNvfp4;
    default:
      return TileCode::kF8E4M3;  // e4m3 also has all values of 6-bit codes
  }
}

// The e4m3 code of each 6-bit code.
using SixBitTable = std::array<uint8_t, 64>;
constexpr SixBitTable six_bit_table(float (*value)(uint8_t)) {
  SixBitTable table{};
  for (uint8_t code = 0; code < table.size(); ++code) {
    table[code] = F8E4M3(value(code)).bits;
  }
  return table;
}
constexpr SixBitTable kE2M3 = six_bit_table(e2m3_to_float);
constexpr SixBitTable kE3M2 = six_bit_table(e3m2_to_float);

// Code k of a row as e4m3.
uint8_t e4m3_code(QuantFormat format, const std::byte* row, int64_t k) {
  if (!is_6bit(format)) {
    return static_cast<uint8_t>(row[k]);
  }
  const int64_t bit = 6 * k;
  const auto low = static_cast<uint32_t>(row[bit / 8]);
  const auto high = bit % 8 > 2 ? static_cast<uint32_t>(row[bit / 8 + 1]) : 0;
  const uint32_t code = ((high << 8 | low) >> (bit % 8)) & 0x3f;
  return format == QuantFormat::kMxfp6E2M3 ? kE2M3[code] : kE3M2[code];
}

uint8_t nibble(const std::byte* row, int64_t k) {
  return (static_cast<uint8_t>(row[k / 2]) >> (k % 2 * 4)) & 0xf;
}

}  // namespace

int64_t BlockColumns::row(int64_t block, int64_t column) const {
  if (!gated) {
    const int64_t row = block * kBlockColumns + column;
    return row < num_rows ? row : -1;
  }
  const int64_t half = num_rows / 2;
  const bool is_up = column >= 16;
  const int64_t i = block * 16 + column % 16;
  if (i >= half) {
    return -1;
  }
  return interleaved ? 2 * i + (is_up ? 1 : 0) : i + (is_up ? half : 0);
}

int64_t PackedWeight::group_columns(const QuantDesc& desc) {
  if (!desc.format || desc.format == QuantFormat::kNvfp4 || desc.format == QuantFormat::kMxfp4) {
    return 0;
  }
  if (has_mx_groups(*desc.format)) {
    return 32;
  }
  return desc.shape && desc.shape->col > 0 ? desc.shape->col : 0;
}

Support PackedWeight::supports(const QuantDesc& desc, Operand operand) {
  if (!desc.format || operand == Operand::kF32) {
    return Support::yes();
  }
  if (desc.format == QuantFormat::kInt8 && desc.zero_point) {
    return Support::no("no bf16 products of int8 weights with zero points");
  }
  return codes_supported(desc, operand);
}

struct PackedWeight::Source {
  const Tensor& w;
  const QuantDesc& desc;
  quant::ScaleGrid grid;
  const Tensor& activation_gscale;
  int64_t gate_rows;
  bool is_decoded;  // units hold the values that codes stand for, scales included

  bool has_scales() const { return desc.format && !is_decoded; }
};

PackedWeight::PackedWeight(const Tensor& w,
                           const QuantDesc& desc,
                           const BlockColumns& columns,
                           int64_t gate_rows,
                           const Tensor& activation_gscale,
                           Operand operand,
                           const Stream& stream,
                           const NumaPlacement& placement)
    : columns_(columns),
      gate_rows_(gate_rows),
      operand_(operand),
      code_(code_of(w.dtype(), desc, operand)),
      k_(w.dim(2)),
      steps_(ceil_div(k_, step_values(operand))),
      placement_(placement) {
  const Source source = source_of(w, desc, activation_gscale);
  if (source.has_scales()) {
    scale_dtype_ = desc.scale.dtype();
  }
  const int64_t blocks = w.dim(0) * num_blocks();
  const bool has_step_scales = step_scale_bytes(code_) > 0;
  if (source.has_scales() && !has_step_scales && source.grid.num_cols > 1) {
    group_steps_ = source.grid.group_cols / step_values(operand);
    num_groups_ = source.grid.num_cols;
    group_scales_ = allocate(blocks * num_groups_ * kBlockColumns * bits(scale_dtype_) / 8);
  }
  units_ = allocate(blocks * steps_ * unit_bytes(code_) + kReadPast);
  step_scales_ = allocate(blocks * steps_ * step_scale_bytes(code_));
  if (code_ == TileCode::kMxfp4) {
    scale_exponents_ = std::make_unique<ExponentRange[]>(static_cast<size_t>(blocks));
  }
  if (source.has_scales() && desc.zero_point) {
    zero_points_ = allocate(blocks * std::max<int64_t>(1, num_groups_) * kBlockColumns);
  }
  const auto per_column = static_cast<size_t>(blocks * kBlockColumns);
  const bool scales_columns = source.has_scales() && group_steps_ == 0 && code_ != TileCode::kMxfp4;
  if (scales_columns) {
    column_scales_ = std::make_unique<float[]>(per_column);
  }
  if (desc.bias) {
    bias_ = std::make_unique<float[]>(per_column);
  }
  if (code_ == TileCode::kF8E4M3) {
    others_ = std::make_unique<uint16_t[]>(static_cast<size_t>(blocks * steps_));
  }
  place(w.dim(0));
  pack_all(source, stream);
}

// Before anything is written, as pages get their node when they are.
void PackedWeight::place(int64_t num_experts) const {
  const int64_t blocks = num_experts * num_blocks();
  placement_.place(units_.get(), blocks * steps_ * unit_bytes(code_), num_experts);
  placement_.place(step_scales_.get(), blocks * steps_ * step_scale_bytes(code_), num_experts);
  placement_.place(group_scales_.get(),
                   blocks * num_groups_ * kBlockColumns * bits(scale_dtype_) / 8, num_experts);
}

PackedWeight::Source PackedWeight::source_of(const Tensor& w,
                                             const QuantDesc& desc,
                                             const Tensor& activation_gscale) const {
  Source source = {
      w, desc, {}, activation_gscale, gate_rows_, desc.format && code_ == TileCode::kF32};
  if (source.has_scales()) {
    source.grid = quant::scale_grid(w, desc, gate_rows_);
  }
  return source;
}

void PackedWeight::repack(const Tensor& w,
                          const QuantDesc& desc,
                          const Tensor& activation_gscale,
                          const Stream& stream) {
  if (code_of(w.dtype(), desc, operand_) == code_) {
    pack_all(source_of(w, desc, activation_gscale), stream);
  } else {
    *this = PackedWeight(w, desc, columns_, gate_rows_, activation_gscale, operand_, stream,
                         placement_);
  }
}

void PackedWeight::pack_all(const Source& source, const Stream& stream) {
  const int64_t num_experts = source.w.dim(0);
  const auto node_of = [&](int64_t task) {
    return placement_.home(task / num_blocks(), num_experts);
  };
  parallel_tasks_by_node(
      stream, num_experts * num_blocks(), placement_, node_of,
      [&](int64_t task, int) { pack_block(source, task / num_blocks(), task % num_blocks()); });
}

void PackedWeight::pack_block(const Source& source, int64_t expert, int64_t block) {
  const Tensor& w = source.w;
  const int64_t bytes_per_row = row_bytes(w.dtype(), k_);
  const int64_t first_step = block_index(expert, block) * steps_;
  std::byte* units = units_.get() + first_step * unit_bytes(code_);
  uint16_t* others = others_ != nullptr ? others_.get() + first_step : nullptr;
  // Padding may be any finite value: the activations or the scales that it meets are zero.
  std::memset(units, 0, static_cast<size_t>(steps_ * unit_bytes(code_)));
  if (others != nullptr) {
    std::fill_n(others, steps_, uint16_t{0});
  }
  std::vector<float> decoded(static_cast<size_t>(source.is_decoded ? k_ : 0));
  for (int64_t c = 0; c < kBlockColumns; ++c) {
    const int64_t n = columns_.row(block, c);
    if (n < 0) {
      continue;
    }
    const std::byte* row = w.bytes() + (expert * w.dim(1) + n) * bytes_per_row;
    if (source.is_decoded) {
      dequantize_weight_rows(w, source.desc, {expert, n, n + 1, source.gate_rows}, decoded.data(),
                             source.activation_gscale);
      row = reinterpret_cast<const std::byte*>(decoded.data());
    }
    pack_units(c, source.desc.format.value_or(QuantFormat::kFp8), row, units, others);
  }
  if (source.desc.format || source.desc.bias) {
    pack_scales(source, expert, block);
  }
}

// Packs column `column` of a block from a weight row of K codes.
void PackedWeight::pack_units(int64_t column,
                              QuantFormat format,
                              const std::byte* row,
                              std::byte* units,
                              uint16_t* others) const {
  const int64_t tile = column / 16;
  const int64_t j = column % 16;
  switch (code_) {
    case TileCode::kF32:
      for (int64_t k = 0; k < k_; ++k) {
        std::memcpy(units + k / 32 * 2 * kStepBytes + tile * kStepBytes + (k % 32 * 16 + j) * 4,
                    row + k * 4, 4);
      }
      break;
    case TileCode::kBF16:
    case TileCode::kF16:
    case TileCode::kI8: {
      // A dword holds two bf16 or f16, or four i8.
      const int64_t size = code_ == TileCode::kI8 ? 1 : 2;
      const int64_t bytes = k_ * size;
      for (int64_t i = 0; i < bytes; i += 4) {
        std::byte* out = units + i / 64 * kStepBytes + tile * kTileBytes + i % 64 / 4 * 64 + j * 4;
        std::memcpy(out, row + i, static_cast<size_t>(std::min<int64_t>(4, bytes - i)));
      }
      break;
    }
    case TileCode::kF8E4M3:
      for (int64_t k = 0; k < k_; ++k) {
        const int64_t tile_row = k % 32 / 2;
        const uint8_t code = e4m3_code(format, row, k);
        const auto low = static_cast<uint8_t>((code & 0x80) | (code & 0xf) << 3 | (code >> 4 & 7));
        units[k / 32 * 1024 + tile * 512 + tile_row / 2 * 64 + (j * 2 + k % 2) * 2 + tile_row % 2] =
            std::byte{tile_row % 2 == 0 ? low : code};
        const bool is_below_normal = (code & 0x78) == 0;
        if ((is_below_normal && operand_ == Operand::kBF16) || (code & 0x7f) == 0x7f) {
          others[k / 32] |= static_cast<uint16_t>(1 << (tile * 8 + tile_row / 2));
        }
      }
      break;
    case TileCode::kI8AsBF16:
      for (int64_t k = 0; k < k_; ++k) {
        const int64_t tile_row = k % 32 / 2;
        const int64_t element = j * 2 + k % 2;
        units[k / 32 * 1024 + tile * 512 + tile_row / 2 * 64 + element / 8 * 16 + tile_row % 2 * 8 +
              element % 8] = row[k] ^ std::byte{0x80};
      }
      break;
    default:
      for (int64_t k = 0; k < k_; ++k) {
        const int64_t tile_row = k % 32 / 2;
        const int64_t element = j * 2 + k % 2;
        std::byte* out =
            units + k / 32 * 512 + tile * 256 + tile_row / 4 * 64 + element * 2 + tile_row % 4 / 2;
        *out |= static_cast<std::byte>(nibble(row, k) << (tile_row % 2 * 4));
      }
  }
}

void PackedWeight::pack_scales(const Source& source, int64_t expert, int64_t block) {
  const QuantDesc& desc = source.desc;
  const int64_t index = block_index(expert, block);
  const int64_t element = bits(scale_dtype_) / 8;
  for (int64_t c = 0; c < kBlockColumns; ++c) {
    const int64_t n = columns_.row(block, c);
    const int64_t at = index * kBlockColumns + c;
    if (bias_ != nullptr) {
      bias_[static_cast<size_t>(at)] =
          n >= 0 ? get_float(desc.bias, expert * source.w.dim(1) + n) : 0.0f;
    }
    if (!source.has_scales()) {
      continue;
    }
    const int64_t first = n >= 0 ? source.grid.row_begin(expert, n) : 0;
    if (column_scales_ != nullptr) {
      float scale = 0.0f;
      if (n >= 0 && code_ == TileCode::kNvfp4) {
        scale = quant::global_factor(desc, expert, n >= source.gate_rows, source.activation_gscale);
      } else if (n >= 0) {
        scale = get_float(desc.scale, first);
      }
      column_scales_[static_cast<size_t>(at)] = scale_factor(code_, operand_) * scale;
    }
    for (int64_t g = 0; g < num_groups_; ++g) {
      std::byte* out =
          group_scales_.get() + ((index * num_groups_ + g) * kBlockColumns + c) * element;
      if (n >= 0) {
        std::memcpy(out, desc.scale.bytes() + (first + g) * element, static_cast<size_t>(element));
      } else {
        std::memset(out, 0, static_cast<size_t>(element));
      }
    }
    if (zero_points_ != nullptr) {
      const int64_t groups = std::max<int64_t>(1, num_groups_);
      for (int64_t g = 0; g < groups; ++g) {
        zero_points_.get()[(index * groups + g) * kBlockColumns + c] =
            n >= 0 ? desc.zero_point.bytes()[first + g] : std::byte{0};
      }
    }
  }
  if (step_scales_ != nullptr) {
    pack_step_scales(source, expert, block);
  }
}

void PackedWeight::pack_step_scales(const Source& source, int64_t expert, int64_t block) {
  const QuantDesc& desc = source.desc;
  const bool is_mxfp4 = code_ == TileCode::kMxfp4;
  const uint8_t least = is_mxfp4 && operand_ == Operand::kBF16 ? kLeastMxScale : uint8_t{0};
  // mxfp4 has one scale per step, nvfp4 two.
  const int64_t num_scales = steps_ * step_scale_bytes(code_) / kBlockColumns;
  const int64_t index = block_index(expert, block);
  std::byte* out = step_scales_.get() + index * num_scales * kBlockColumns;
  ExponentRange range = {255, 0};
  const auto for_each_scale = [&](auto body) {
    for (int64_t c = 0; c < kBlockColumns; ++c) {
      const int64_t n = columns_.row(block, c);
      const int64_t first = n >= 0 ? source.grid.row_begin(expert, n) : 0;
      for (int64_t g = 0; g < num_scales; ++g) {
        const bool is_padding = n < 0 || g >= source.grid.num_cols;
        body(out[g * kBlockColumns + c], is_padding ? nullptr : desc.scale.bytes() + first + g);
      }
    }
  };
  for_each_scale([&](std::byte& to, const std::byte* from) {
    if (from != nullptr) {
      const uint8_t scale = std::max(static_cast<uint8_t>(*from), least);
      to = std::byte{scale};
      range = {std::min<int>(range.least, scale), std::max<int>(range.most, scale)};
    }
  });
  // Padding in mxfp4 does not widen the range.
  const auto of_padding = is_mxfp4 ? static_cast<uint8_t>(range.least) : kLeastMxScale;
  for_each_scale([&](std::byte& to, const std::byte* from) {
    if (from == nullptr) {
      to = std::byte{of_padding};
    }
  });
  if (is_mxfp4) {
    scale_exponents_[static_cast<size_t>(index)] = range;
  }
}

const std::byte* PackedWeight::units(int64_t expert, int64_t block) const {
  return units_.get() + block_index(expert, block) * steps_ * unit_bytes(code_);
}

void PackedWeight::set(int64_t expert, int64_t block, TileGemm& gemm) const {
  const int64_t index = block_index(expert, block);
  gemm.steps = steps_;
  gemm.code = code_;
  gemm.units = units(expert, block);
  gemm.others = others_ != nullptr ? others_.get() + index * steps_ : nullptr;
  gemm.group_steps = group_steps_;
  gemm.scale_dtype = scale_dtype_;
  if (step_scales_ != nullptr) {
    gemm.step_scales = step_scales_.get() + index * steps_ * step_scale_bytes(code_);
  }
  if (scale_exponents_ != nullptr) {
    gemm.scale_exponents = scale_exponents_[static_cast<size_t>(index)];
  }
  if (group_scales_ != nullptr) {
    gemm.group_scales =
        group_scales_.get() + index * num_groups_ * kBlockColumns * bits(scale_dtype_) / 8;
  }
  if (zero_points_ != nullptr) {
    gemm.zero_points = reinterpret_cast<const uint8_t*>(zero_points_.get()) +
                       index * std::max<int64_t>(1, num_groups_) * kBlockColumns;
  }
}

void PackedWeight::set_next(int64_t expert, int64_t block, TileGemm& gemm) const {
  TileGemm next;
  set(expert, block, next);
  const auto span = [](const std::byte* at, int64_t bytes) {
    return std::span(at, at != nullptr ? static_cast<size_t>(bytes) : 0);
  };
  // No code has both `others` and step scales.
  const auto of_steps = next.others != nullptr
                            ? std::as_bytes(std::span(next.others, static_cast<size_t>(steps_)))
                            : span(next.step_scales, steps_ * step_scale_bytes(code_));
  gemm.next = {codes(expert, block), of_steps,
               span(next.group_scales, num_groups_ * kBlockColumns * bits(scale_dtype_) / 8)};
}

void PackedWeight::fetch_scales(int64_t expert, int64_t block) const {
  TileGemm gemm;
  set_next(expert, block, gemm);
  for (const std::span<const std::byte> scales : {gemm.next[1], gemm.next[2]}) {
    for (size_t at = 0; at < scales.size(); at += kTileRowBytes) {
      __builtin_prefetch(scales.data() + at, /*rw=*/0, /*locality=*/2);
    }
  }
}

std::span<const std::byte> PackedWeight::codes(int64_t expert, int64_t block) const {
  return {units(expert, block), static_cast<size_t>(steps_ * unit_bytes(code_))};
}

void PackedWeight::set(int64_t expert, int64_t block, TileEpilogue& epilogue) const {
  const int64_t at = block_index(expert, block) * kBlockColumns;
  epilogue.column_scales = column_scales_ != nullptr ? column_scales_.get() + at : nullptr;
  epilogue.bias = bias_ != nullptr ? bias_.get() + at : nullptr;
}

}  // namespace moebius::cpu
