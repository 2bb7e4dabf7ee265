// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The conformance matrix of the layer: backends x experts x quantization schemes x topologies x
// scenarios.  `moebius verify`, the tests and docs/conformance.md are made from the lists here.
// A cell is either refused with a reason, or every row on every rank is what the layer gives on a
// single rank, with the sums that the cell's backend is documented to make.  Results of experts on
// CPUs are equal bit by bit.  Experts on GPUs, which may choose the order of a sum by the number of
// rows, are compared with experts on the CPU: every row is within layer_tolerance(), and all rows
// of a call are within problems/gemm_tolerance.h.
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
  bool over_ranks = true;  // whether several ranks can use it
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

// A row of the matrix; its cells are the backends.
struct LayerRow {
  std::string name;
  LayerScheme scheme;
  LayerExperts experts;
  LayerScenario scenario;
  std::vector<LayerTopology> topologies;
};
// layer_matrix_page() says which products are taken in full.
std::vector<LayerRow> layer_rows();
// Whether the row's experts are there in every build and on every machine.
bool is_everywhere(const LayerRow& row);

// Runs the cells of one row, which share problems.
class LayerRowRunner {
 public:
  explicit LayerRowRunner(LayerRow row) : row_(std::move(row)) {}

  const LayerRow& row() const { return row_; }
  // Why the row's experts refuse its scheme on this machine; empty when they accept.
  std::string experts_refusal();
  // Why the constructor or the first call refuses the cell; nullopt where they accept.
  std::optional<std::string> refusal(const LayerBackend& backend);
  // Runs every topology of the row that the backend supports.  Returns the first difference with
  // its place.
  std::optional<std::string> difference(const LayerBackend& backend);
  // The distance of the single-rank reference from float64 where it exceeds layer_tolerance().
  std::optional<std::string> distance_from_f64();

 private:
  LayerProblem& problem(const LayerBackend& backend, int num_ranks);

  LayerRow row_;
  std::map<std::pair<int, bool>, std::unique_ptr<LayerProblem>> problems_;  // by ranks and routed
};

// The text of docs/conformance.md: the cells that are refused, and why, of rows that are
// everywhere.
std::string layer_matrix_page();

}  // namespace moebius::testing
