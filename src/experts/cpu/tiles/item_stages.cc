// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "experts/cpu/tiles/item_stages.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "experts/cpu/tiles/read_ahead.h"
#include "experts/validate.h"
#include "experts/weight_tensors.h"

namespace moebius::cpu {

namespace {

constexpr int64_t kMostItemRows = 640;
// Outputs from this size on would only push weights and panels out of the caches.
constexpr int64_t kStreamedBytes = int64_t{16} << 20;

// The floats of C for some rows and one column block.
int64_t block_floats(int64_t rows) {
  return num_panels(rows) * kPanelFloats;
}

// Rows become codes where they have one scale each, or one per group and the weight has the same
// groups.  Groups of other columns than multiples of 32 do not fit the steps of packed weights,
// which then are decoded.
RowForm row_form(const RowQuantizer& a, const QuantDesc& w, Operand operand) {
  if (operand == Operand::kI8) {
    return RowForm::kCodes;
  }
  if (!a.active() || !takes_codes(a.spec().format)) {
    return RowForm::kValues;
  }
  const int64_t group = a.spec().group.col;
  const bool has_groups_of_weight = a.spec().format == w.format && !w.zero_point &&
                                    group % 32 == 0 && group == PackedWeight::group_columns(w);
  return group <= 0 || has_groups_of_weight ? RowForm::kCodes : RowForm::kValues;
}

// nvfp4 values become bf16 as code times block scale, which bf16 holds exactly.  A given global
// scale is left to the weights' alphas, which were divided by it; one of each row is a power of two
// and stays in the values.  Undefined where rows or weights are not so.
Tensor exact_factor(const QuantDesc& a, const QuantDesc& w, Operand operand) {
  const bool both = a.format == QuantFormat::kNvfp4 && w.format == QuantFormat::kNvfp4;
  return both && operand == Operand::kBF16 ? a.alpha_or_gscale : Tensor();
}

float factor_of(const Tensor& factor, int64_t expert) {
  return factor ? factor.data<float>()[factor.numel() > 1 ? expert : 0] : 1.0f;
}

LoraTile lora_tile(const ItemWork& work, const ItemRows& rows) {
  return {work.item.e, work.item.rows(), work.buffers.adapters, work.buffers.by_adapter,
          rows.shrunk};
}

// One weight w [L, N, k], and how its rows are quantized.
struct GemmSource {
  const RowQuantizer& quantizer;
  const QuantDesc& a;
  const Tensor& w;
  const QuantDesc& w_desc;
  BlockColumns columns;
  int64_t gate_rows;  // see dequantize_weight_rows
  Lora lora;
};

// The global scale that the packed weights make up for; undefined where rows do so by a factor.
Tensor packed_gscale(const Tensor& factor, const QuantDesc& a) {
  return factor ? Tensor() : a.alpha_or_gscale;
}

ItemGemm make_gemm(const GemmSource& from,
                   Operand operand,
                   const NumaPlacement& placement,
                   const Stream& stream) {
  const Tensor factor = exact_factor(from.a, from.w_desc, operand);
  const Tensor gscale = packed_gscale(factor, from.a);
  return {from.quantizer,
          from.w.dim(2),
          row_form(from.quantizer, from.w_desc, operand),
          factor,
          {from.w, from.w_desc, from.columns, from.gate_rows, gscale, operand, stream, placement},
          from.lora};
}

}  // namespace

ItemBuffers::ItemBuffers(const ItemStages& stages, int64_t rows, Scratch& scratch) {
  const ItemGemm& gemm1 = stages.gemm1();
  const ItemGemm& gemm2 = stages.gemm2();
  x.panels = scratch.take<std::byte>(gemm1.panels_bytes(rows));
  x.scales = scratch.take<float>(rows * gemm1.scales_per_row());
  hidden.panels = scratch.take<std::byte>(gemm2.panels_bytes(rows));
  const int64_t values = stages.activates_panels() ? 0 : rows * stages.activation_width();
  act = scratch.take<std::byte>(row_bytes(stages.act_dtype(), values));
  const int64_t coded_rows = gemm2.has_codes() ? rows : 0;
  codes = scratch.take<std::byte>(coded_rows * gemm2.k);
  hidden.scales = scratch.take<float>(coded_rows * gemm2.scales_per_row());
  row = scratch.take<std::byte>(std::max(gemm1.k, gemm2.k) * value_bytes(stages.operand()));
  const int64_t lora_rows = stages.desc().num_adapters > 0 ? rows : 0;
  adapters = scratch.take<int32_t>(lora_rows);
  by_adapter = scratch.take<int32_t>(lora_rows);
  x.shrunk = scratch.take<float>(rows * gemm1.lora.num_columns());
  hidden.shrunk = scratch.take<float>(rows * gemm2.lora.num_columns());
}

ThreadBuffers::ThreadBuffers(const ItemStages& stages, int64_t rows, Scratch& scratch) {
  const int64_t lora_rows = stages.desc().num_adapters > 0 ? rows : 0;
  for (int64_t i = 0; i < 2; ++i) {
    c[i] = scratch.take<float>(block_floats(rows));
    addend[i] = scratch.take<float>(lora_rows * kBlockColumns);
  }
  lora = scratch.take<std::byte>(
      std::max(stages.gemm1().lora.scratch_bytes(), stages.gemm2().lora.scratch_bytes()));
}

ItemStages::ItemStages(const ExpertsDesc& desc,
                       const ExpertWeights& weights,
                       const ItemMeans& means,
                       const Stream& stream)
    : desc_(desc),
      kernels_(means.kernels),
      operand_(means.operand),
      tuning_(tile_tuning()),
      gemm1_(make_gemm({means.a1,
                        weights.quant.a1,
                        weights.w1,
                        weights.quant.w1,
                        {desc.w1_rows(), desc.activation.gated, desc.activation.interleaved},
                        gate_rows(desc),
                        {weights.lora.w1_a, weights.lora.w1_b, weights.lora.scaling}},
                       means.operand,
                       means.placement,
                       stream)),
      gemm2_(make_gemm({means.a2,
                        weights.quant.a2,
                        weights.w2,
                        weights.quant.w2,
                        {desc.hidden, false, false},
                        desc.hidden,
                        {weights.lora.w2_a, weights.lora.w2_b, weights.lora.scaling}},
                       means.operand,
                       means.placement,
                       stream)) {}

void ItemStages::repack(const ExpertWeights& weights, const Stream& stream) {
  ItemGemm* gemms[] = {&gemm1_, &gemm2_};
  for (size_t i = 0; const auto& side : sides_of(weights)) {
    ItemGemm& gemm = *gemms[i++];
    if (side.w) {
      gemm.weight.repack(side.w, side.quant, packed_gscale(gemm.factor, side.rows), stream);
    }
  }
}

int64_t ItemStages::most_rows() const {
  const int64_t line_bytes = gemm1_.weight.lines() * kTileRowBytes;
  return std::clamp(tuning_.panel_bytes / line_bytes / kPanelRows * kPanelRows, kLeastItemRows,
                    kMostItemRows);
}

int64_t ItemStages::activation_width() const {
  return gemm1_.weight.num_blocks() * (desc_.activation.gated ? kTileColumns : kBlockColumns);
}

// Packs the rows from[i] into panels, and multiplies them by A of their adapters.
void ItemStages::pack(const ItemWork& work,
                      const ItemGemm& gemm,
                      const ItemRows& to,
                      const std::byte* const* from,
                      DType dtype) const {
  pack_rows({dtype, operand_, gemm.k, gemm.weight.lines(),
             factor_of(gemm.factor, work.item.e) * gemm.weight.row_factor()},
            from, work.item.rows(), work.buffers.row, to.panels);
  if (work.call.lora_ids && gemm.lora.defined()) {
    const int64_t per_row = gemm.scales_per_row();
    const int64_t block = per_row > 1 ? gemm.quantizer.spec().group.col : gemm.k;
    gemm.lora.shrink(lora_tile(work, to), from, dtype, {to.scales, per_row, block}, work.own.lora);
  }
}

void ItemStages::pack_input(const ItemWork& work) const {
  const auto& [item, call, buffers, own] = work;
  const InputRows rows(gemm1_.quantizer, desc_.format);
  const int64_t bytes = row_bytes(call.x.dtype(), desc_.hidden);
  const int64_t num_blocks = gemm1_.scales_per_row();
  std::array<const std::byte*, kMostItemRows> from;
  for (int64_t i = 0; i < item.rows(); ++i) {
    const int64_t row = rows.index(call.order, item.begin + i);
    from[static_cast<size_t>(i)] = call.x.bytes() + row * bytes;
    if (gemm1_.has_codes()) {
      std::copy_n(call.x_scales + row * num_blocks, num_blocks, buffers.x.scales + i * num_blocks);
    }
  }
  sort_adapters(work);
  pack(work, gemm1_, buffers.x, from.data(), call.x.dtype());
}

void ItemStages::sort_adapters(const ItemWork& work) const {
  const auto& [item, call, buffers, own] = work;
  if (!call.lora_ids) {
    return;
  }
  for (int64_t i = 0; i < item.rows(); ++i) {
    buffers.adapters[i] = call.lora_ids.data<int32_t>()[call.order.input_row(item.begin + i)];
  }
  sort_by_adapter(buffers.adapters, item.rows(), buffers.by_adapter);
}

// Computes what adapters add to a block, in own.addend; null where there are none.
const float* ItemStages::addend(const ItemWork& work,
                                const ItemGemm& gemm,
                                const ItemRows& rows,
                                int64_t block) const {
  if (!work.call.lora_ids || !gemm.lora.defined()) {
    return nullptr;
  }
  float* c = work.own.addend[block % 2];
  std::fill_n(c, work.item.rows() * kBlockColumns, 0.0f);
  const BlockColumns& columns = gemm.weight.columns();
  const int64_t count = columns.gated ? kTileColumns : kBlockColumns;
  for (int64_t first = 0; first < kBlockColumns; first += count) {
    LoraRows lora = {columns.row(block, first), columns.interleaved ? 2 : 1, 0, first / count};
    while (lora.count < count && columns.row(block, first + lora.count) >= 0) {
      ++lora.count;
    }
    gemm.lora.expand(lora_tile(work, rows), lora, c + first, kBlockColumns, work.own.lora);
  }
  return c;
}

ExponentRange ItemStages::exponents(const ItemWork& work,
                                    const ItemGemm& gemm,
                                    const ItemRows& rows) const {
  const bool is_needed = operand_ == Operand::kBF16  ? tuning_.f32_products
                         : operand_ == Operand::kF32 ? gemm.weight.has_scale_exponents()
                                                     : false;
  return is_needed && kernels_.exponents != nullptr
             ? kernels_.exponents(rows.panels, work.item.rows(), gemm.weight.steps())
             : ExponentRange();
}

// Multiplies one block of C for all rows of an item.
void ItemStages::multiply(const ItemWork& work,
                          const ItemGemm& gemm,
                          const ItemRows& rows,
                          const ExponentRange& exponents,
                          int64_t block,
                          const ReadLater& later,
                          TileEpilogue& epilogue,
                          TileRest& rest) const {
  const PackedWeight& w = gemm.weight;
  const int64_t expert = work.item.e;
  epilogue.addend = addend(work, gemm, rows, block);
  TileGemm product;
  w.set(expert, block, product);
  product.a = rows.panels;
  product.rows = work.item.rows();
  product.exponents = exponents;
  product.c = work.own.c[block % 2];
  product.fetch_ahead = tuning_.fetch_ahead;
  product.fetch_by_pages = tuning_.fetch_by_pages;
  product.f32_products = tuning_.f32_products;
  const BlockPlace& after = later.after;
  const bool is_last = block + 1 == later.end;
  if (!is_last) {
    w.set_next(expert, block + 1, product);
  } else if (after.weight != nullptr && later.is_small) {
    after.weight->set_next(after.expert, after.block, product);
  }
  product.next.back() = part_ahead(later.beside_last, block - later.begin, later.end - later.begin);
  if (after.weight != nullptr) {
    const std::span<const std::byte> last = w.codes(expert, later.end - 1);
    product.codes_end = last.data() + last.size();
    product.codes_after = after.codes().data();
    if (is_last) {
      after.weight->fetch_scales(after.expert, after.block);
    }
  }
  epilogue.dtype = desc_.in_dtype;
  epilogue.integers = operand_ == Operand::kI8;
  epilogue.row_scales = gemm.has_codes() ? rows.scales : nullptr;
  if (const int64_t per_row = gemm.scales_per_row(); per_row > 1) {
    product.row_scales = std::exchange(epilogue.row_scales, nullptr);
    product.row_groups = per_row;
  }
  w.set(expert, block, epilogue);
  kernels_.multiply(product, epilogue, rest);
}

void ItemStages::run_gemm1(const ItemWork& work,
                           int64_t begin,
                           int64_t end,
                           const BlockPlace& after) const {
  const auto& [item, call, buffers, own] = work;
  const int64_t columns = desc_.activation.gated ? kTileColumns : kBlockColumns;
  const bool in_panels = activates_panels();
  std::byte* const panels = buffers.hidden.panels;
  TileEpilogue act;
  TileRest rest;
  act.activation = &desc_.activation;
  act.as_f32 = (in_panels ? operand_ == Operand::kF32 : act_dtype() == DType::kF32);
  act.act_factor = in_panels ? gemm2_.weight.row_factor() : 1.0f;
  const int64_t value_bytes = act.as_f32 ? 4 : bits(desc_.in_dtype) / 8;
  const auto panel_column = [&](int64_t column) {
    const int64_t bytes = column * value_bytes;
    return panels + bytes / kTileRowBytes * kStepBytes + bytes % kTileRowBytes;
  };
  ReadLater later = {begin, end, after, true, {}};
  // In a whole item, weights have pushed what was written first out of L2.
  const int64_t hidden_bytes = gemm2_.panels_bytes(item.rows());
  const bool is_whole = end - begin == gemm1_.weight.num_blocks();
  if (in_panels && is_whole && item.rows() > kPanelRows && hidden_bytes <= tuning_.panel_bytes) {
    later.beside_last = {panels, static_cast<size_t>(hidden_bytes)};
  }
  if (in_panels) {
    act.row_stride = kTileRowBytes;
    act.tile_stride = kTileBytes;
    act.panel_stride = gemm2_.weight.lines() * kStepBytes;
    act.half_stride = panel_column(kTileColumns) - panels;
  } else {
    act.row_stride = row_bytes(act_dtype(), activation_width());
    act.tile_stride = kTileRows * act.row_stride;
    act.panel_stride = kPanelRows * act.row_stride;
    act.half_stride = kTileColumns * value_bytes;
  }
  const ExponentRange range = exponents(work, gemm1_, buffers.x);
  for (int64_t block = begin; block < end; ++block) {
    const int64_t column = block * columns;
    act.act = in_panels ? panel_column(column) : buffers.act + column * value_bytes;
    multiply(work, gemm1_, buffers.x, range, block, later, act, rest);
  }
  kernels_.finish(rest);
  // Clears the columns that pad GEMM2's last step.  Why they cannot hold what GEMM1's padding
  // gives: of an infinite x that is NaN.
  const int64_t padded = gemm2_.weight.lines() * kTileRowBytes / value_bytes;
  const int64_t in_line = kTileRowBytes / value_bytes;
  for (int64_t column = desc_.intermediate;
       in_panels && end == gemm1_.weight.num_blocks() && column < padded;
       column += in_line - column % in_line) {
    act.act = panel_column(column);
    for (int64_t r = 0; r < item.rows(); ++r) {
      std::memset(act.act_row(r), 0,
                  static_cast<size_t>((in_line - column % in_line) * value_bytes));
    }
  }
}

Tensor ItemStages::packed_activations(const ItemWork& work) const {
  const int64_t num_rows = work.item.rows();
  const int64_t bytes = row_bytes(act_dtype(), desc_.intermediate);
  const int64_t padded = row_bytes(act_dtype(), activation_width());
  std::byte* act = work.buffers.act;
  for (int64_t r = 1; padded != bytes && r < num_rows; ++r) {
    std::memmove(act + r * bytes, act + r * padded, static_cast<size_t>(bytes));
  }
  return Tensor::borrow(act, {num_rows, desc_.intermediate}, act_dtype());
}

void ItemStages::quantize_hidden(const ItemWork& work) const {
  if (activates_panels()) {
    return;
  }
  const RowQuantizer& quantizer = gemm2_.quantizer;
  const Tensor act = packed_activations(work);
  Tensor rows = act;
  if (gemm2_.has_codes()) {
    rows = Tensor::borrow(work.buffers.codes, act.shape(), gemm2_.code_dtype());
    for (int64_t i = 0; quantizer.takes_scales() && i < work.item.rows(); ++i) {
      work.buffers.hidden.scales[i] =
          work.call.a2_scale[work.call.order.input_row(work.item.begin + i)];
    }
    quantizer.codes(act, work.item.e, rows, work.buffers.hidden.scales, Stream::cpu(1));
  } else if (quantizer.active()) {
    quantizer.values(act, work.item.e, act, nullptr, Stream::cpu(1));
  }
  pack_hidden(work, rows);
}

void ItemStages::pack_hidden(const ItemWork& work, const Tensor& rows) const {
  const int64_t bytes = row_bytes(rows.dtype(), desc_.intermediate);
  std::array<const std::byte*, kMostItemRows> from;
  for (int64_t i = 0; i < work.item.rows(); ++i) {
    from[static_cast<size_t>(i)] = rows.bytes() + i * bytes;
  }
  pack(work, gemm2_, work.buffers.hidden, from.data(), rows.dtype());
}

void ItemStages::run_gemm2(const ItemWork& work,
                           int64_t begin,
                           int64_t end,
                           const BlockPlace& after) const {
  const auto& [item, call, buffers, own] = work;
  const RowOrder& order = call.order;
  std::array<std::byte*, kMostItemRows> to;
  for (int64_t i = 0; i < item.rows(); ++i) {
    to[static_cast<size_t>(i)] =
        call.rows.bytes() +
        row_bytes(desc_.in_dtype, order.output_rows[item.begin + i] * desc_.hidden);
  }
  TileEpilogue store;
  TileRest rest;
  store.out = to.data();
  store.weights = call.weights != nullptr ? call.weights + item.begin : nullptr;
  store.past_caches = order.num_rows * desc_.hidden * 2 >= kStreamedBytes &&
                      desc_.hidden % kBlockColumns == 0 &&
                      reinterpret_cast<uintptr_t>(call.rows.raw()) % kTileRowBytes == 0;
  // A block of GEMM1 is too large to be fetched beside one of GEMM2.
  const bool is_small = after.weight == &gemm2_.weight;
  const ReadLater later = {begin, end, after, is_small,
                           is_small ? std::span<const std::byte>() : after.codes()};
  const ExponentRange range = exponents(work, gemm2_, buffers.hidden);
  for (int64_t block = begin; block < end; ++block) {
    store.column = block * kBlockColumns;
    store.columns = std::min(kBlockColumns, desc_.hidden - store.column);
    multiply(work, gemm2_, buffers.hidden, range, block, later, store, rest);
  }
  kernels_.finish(rest);
}

}  // namespace moebius::cpu
