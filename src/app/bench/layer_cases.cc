// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The cases of the layer are the conformance matrix.  A case is a row of it.  Its implementations
// are the backends over ranks, which are compared with the same layer on one rank, and `float64`,
// with which that layer is compared.
#include "app/bench/cases.h"
#include "problems/layer_matrix.h"

namespace moebius::bench {

using testing::LayerBackend;
using testing::LayerRow;
using testing::LayerRowRunner;

void run_layer_cases(const CaseSetup& setup) {
  for (const LayerRow& row : testing::layer_rows()) {
    LayerRowRunner runner(row);
    const auto visit = [&](std::string_view impl, const LayerBackend* backend) {
      if (!setup.wants(row.name, impl)) {
        return;
      }
      Case c;
      c.problem = row.name;
      c.impl = impl;
      c.refusal = backend != nullptr ? runner.refusal(*backend).value_or("") : "";
      std::optional<std::string> difference;
      c.call = [&] {
        difference = backend != nullptr ? runner.difference(*backend) : runner.distance_from_f64();
      };
      c.reference = [] { return 0.0; };  // is part of the call
      c.difference = [&] { return difference; };
      setup.visit(c);
    };
    for (const LayerBackend& backend : testing::layer_backends()) {
      visit(backend.name, &backend);
    }
    if (row.experts.precision == Precision::kModel) {
      visit("float64", nullptr);
    }
  }
}

}  // namespace moebius::bench
