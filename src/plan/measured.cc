// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/measured.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <vector>

#include "plan/gemm.h"
#include "plan/stages.h"

namespace moebius::plan {

namespace {

struct Model {
  std::string_view name;  // in problems of `moebius bench experts`, without the tokens
  int64_t hidden, intermediate, num_experts;
  std::span<const int64_t> tokens;
};
constexpr int64_t kTopk = 8;
constexpr int64_t kTokens[] = {1, 16, 128, 1024, 4096};
constexpr int64_t kPrefillTokens[] = {4096};
constexpr Model kModels[] = {
    {"deepseek-v3_e32", 7168, 2048, 32, kTokens},
    {"qwen3-30b-a3b_e128", 2048, 768, 128, kTokens},
    {"qwen3-30b-a3b_e16", 2048, 768, 16, kPrefillTokens},
};

struct Line {
  std::string_view scheme;  // with kF16 behind it where layers are in f16
  std::string_view model;
  std::array<double, std::size(kTokens)> us;  // in the order of the model's tokens
};
constexpr std::string_view kF16 = "_f16";
// Printed by tools/gpu_table.py --measured.
constexpr Line kLines[] = {
    {"none", "deepseek-v3_e32", {191, 676, 700, 1260, 3950}},
    {"none_f16", "deepseek-v3_e32", {201, 678, 697, 1300, 4120}},
    {"fp8_w8a8", "deepseek-v3_e32", {124, 363, 395, 801, 2530}},
    {"fp8_w8a8_channel", "deepseek-v3_e32", {132, 376, 397, 810, 2510}},
    {"fp8_w8a8_tensor", "deepseek-v3_e32", {144, 390, 421, 803, 2480}},
    {"int8_w8a8", "deepseek-v3_e32", {127, 370, 396, 794, 2330}},
    {"int8_w8a16", "deepseek-v3_e32", {124, 369, 416, 1510, 4670}},
    {"int4_w4a16", "deepseek-v3_e32", {79.4, 241, 336, 1610, 4830}},
    {"mxfp4_w4a16", "deepseek-v3_e32", {88.3, 265, 334, 1410, 4460}},
    {"mxfp4", "deepseek-v3_e32", {94.7, 273, 344, 1470, 4570}},
    {"mxfp6_e3m2", "deepseek-v3_e32", {1050, 2260, 2310, 2940, 5630}},
    {"mxfp6_e2m3", "deepseek-v3_e32", {1060, 2260, 2310, 2930, 5640}},
    {"mxfp8", "deepseek-v3_e32", {146, 414, 497, 1610, 5160}},
    {"nvfp4", "deepseek-v3_e32", {106, 305, 371, 1520, 4770}},
    {"int8_w8a16_f16", "deepseek-v3_e32", {121, 365, 410, 1450, 4960}},
    {"int4_w4a16_f16", "deepseek-v3_e32", {92, 240, 337, 1610, 6180}},
    {"mxfp4_w4a16_f16", "deepseek-v3_e32", {123, 372, 499, 2470, 8000}},
    {"nvfp4_f16", "deepseek-v3_e32", {110, 302, 371, 1510, 5010}},
    {"none", "qwen3-30b-a3b_e128", {36.5, 216, 316, 367, 586}},
    {"none_f16", "qwen3-30b-a3b_e128", {46.1, 220, 317, 377, 634}},
    {"fp8_w8a8", "qwen3-30b-a3b_e128", {40.9, 137, 189, 247, 435}},
    {"fp8_w8a8_channel", "qwen3-30b-a3b_e128", {41.7, 151, 213, 279, 544}},
    {"fp8_w8a8_tensor", "qwen3-30b-a3b_e128", {55.8, 162, 216, 281, 497}},
    {"int8_w8a8", "qwen3-30b-a3b_e128", {40.4, 144, 205, 284, 504}},
    {"int8_w8a16", "qwen3-30b-a3b_e128", {42.7, 144, 202, 366, 880}},
    {"int4_w4a16", "qwen3-30b-a3b_e128", {28, 106, 149, 326, 933}},
    {"mxfp4_w4a16", "qwen3-30b-a3b_e128", {29.5, 109, 156, 317, 850}},
    {"mxfp4", "qwen3-30b-a3b_e128", {33.1, 117, 165, 345, 964}},
    {"mxfp6_e3m2", "qwen3-30b-a3b_e128", {451, 1020, 1120, 1210, 1530}},
    {"mxfp6_e2m3", "qwen3-30b-a3b_e128", {451, 1020, 1120, 1210, 1540}},
    {"mxfp8", "qwen3-30b-a3b_e128", {53.4, 169, 234, 425, 989}},
    {"nvfp4", "qwen3-30b-a3b_e128", {37.1, 125, 175, 364, 1000}},
    {"int8_w8a16_f16", "qwen3-30b-a3b_e128", {41.1, 138, 195, 349, 864}},
    {"int4_w4a16_f16", "qwen3-30b-a3b_e128", {29, 105, 149, 325, 933}},
    {"mxfp4_w4a16_f16", "qwen3-30b-a3b_e128", {43.2, 139, 211, 447, 1280}},
    {"nvfp4_f16", "qwen3-30b-a3b_e128", {38.1, 124, 174, 361, 1000}},
    {"none", "qwen3-30b-a3b_e16", {486}},
    {"none_f16", "qwen3-30b-a3b_e16", {531}},
    {"fp8_w8a8", "qwen3-30b-a3b_e16", {375}},
    {"fp8_w8a8_channel", "qwen3-30b-a3b_e16", {465}},
    {"fp8_w8a8_tensor", "qwen3-30b-a3b_e16", {436}},
    {"int8_w8a8", "qwen3-30b-a3b_e16", {411}},
    {"int8_w8a16", "qwen3-30b-a3b_e16", {621}},
    {"int4_w4a16", "qwen3-30b-a3b_e16", {696}},
    {"mxfp4_w4a16", "qwen3-30b-a3b_e16", {613}},
    {"mxfp4", "qwen3-30b-a3b_e16", {689}},
    {"mxfp6_e3m2", "qwen3-30b-a3b_e16", {729}},
    {"mxfp6_e2m3", "qwen3-30b-a3b_e16", {728}},
    {"mxfp8", "qwen3-30b-a3b_e16", {677}},
    {"nvfp4", "qwen3-30b-a3b_e16", {726}},
    {"int8_w8a16_f16", "qwen3-30b-a3b_e16", {657}},
    {"int4_w4a16_f16", "qwen3-30b-a3b_e16", {745}},
    {"mxfp4_w4a16_f16", "qwen3-30b-a3b_e16", {902}},
    {"nvfp4_f16", "qwen3-30b-a3b_e16", {763}},
};

std::vector<MeasuredExperts> make_cases() {
  std::vector<MeasuredExperts> cases;
  for (const Line& line : kLines) {
    const Model& m = *std::find_if(std::begin(kModels), std::end(kModels),
                                   [&](const Model& one) { return one.name == line.model; });
    const bool is_f16 = line.scheme.ends_with(kF16);
    const std::string_view scheme =
        line.scheme.substr(0, line.scheme.size() - (is_f16 ? kF16.size() : 0));
    for (size_t i = 0; i < m.tokens.size(); ++i) {
      cases.push_back({scheme, is_f16 ? DType::kF16 : DType::kBF16, m.hidden, m.intermediate,
                       m.num_experts, kTopk, m.tokens[i], line.us[i]});
    }
  }
  return cases;
}

// The deployment of a measured case.
Deployment deployment_of(const MeasuredExperts& m, const Deployment& like) {
  Deployment d;
  d.layer.routing = {.num_experts = m.num_experts, .topk = m.topk};
  d.layer.hidden = m.hidden;
  d.layer.intermediate = m.intermediate;
  d.layer.dtype = like.layer.dtype;
  d.formats = like.formats;
  d.tokens = m.tokens;
  d.device = Device::cuda(0);
  return d;
}

double formula_us(const MeasuredExperts& m, const Deployment& d, const Machine& machine) {
  PieceLoad load;
  load.tokens = load.rows = static_cast<double>(m.tokens);
  load.selections = static_cast<double>(m.tokens * m.topk);
  load.touched = m.touched_experts();
  Machine plain = machine;
  plain.experts_are_measured = false;
  return stage_times(All2AllBackend::kNone, d, plain, load).experts;
}

// Whether layers like this one were measured in their own dtype.
bool is_measured(const Deployment& d) {
  const std::span<const MeasuredExperts> cases = measured_experts();
  return std::any_of(cases.begin(), cases.end(), [&](const MeasuredExperts& m) {
    return m.scheme == d.formats.name && m.dtype == d.layer.dtype;
  });
}

// The square of how many times one number is twice the other.
double distance(double a, double b) {
  const double doublings = std::log2(a / b);
  return doublings * doublings;
}

double weight_size(int64_t hidden, int64_t intermediate) {
  return static_cast<double>(hidden) * static_cast<double>(intermediate);
}

}  // namespace

double MeasuredExperts::touched_experts() const {
  const auto all = static_cast<double>(num_experts);
  return all * (1 - std::pow(1 - static_cast<double>(topk) / all, static_cast<double>(tokens)));
}

std::span<const MeasuredExperts> measured_experts() {
  static const std::vector<MeasuredExperts> cases = make_cases();
  return cases;
}

double measured_correction(const Deployment& d,
                           int64_t intermediate,
                           double rows_of_expert,
                           const Machine& machine) {
  constexpr double kSameCase = 1e-3;  // as far away as a case may be that counts alone
  const GemmKind kind = gemm_kind(d, intermediate, rows_of_expert);
  const bool is_like_bf16 = d.layer.dtype == DType::kF16 && !is_measured(d);
  const DType dtype = is_like_bf16 ? DType::kBF16 : d.layer.dtype;
  double weights = 0;
  double logs = 0;
  for (const MeasuredExperts& m : measured_experts()) {
    if (m.scheme != d.formats.name || m.dtype != dtype) {
      continue;
    }
    const Deployment measured = deployment_of(m, d);
    if (gemm_kind(measured, m.intermediate, m.rows_of_expert()) != kind) {
      continue;
    }
    const double away =
        distance(rows_of_expert, m.rows_of_expert()) +
        distance(weight_size(d.layer.hidden, intermediate), weight_size(m.hidden, m.intermediate));
    const double weight = 1 / (away + kSameCase);
    weights += weight;
    logs += weight * std::log(m.us / formula_us(m, measured, machine));
  }
  return weights > 0 ? std::exp(logs / weights) : 1;
}

}  // namespace moebius::plan
