// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/deployment.h"

#include <fmt/format.h>

#include <algorithm>

#include "layer/rows/quantize_rows.h"
#include "moebius/error.h"

namespace moebius::plan {

namespace {

// Bytes are counted in int64.  No sum exceeds all rows of all ranks in their widest form, times the
// number of forms that a rank keeps at once.
void expect_countable(const Deployment& d) {
  constexpr double kMost = 9.2e18;
  constexpr double kForms = 16;
  const LayerShape& l = d.layer;
  const double rows = static_cast<double>(d.ranks) * static_cast<double>(d.tokens) *
                      static_cast<double>(l.routing.topk) * static_cast<double>(d.layers);
  const auto widest =
      4 *
      static_cast<double>(std::max({l.hidden, l.w1_rows(l.intermediate), l.routing.num_experts}));
  if (rows * widest * kForms > kMost) {
    throw InvalidArgument(
        fmt::format("{} tokens on each of {} ranks are too many: bytes of {} layers do not fit an "
                    "integer of 64 bits",
                    d.tokens, d.ranks, d.layers));
  }
}

}  // namespace

void expect_valid(const Deployment& d) {
  expect_ge(d.ranks, 1, "ranks");
  expect_ge(d.ranks_per_node, 0, "ranks per node");
  expect_ge(d.tokens, 1, "tokens per rank");
  expect_ge(d.microbatches, 1, "micro-batches");
  expect_ge(d.redundant_experts, 0, "redundant experts");
  expect_ge(d.layers, 1, "layers");
  expect_ge(d.layer.hidden, 1, "hidden");
  expect_ge(d.layer.intermediate, 1, "intermediate");
  expect_countable(d);
  expect_ge(d.tp, 1, "tp");
  expect_multiple_of(d.ranks, d.tp, "ranks (to be in groups of tp)");
  if (d.shards_experts) {
    expect_eq(d.redundant_experts, 0, "redundant experts (of sharded experts)");
    expect_multiple_of(d.layer.intermediate, d.ranks, "intermediate (to be sharded over ranks)");
    expect_multiple_of(d.local_intermediate(), d.shard_block(),
                       fmt::format("intermediate {} over {} ranks (whole blocks share a scale)",
                                   d.layer.intermediate, d.ranks));
  } else if (d.ranks > d.num_places()) {
    throw InvalidArgument(fmt::format(
        "{} ranks, but {} has {} experts{}: some would hold none (--redundant-experts {} gives "
        "each "
        "one)",
        d.ranks, d.layer.name, d.layer.routing.num_experts,
        d.redundant_experts > 0 ? fmt::format(" and {} redundant ones", d.redundant_experts) : "",
        d.ranks - d.layer.routing.num_experts));
  }
}

int64_t matrix_bytes(const std::optional<QuantizeSpec>& spec,
                     DType dtype,
                     int64_t rows,
                     int64_t cols) {
  if (!spec) {
    return rows * cols * bits(dtype) / 8;
  }
  const QuantizedSpecs parts = quantized_specs(*spec, rows, cols);
  const auto bytes = [](const TensorSpec& s) {
    return s.shape[0] * s.shape[1] * bits(s.dtype) / 8;
  };
  const int64_t zero_points = spec->asymmetric ? rows * parts.scale.shape[1] : 0;
  return bytes(parts.values) + bytes(parts.scale) + zero_points;
}

int64_t row_bytes(const Deployment& d) {
  return matrix_bytes(std::nullopt, d.layer.dtype, 1, d.layer.hidden);
}

int64_t coded_row_bytes(const Deployment& d) {
  return matrix_bytes(d.formats.activations, d.layer.dtype, 1, d.layer.hidden);
}

int64_t expert_bytes(const Deployment& d, int64_t intermediate) {
  const LayerShape& l = d.layer;
  const auto& spec = d.formats.weights;
  return matrix_bytes(spec, l.dtype, l.w1_rows(intermediate), l.hidden) +
         matrix_bytes(spec, l.dtype, l.hidden, intermediate);
}

int64_t expert_flops_per_row(const LayerShape& layer, int64_t intermediate) {
  return 2 * layer.hidden * (layer.w1_rows(intermediate) + intermediate);
}

}  // namespace moebius::plan
