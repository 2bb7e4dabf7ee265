// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Forecasts for one GPU against what was measured there.
#include "plan/measured.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

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

constexpr const char* kWholeLayer = "experts of a layer";

// By scheme, the times in the table of whole experts, in the order of its columns; and those of all
// experts of a layer.
std::map<std::string, std::vector<double>> table_in_docs() {
  const std::map<std::string, std::string> schemes = {
      {"bf16 ", "none"},
      {"fp8 by blocks ", "fp8_w8a8"},
      {"int8, int8 per token ", "int8_w8a8"},
      {"fp8 per channel, fp8 per token ", "fp8_w8a8_channel"},
      {"int8 weights, bf16 ", "int8_w8a16"},
      {"int4 weights by 128, bf16 ", "int4_w4a16"},
      {"mxfp4 weights, bf16 ", "mxfp4_w4a16"},
      {"nvfp4, nvfp4 ", "nvfp4"},
      {"its experts ", kWholeLayer}};
  std::ifstream file("docs/performance/gpu_experts.md");
  std::map<std::string, std::vector<double>> table;
  bool is_here = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) {
      is_here = line == "## Whole experts";
    }
    if (!is_here || !line.starts_with("| ")) {
      continue;
    }
    const std::vector<std::string> cells = cells_of(line);
    const auto scheme = schemes.find(cells.front());
    if (scheme != schemes.end()) {
      for (size_t i = 1; i < cells.size(); ++i) {
        table[scheme->second].push_back(us_of(cells[i]));
      }
    }
  }
  return table;
}

TEST(Measured, CasesAreThoseInTheDocs) {
  const std::map<std::string, std::vector<double>> docs = table_in_docs();
  ASSERT_EQ(docs.size(), 9u);
  size_t num_cells = 0;
  for (const auto& [scheme, cells] : docs) {
    for (const double us : cells) {
      num_cells += us > 0 ? 1 : 0;
    }
  }
  EXPECT_EQ(measured_experts().size(), num_cells);
  size_t of_layer = 0;
  for (const MeasuredExperts& m : measured_experts()) {
    if (m.num_experts == 128) {
      EXPECT_EQ(docs.at(kWholeLayer).at(of_layer++), m.us) << m.tokens;
      continue;
    }
    const std::vector<int64_t> columns = {4096, 128, 16, 1};  // then Qwen3-30B-A3B's
    const auto at = std::find(columns.begin(), columns.end(), m.tokens) - columns.begin();
    const size_t column = m.hidden != 7168 ? columns.size() : static_cast<size_t>(at);
    EXPECT_EQ(docs.at(std::string(m.scheme)).at(column), m.us) << m.scheme << " " << m.tokens;
  }
}

TEST(Measured, ForecastsOfMeasuredCasesAreWithinATenth) {
  for (const MeasuredExperts& m : measured_experts()) {
    const double us = experts_us(layer_of(m));
    EXPECT_NEAR(us / m.us, 1, kWithin)
        << m.scheme << ", hidden " << m.hidden << ", " << m.tokens << " tokens: " << us;
  }
}

// Calls of one GPU that were measured whole; docs/performance/layers.md and gpu_experts.md.
TEST(Measured, ForecastsOfLayersAreWithinATenth) {
  struct Layer {
    int64_t tokens;
    double us;
  };
  for (const Layer& m : {Layer{1, 45}, Layer{16, 226}, Layer{128, 328}, Layer{512, 357},
                         Layer{1024, 401}, Layer{4096, 669}}) {
    Deployment d = preset_deployment("qwen3-30b-a3b", "none", 1);
    d.tokens = m.tokens;
    const double us = forecast(All2AllBackend::kNone, d, find_machine("h200")).call;
    EXPECT_NEAR(us / m.us, 1, kWithin) << m.tokens << " tokens: " << us;
  }
}

// A figure of the caller's machine still counts.
TEST(Measured, CorrectionsAreOfKernelsAndNotOfRates) {
  Deployment d = layer_of(measured_experts().front());
  Machine slower = find_machine("h200");
  slower.bf16_tflops.value /= 2;
  const double us = forecast(All2AllBackend::kNone, d, slower).experts;
  EXPECT_GT(us, 1.8 * experts_us(d));
}

// Between measured cases the correction lies between theirs, and what nobody has measured has none.
TEST(Measured, CorrectionsAreInterpolated) {
  const Machine m = find_machine("h200");
  Deployment d = layer_of(measured_experts().front());
  const double many = measured_correction(d, d.layer.intermediate, 1024, m);
  const double few = measured_correction(d, d.layer.intermediate, 32, m);
  const double between = measured_correction(d, d.layer.intermediate, 200, m);
  EXPECT_GE(between, std::min(many, few) - 0.05);
  EXPECT_LE(between, std::max(many, few) + 0.05);
  d.formats.name = "a scheme that nobody has measured";
  EXPECT_EQ(measured_correction(d, d.layer.intermediate, 200, m), 1);
}

}  // namespace
}  // namespace moebius::plan
