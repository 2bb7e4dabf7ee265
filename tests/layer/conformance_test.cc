// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests the conformance matrix cell by cell.  The refused cells are listed here by hand, so that
// the test finds a cell that is newly refused, and one that is accepted although it cannot work.
#include <gtest/gtest.h>

#include <algorithm>

#include "problems/layer_matrix.h"

namespace moebius::testing {

void PrintTo(const LayerRow& row, std::ostream* os) {
  *os << row.name;
}

namespace {

struct Refused {
  std::string_view row;  // a prefix of row names
  std::string_view backend;
  std::string_view reason;
};
constexpr Refused kRefused[] = {
    {"fp8_block/h320", "low_latency", "hidden 320 is not a multiple of 128"},
    {"fp8_block_ue8m0/h320", "low_latency", "hidden 320 is not a multiple of 128"},
    {"fp8_block/ref_f64", "low_latency", "cannot defer the fp8 cast"},
    {"fp8_block_ue8m0/ref_f64", "low_latency", "cannot defer the fp8 cast"},
    {"unquantized/weight_on_input", "monolithic", "no router weight to put on its input"},
    {"fp8_tensor/weight_on_input", "monolithic", "no router weight to put on its input"},
    {"fp8_block/weight_on_input", "monolithic", "no router weight to put on its input"},
};

const Refused* refused(const LayerRow& row, const LayerBackend& backend) {
  const auto found = std::find_if(std::begin(kRefused), std::end(kRefused), [&](const Refused& r) {
    return row.name.starts_with(r.row) && backend.name == r.backend;
  });
  return found == std::end(kRefused) ? nullptr : found;
}

class LayerConformance : public ::testing::TestWithParam<LayerRow> {};

TEST_P(LayerConformance, EveryBackendGivesTheRowsOfOneRank) {
  LayerRowRunner runner(GetParam());
  if (const std::string reason = runner.experts_refusal(); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  for (const LayerBackend& backend : layer_backends()) {
    SCOPED_TRACE(backend.name);
    const Refused* expected = refused(runner.row(), backend);
    const std::string reason = runner.refusal(backend).value_or("");
    const std::string difference = runner.difference(backend).value_or("");
    if (expected == nullptr) {
      EXPECT_EQ(reason, "");
      EXPECT_EQ(difference, "");
      continue;
    }
    EXPECT_NE(reason.find(expected->reason), std::string::npos) << reason;
    EXPECT_NE(difference.find(expected->reason), std::string::npos) << "over ranks: " << difference;
  }
  if (runner.row().experts.precision == Precision::kModel) {
    EXPECT_EQ(runner.distance_from_f64().value_or(""), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Rows,
                         LayerConformance,
                         ::testing::ValuesIn(layer_rows()),
                         [](const auto& test) {
                           std::string name = test.param.name;
                           std::replace(name.begin(), name.end(), '/', '_');
                           return name;
                         });

TEST(LayerConformanceList, NamesRowsThatAre) {
  const std::vector<LayerRow> rows = layer_rows();
  for (const Refused& r : kRefused) {
    EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), [&](const LayerRow& row) {
      return row.name.starts_with(r.row);
    })) << r.row;
  }
}

}  // namespace
}  // namespace moebius::testing
