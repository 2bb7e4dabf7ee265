// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/gemm.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/ceil_div.h"
#include "experts/cuda/gemm/gemm_plan.h"
#include "quant/group_rule.h"

namespace moebius::plan {

namespace {

constexpr double kManyRows = std::numeric_limits<double>::infinity();

// Kernels are chosen as on Hopper.  The rates of a CPU have the names of the same kinds.
CudaDeviceInfo hopper() {
  CudaDeviceInfo gpu;
  gpu.major = 9;
  return gpu;
}

struct Sizes {
  int64_t num_experts;
  int64_t n;
  int64_t k;
  int64_t gate_rows;
};
Sizes sizes_of_w1(const LayerShape& l, int64_t num_experts, int64_t intermediate) {
  return {num_experts, l.w1_rows(intermediate), l.hidden, intermediate};
}
Sizes sizes_of_w2(const LayerShape& l, int64_t num_experts, int64_t intermediate) {
  return {num_experts, l.hidden, intermediate, l.hidden};
}

// The facts of weights as quantizing at load makes them.
cuda::WeightFacts weight_facts(const Deployment& d, const Sizes& sizes) {
  cuda::WeightFacts facts;
  facts.num_groups = sizes.num_experts;
  facts.n = sizes.n;
  facts.k = sizes.k;
  facts.gate_rows = sizes.gate_rows;
  facts.dtype = d.layer.dtype;
  const std::optional<QuantizeSpec>& spec = d.formats.weights;
  if (!spec) {
    return facts;
  }
  const GroupShape group = spec->group;
  facts.format = spec->format;
  facts.shape = group;
  facts.dtype = storage_dtype(spec->format);
  facts.scale_dtype = spec->format == QuantFormat::kNvfp4 ? DType::kF8E4M3
                      : is_ocp_mx(spec->format)           ? DType::kE8M0
                                                          : DType::kF32;
  facts.scale_dims = group.col >= 1 ? 3 : 2;
  facts.grid.group_rows = group.row == -1 ? sizes.n : std::max<int64_t>(group.row, 1);
  facts.grid.group_cols = group.col >= 1 ? group.col : sizes.k;
  facts.grid.num_rows = ceil_div(sizes.n, facts.grid.group_rows);
  facts.grid.num_cols = ceil_div(sizes.k, facts.grid.group_cols);
  facts.grid.gate_rows = sizes.gate_rows;
  facts.num_scales = sizes.num_experts * facts.grid.num_rows * facts.grid.num_cols;
  return facts;
}

// The facts of rows as the experts quantize them.
cuda::RowFacts row_facts(const Deployment& d, const cuda::WeightFacts& weights) {
  const std::optional<QuantizeSpec>& spec = d.formats.activations;
  if (!spec) {
    return {.dtype = d.layer.dtype};
  }
  const bool divides = spec->format == QuantFormat::kNvfp4 && !spec->global_scale_per_row;
  const bool holds_scales = is_ocp_mx(spec->format) || spec->global_scale_per_row;
  const bool widens = spec->format == QuantFormat::kFp8 && spec->group.col < 1 &&
                      cuda::wants_bf16_codes(weights, hopper(), std::nullopt);
  cuda::RowFacts facts;
  facts.dtype = widens || quant::scaled_codes_fit(spec->format, DType::kBF16)
                    ? DType::kBF16
                    : storage_dtype(spec->format);
  facts.scales = divides || spec->group.is_per_tensor() ? cuda::RowScales::kAll
                 : holds_scales                         ? cuda::RowScales::kNone
                                                        : cuda::RowScales::kPerRow;
  facts.block = spec->group.col > 0 ? spec->group.col : weights.k;
  facts.divides = divides;
  return facts;
}

cuda::GemmDesc desc_of(const Deployment& d, const Sizes& sizes) {
  cuda::GemmDesc desc;
  desc.weights = weight_facts(d, sizes);
  desc.rows = row_facts(d, desc.weights);
  desc.out = d.layer.dtype;
  desc.keeps_f32 = d.layer.dtype == DType::kF32;
  if (d.layer.shared_intermediate > 0) {
    desc.most_thin_code_rows = d.layer.routing.topk;
  }
  return desc;
}

// GEMM1 with its activation, and with the codes of activated rows where GEMM2 takes codes.
cuda::GemmDesc desc_of_gemm1(const Deployment& d, int64_t num_experts, int64_t intermediate) {
  cuda::GemmDesc desc = desc_of(d, sizes_of_w1(d.layer, num_experts, intermediate));
  desc.activation = ActivationSpec{.gated = d.layer.is_gated};
  desc.codes = d.formats.activations;
  desc.out = desc.codes ? desc.rows.dtype : DType::kBF16;
  return desc;
}

cuda::GemmPlan plan_of(const cuda::GemmDesc& desc, double rows_of_expert) {
  const double rows = rows_of_expert * static_cast<double>(desc.weights.num_groups);
  return cuda::choose_gemm(desc, hopper(), rows < kManyRows ? std::llround(rows) : cuda::kManyRows);
}

GemmKind kind_of(const cuda::GemmDesc& desc, const cuda::GemmPlan& plan) {
  switch (plan.multiplier) {
    case cuda::Multiplier::kSm90:
      return plan.decodes() ? GemmKind::kDecoded : GemmKind::kFp8;
    case cuda::Multiplier::kThin:
    case cuda::Multiplier::kFewRows:
      return GemmKind::kRegisters;
    default:
      return cuda::fp8_scales(desc) == cuda::Fp8Scales::kBlocks ? GemmKind::kFp8 : GemmKind::kCoded;
  }
}

}  // namespace

GemmKind gemm_kind(const Deployment& d, int64_t intermediate, double rows_of_expert) {
  const LayerShape& l = d.layer;
  const auto& rows = d.formats.activations;
  if (rows && rows->format == QuantFormat::kInt8) {
    return GemmKind::kInt8;
  }
  if (l.dtype == DType::kF32) {
    return GemmKind::kF32;
  }
  if (l.dtype == DType::kF16 && d.device.is_cpu()) {
    return GemmKind::kCoded;
  }
  if (!d.formats.weights) {
    return GemmKind::kBF16;
  }
  const double rows_here = d.device.is_cuda() ? rows_of_expert : kManyRows;
  GemmKind kind = GemmKind::kF32;
  for (const Sizes& sizes : {sizes_of_w1(l, 1, intermediate), sizes_of_w2(l, 1, intermediate)}) {
    const cuda::GemmDesc desc = desc_of(d, sizes);
    kind = std::max(kind, kind_of(desc, plan_of(desc, rows_here)));  // the slower kind
  }
  return kind;
}

std::array<std::string, 2> gemm_lines(const Deployment& d, int64_t num_experts, double rows) {
  const cuda::GemmDesc gemm1 = desc_of_gemm1(d, num_experts, d.local_intermediate());
  const cuda::GemmDesc gemm2 =
      desc_of(d, sizes_of_w2(d.layer, num_experts, d.local_intermediate()));
  return {to_string(plan_of(gemm1, rows), gemm1), to_string(plan_of(gemm2, rows), gemm2)};
}

Gemm1Result gemm1_result(const Deployment& d,
                         int64_t num_experts,
                         int64_t intermediate,
                         double rows) {
  if (!d.device.is_cuda() || d.layer.dtype != DType::kBF16) {
    return Gemm1Result::kProducts;
  }
  const cuda::GemmDesc desc = desc_of_gemm1(d, num_experts, intermediate);
  const cuda::GemmPlan plan = plan_of(desc, rows);
  return plan.quantizes   ? Gemm1Result::kCodes
         : plan.activates ? Gemm1Result::kActivated
                          : Gemm1Result::kProducts;
}

int64_t decodes_from(const Deployment& d, int64_t num_experts, int64_t intermediate) {
  return plan_of(desc_of(d, sizes_of_w1(d.layer, num_experts, intermediate)), kManyRows)
      .decodes_from;
}

bool decodes_ahead(const Deployment& d, int64_t num_experts, int64_t intermediate, double rows) {
  return d.device.is_cuda() &&
         plan_of(desc_of_gemm1(d, num_experts, intermediate), rows).decodes_ahead &&
         plan_of(desc_of(d, sizes_of_w2(d.layer, num_experts, intermediate)), rows).decodes_ahead;
}

int64_t fetched_ahead(const Deployment& d, double rows) {
  const cuda::GemmDesc desc = desc_of_gemm1(d, d.layer.routing.num_experts, d.local_intermediate());
  const bool fetches = d.device.is_cuda() && plan_of(desc, rows).fetches_ahead;
  return fetches ? cuda::kFetchedByRouter + cuda::kFetchedByGemm1 : 0;
}

int64_t widened_bytes(const Deployment& d, int64_t intermediate, int64_t elements) {
  const auto& rows = d.formats.activations;
  const bool widens = d.device.is_cuda() && rows && rows->format == QuantFormat::kFp8 &&
                      gemm_kind(d, intermediate, kManyRows) == GemmKind::kDecoded;
  return widens ? elements : 0;
}

// The figures are means over the formats in docs/performance/gpu_experts.md.  In tiles of 16, 48
// and 64 rows an element of the weight takes 0.242, 0.282 and 0.320 ps.  So each row costs 0.0016
// ps, and decoding the element costs 135 times as much.  Blocks of larger tiles have fewer columns
// and warps, so that decoding costs more, and a row less where the tile is largest.
double rows_in_registers(const Deployment& d, int64_t intermediate, double rows) {
  const cuda::GemmDesc desc = desc_of(d, sizes_of_w1(d.layer, 1, intermediate));
  const int tile = cuda::few_rows_tile(desc.weights, desc.rows.dtype, static_cast<int64_t>(rows),
                                       cuda::folds_int4(desc));
  if (tile <= cuda::kSmallFewRowsTile) {
    constexpr double kDecoding = 135;
    return std::ceil(rows / tile) * (tile + kDecoding);
  }
  if (tile == cuda::kMediumFewRowsTile) {
    return 190 + 1.1 * rows;  // it is chosen where most groups have one tile
  }
  // Groups differ in size: if the mean is a whole number of tiles, half of them take one more.
  const double tiles = rows < 0.9 * tile ? 1 : rows / tile + 0.5;
  return tiles * 270 + rows * 0.7;
}

int64_t decoded_bytes(const Deployment& d, int64_t num_experts, int64_t intermediate, double rows) {
  if (!d.device.is_cuda() || gemm_kind(d, intermediate, rows) != GemmKind::kDecoded) {
    return 0;
  }
  const auto of_matrix = [&](const Sizes& sizes) {
    return plan_of(desc_of(d, sizes), rows).decoded_elements * int64_t{sizeof(BFloat16)};
  };
  return std::max(of_matrix(sizes_of_w1(d.layer, num_experts, intermediate)),
                  of_matrix(sizes_of_w2(d.layer, num_experts, intermediate)));
}

}  // namespace moebius::plan
