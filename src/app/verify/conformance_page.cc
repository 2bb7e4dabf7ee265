// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "problems/layer_matrix.h"

namespace moebius::testing {

namespace {

constexpr std::string_view kIntroduction =
    R"(<!-- SPDX-FileCopyrightText: 2026 the Moebius authors -->
<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Generated: moebius verify --markdown > docs/conformance.md -->

# Conformance of the layer

Backends x experts x quantization schemes x topologies x scenarios. `moebius verify --stage layer` runs
every cell, and so do the tests (`ctest -R layer_conformance`); this page has what does not depend on
the machine: which cells are refused, and why.

**Compared with** the same layer on one rank, by the same experts: what they make of every selection,
added up as the backend is documented to add it. Every element of every rank must be equal, not close.
Experts on GPUs may choose the order of a sum by the number of rows, so they are held to
`src/problems/gemm_tolerance.h` over a call and to `layer_tolerance()` in every row. The reference itself is held to
float64 by `layer_tolerance()`, scheme by scheme.

**Where a scale is taken of all rows at hand** (fp8 and int8 per tensor without a static scale), it
depends on who has which rows: on one rank all, with `allgather_reducescatter`
all before the experts and the rank's own between them, with `high_throughput` those the rank has
received, in batched formats those of the expert. Where a call is cut into micro-batches, each of them
has its own scale. The reference takes them likewise.

**Taken in full**: schemes x topologies (experts `cpu_portable`); experts x schemes, and float64 x
schemes, on 4 ranks in nodes of 2; schemes x a hidden size of 320, which ends amid a block of 128
columns, on 3 ranks in nodes of 2; schemes x three micro-batches, on 2 ranks and on 4 ranks in nodes of
2; scenarios x topologies for three schemes that travel differently (rows as they are; with scales
beside them; with a scale of all rows that have arrived). H is 256 otherwise, and 2880 in one scheme on
four topologies. E is never a multiple of R > 1.

**Calls of one object**, unless a scenario says otherwise: uneven tokens with a tenth of the selections
masked, and ranks without any; all tokens to one rank; to one expert; no tokens at all; all selections
masked; the first call again, which must give the same bits. Scenarios: `weight_on_input` (top-1, the
router's weight multiplies the input), `strided_top5` (expert e lives on rank e mod R), `interleaved`
(two micro-batches are dispatched before either is combined, and combined in the other order),
`microbatches2` to `microbatches4` (the kernel cuts every call, also those with fewer tokens than
micro-batches).

Over ranks as the model is started (tensor parallelism, all2all `none` over ranks, real checkpoints):
`ctest -R layer_expert_parallel`. Transports by themselves, up to 64 ranks and under MPI: `ctest -R
comm_dispatch`.
)";

struct Refusal {
  std::string row;
  std::string backend;
  std::string reason;
};

}  // namespace

std::string layer_matrix_page() {
  std::string page(kIntroduction);
  std::string topologies;
  std::string schemes = "| scheme |";
  std::string line = "| --- |";
  for (const LayerBackend& backend : layer_backends()) {
    schemes += fmt::format(" {} |", backend.name);
    line += " --- |";
  }
  schemes += "\n" + line + "\n";
  std::vector<Refusal> refusals;
  for (const LayerRow& row : layer_rows()) {
    if (!is_everywhere(row)) {
      continue;
    }
    LayerRowRunner runner(row);
    std::string cells = fmt::format("| {} |", row.name);
    for (const LayerBackend& backend : layer_backends()) {
      const auto reason = runner.refusal(backend);
      cells += reason ? " refused |" : " ok |";
      if (reason) {
        refusals.push_back({row.name, std::string(backend.name), *reason});
      }
    }
    if (row.name == row.scheme.name) {
      schemes += cells + "\n";
    }
    if (topologies.empty()) {
      for (const LayerTopology& topology : row.topologies) {
        topologies += (topologies.empty() ? "" : ", ") + to_string(topology);
      }
    }
  }
  page += fmt::format(
      "\n## Topologies\n\n{}.\n\n`none` and `none_batched` are those of one rank.\n", topologies);
  page += "\n## Schemes\n\n" + schemes;
  page += "\n## Refused\n\n| case | backend | reason |\n| --- | --- | --- |\n";
  for (const Refusal& refusal : refusals) {
    page += fmt::format("| {} | {} | {} |\n", refusal.row, refusal.backend, refusal.reason);
  }
  return page + "\nEvery cell of the rows that are not listed here is taken.\n";
}

}  // namespace moebius::testing
