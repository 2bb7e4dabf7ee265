// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The conformance matrix of the layer: backends x experts x quantization schemes x topologies x
// scenarios.  `moebius verify`, the tests and docs/conformance.md are made from the lists here.
// A cell is refused, with the reason, or gives on every rank and in every row what the layer gives
// on a single rank, with the sums that its backend is documented to make: bit by bit, but for
// experts that leave sums to a library, which may choose its order by the number of rows, and for
// those on GPUs, which are compared with the CPU's.  Of these every row is within
// layer_tolerance(), and all rows of a call within problems/gemm_tolerance.h.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moebius/group.h"
#include "moebius/prepare_finalize.h"
#include "problems/layer_problem.h"

namespace moebius::testing {

struct LayerBackend {
  std::string_view name;
  ActivationFormat format = ActivationFormat::kStandard;
  bool over_ranks = true;  // else one rank
  bool is_monolithic = false;
  LayerScope scope = LayerScope::kWhole;
  LayerSum sum = nullptr;
  std::unique_ptr<PrepareFinalize> (*make)(Group& group,
                                           const ExpertPlacement& placement,
                                           const ExpertsDesc& desc) = nullptr;
};
std::span<const LayerBackend> layer_backends();

struct LayerTopology {
  int num_ranks = 1;
  int ranks_per_node = 0;  // 0: one node
};
std::string to_string(const LayerTopology& topology);  // "4 ranks in nodes of 2"

// Every builder of QuantConfig, dtype and a hidden size of 2880.
std::vector<LayerScheme> layer_schemes();

// A row of the matrix; its cells are the backends.
struct LayerRow {
  std::string name;
  LayerScheme scheme;
  LayerExperts experts;
  LayerScenario scenario;
  std::vector<LayerTopology> topologies;
};
// Which products are taken in full is said by layer_matrix_page().
std::vector<LayerRow> layer_rows();
// Whether every build and machine has the row's experts.
bool is_everywhere(const LayerRow& row);

// The cells of one row; problems are shared between them.
class LayerRowRunner {
 public:
  explicit LayerRowRunner(LayerRow row) : row_(std::move(row)) {}

  const LayerRow& row() const { return row_; }
  // Why the row's experts do not take its scheme on this machine; empty when they do.
  std::string experts_refusal();
  // Why the cell cannot be, from the constructor or the first call; nullopt where it can.
  std::optional<std::string> refusal(const LayerBackend& backend);
  // Runs every topology of the row that the backend has; the first difference, with its place.
  std::optional<std::string> difference(const LayerBackend& backend);
  // Distance of the single-rank reference from float64, where it is more than layer_tolerance().
  std::optional<std::string> distance_from_f64();

 private:
  LayerProblem& problem(const LayerBackend& backend, int num_ranks);

  LayerRow row_;
  std::map<std::pair<int, bool>, std::unique_ptr<LayerProblem>> problems_;  // by ranks, routed
};

// docs/conformance.md: of the rows that are everywhere, which cells are refused and why.
std::string layer_matrix_page();

}  // namespace moebius::testing
