// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/deployment.h"

#include <fmt/format.h>

#include "layer/prepare_rows.h"
#include "moebius/error.h"

namespace moebius::plan {

void expect_valid(const Deployment& d) {
  expect_ge(d.ranks, 1, "ranks");
  expect_ge(d.ranks_per_node, 0, "ranks per node");
  expect_ge(d.tokens, 1, "tokens per rank");
  expect_ge(d.microbatches, 1, "micro-batches");
  expect_ge(d.redundant_experts, 0, "redundant experts");
  expect_ge(d.layers, 1, "layers");
  expect_ge(d.layer.hidden, 1, "hidden");
  expect_ge(d.layer.intermediate, 1, "intermediate");
  if (d.ranks > d.num_places()) {
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
  return bytes(parts.values) + bytes(parts.scale);
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
