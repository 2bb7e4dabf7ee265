// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Forecasts for one GPU against what was measured there.
#include "plan/measured.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "moebius/checkpoint.h"
#include "plan/forecast.h"
#include "tests/plan/problems.h"

namespace moebius::plan {
namespace {

constexpr double kWithin = 0.1;

// The experts of a measured case as a layer of one GPU.
Deployment layer_of(const MeasuredExperts& m) {
  Deployment d;
  d.layer = layer_of_preset(m.hidden == 7168 ? "deepseek-v3" : "qwen3-30b-a3b");
  d.layer.routing = {.num_experts = m.num_experts, .topk = m.topk};
  d.layer.shared_intermediate = 0;
  d.formats = find_formats(std::string(m.scheme), d.layer);
  d.layer.dtype = m.dtype;
  d.tokens = m.tokens;
  d.device = Device::cuda(0);
  return d;
}

double experts_us(const Deployment& d) {
  return forecast(All2AllBackend::kNone, d, find_machine("h200")).experts;
}

// The cells of the lines of a table, which begin and end with a bar.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream in(line.substr(1));
  for (std::string cell; std::getline(in, cell, '|');) {
    const size_t begin = cell.find_first_not_of(' ');
    cells.push_back(begin == std::string::npos ? "" : cell.substr(begin));
  }
  return cells;
}

// "2.61 ms, 1105 TFLOP/s" or "43" in us; 0 where there is no number.
double us_of(const std::string& cell) {
  std::istringstream in(cell);
  double value = 0;
  std::string unit;
  if (!(in >> value)) {
    return 0;
  }
  in >> unit;
  return unit.starts_with("ms") ? value * 1000 : value;
}

// A table has times by scheme and tokens.
using Times = std::map<std::string, std::map<int64_t, double>>;

std::vector<Times> tables_in_docs() {
  std::ifstream file("docs/performance/gpu_experts.md");
  std::vector<Times> tables;
  std::vector<int64_t> tokens;  // of the columns of the last table
  bool is_here = false;
  bool is_table = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) {
      is_here = line == "## Whole experts";
    }
    if (!is_here || !line.starts_with("| ")) {
      is_table = false;
      continue;
    }
    const std::vector<std::string> cells = cells_of(line);
    if (cells.front() == "scheme ") {
      is_table = true;
      tables.emplace_back();
      tokens.clear();
      std::transform(cells.begin() + 1, cells.end(), std::back_inserter(tokens),
                     [](const std::string& cell) { return std::stoll(cell); });
    } else if (is_table && !line.starts_with("| ---")) {
      const std::string scheme = cells.front().substr(0, cells.front().find(' '));
      for (size_t i = 0; i < tokens.size(); ++i) {
        tables.back()[scheme][tokens[i]] = us_of(cells[i + 1]);
      }
    }
  }
  return tables;
}

// The docs have more: weights and activations in combinations that plans do not name.
TEST(Measured, CasesAreThoseInTheDocs) {
  const std::vector<Times> docs = tables_in_docs();
  ASSERT_EQ(docs.size(), 3u);
  std::set<std::string> schemes;
  for (const MeasuredExperts& m : measured_experts()) {
    const Times& table = docs[m.hidden == 7168 ? 0 : m.num_experts == 128 ? 1 : 2];
    const std::string row = std::string(m.scheme) + (m.dtype == DType::kF16 ? "_f16" : "");
    ASSERT_TRUE(table.contains(row)) << row;
    EXPECT_NEAR(table.at(row).at(m.tokens), m.us, 1e-6) << row << " " << m.tokens;
    schemes.insert(std::string(m.scheme));
  }
  for (const QuantSchemeInfo& scheme : load_quant_schemes()) {
    EXPECT_TRUE(schemes.contains(scheme.name)) << scheme.name << " is not measured";
  }
  EXPECT_TRUE(schemes.contains("none"));
}

TEST(Measured, ForecastsOfMeasuredCasesAreWithinATenth) {
  for (const MeasuredExperts& m : measured_experts()) {
    const double us = experts_us(layer_of(m));
    EXPECT_NEAR(us / m.us, 1, kWithin) << m.scheme << " " << name(m.dtype) << ", hidden "
                                       << m.hidden << ", " << m.tokens << " tokens: " << us;
  }
}

// Calls of one GPU that were measured whole; docs/performance/layers.md.
TEST(Measured, ForecastsOfLayersAreWithinATenth) {
  struct Layer {
    int64_t tokens;
    double us;
  };
  for (const Layer& m : {Layer{1, 40}, Layer{16, 209}, Layer{128, 316}, Layer{512, 357},
                         Layer{1024, 383}, Layer{4096, 662}}) {
    Deployment d = preset_deployment("qwen3-30b-a3b", "none", 1);
    d.tokens = m.tokens;
    const double us = forecast(All2AllBackend::kNone, d, find_machine("h200")).call;
    EXPECT_NEAR(us / m.us, 1, kWithin) << m.tokens << " tokens: " << us;
  }
}

// 1024 rows for each expert in bf16.
Deployment a_measured_layer() {
  const auto& cases = measured_experts();
  return layer_of(*std::find_if(cases.begin(), cases.end(), [](const MeasuredExperts& m) {
    return m.scheme == "none" && m.dtype == DType::kBF16 && m.tokens == 4096;
  }));
}

// A figure of the caller's machine still counts.
TEST(Measured, CorrectionsAreOfKernelsAndNotOfRates) {
  Deployment d = a_measured_layer();
  Machine slower = find_machine("h200");
  slower.bf16_tflops.value /= 2;
  const double us = forecast(All2AllBackend::kNone, d, slower).experts;
  EXPECT_GT(us, 1.8 * experts_us(d));
}

// Between measured cases the correction lies between theirs, and what nobody has measured has none.
TEST(Measured, CorrectionsAreInterpolated) {
  const Machine m = find_machine("h200");
  Deployment d = a_measured_layer();
  const double many = measured_correction(d, d.layer.intermediate, 1024, m);
  const double few = measured_correction(d, d.layer.intermediate, 256, m);
  const double between = measured_correction(d, d.layer.intermediate, 500, m);
  EXPECT_GE(between, std::min(many, few) - 0.05);
  EXPECT_LE(between, std::max(many, few) + 0.05);
  Deployment f32 = d;
  f32.layer.dtype = DType::kF32;
  EXPECT_EQ(measured_correction(f32, d.layer.intermediate, 200, m), 1);
  d.formats.name = "a scheme that nobody has measured";
  EXPECT_EQ(measured_correction(d, d.layer.intermediate, 200, m), 1);
}

}  // namespace
}  // namespace moebius::plan
