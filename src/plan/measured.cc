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
    {"none", "deepseek-v3_e32", {189, 672, 696, 1240, 3920}},
    {"none_f16", "deepseek-v3_e32", {198, 673, 697, 1300, 4100}},
    {"fp8_w8a8", "deepseek-v3_e32", {121, 359, 393, 787, 2520}},
    {"fp8_w8a8_channel", "deepseek-v3_e32", {128, 372, 393, 799, 2500}},
    {"fp8_w8a8_tensor", "deepseek-v3_e32", {142, 387, 414, 789, 2470}},
    {"int8_w8a8", "deepseek-v3_e32", {124, 366, 391, 788, 2320}},
    {"int8_w8a16", "deepseek-v3_e32", {122, 367, 403, 1400, 4430}},
    {"int4_w4a16", "deepseek-v3_e32", {69.8, 231, 306, 1320, 4300}},
    {"mxfp4_w4a16", "deepseek-v3_e32", {75.9, 239, 296, 1260, 4140}},
    {"mxfp4", "deepseek-v3_e32", {79.8, 248, 293, 1250, 3960}},
    {"mxfp6_e3m2", "deepseek-v3_e32", {1050, 2250, 2290, 2890, 5490}},
    {"mxfp6_e2m3", "deepseek-v3_e32", {1050, 2250, 2290, 2890, 5500}},
    {"mxfp8", "deepseek-v3_e32", {137, 410, 477, 1460, 4480}},
    {"nvfp4", "deepseek-v3_e32", {85.5, 259, 308, 1270, 4140}},
    {"int8_w8a16_f16", "deepseek-v3_e32", {119, 365, 400, 1370, 4460}},
    {"int4_w4a16_f16", "deepseek-v3_e32", {84.2, 230, 310, 1410, 4500}},
    {"mxfp4_w4a16_f16", "deepseek-v3_e32", {119, 366, 478, 2280, 8000}},
    {"nvfp4_f16", "deepseek-v3_e32", {85.2, 257, 307, 1270, 4130}},
    {"none", "qwen3-30b-a3b_e128", {33.7, 213, 311, 366, 584}},
    {"none_f16", "qwen3-30b-a3b_e128", {44.5, 216, 313, 378, 635}},
    {"fp8_w8a8", "qwen3-30b-a3b_e128", {37.1, 133, 184, 245, 434}},
    {"fp8_w8a8_channel", "qwen3-30b-a3b_e128", {39.2, 147, 205, 278, 543}},
    {"fp8_w8a8_tensor", "qwen3-30b-a3b_e128", {53.1, 154, 210, 280, 494}},
    {"int8_w8a8", "qwen3-30b-a3b_e128", {37.5, 143, 198, 285, 504}},
    {"int8_w8a16", "qwen3-30b-a3b_e128", {39.6, 138, 193, 337, 759}},
    {"int4_w4a16", "qwen3-30b-a3b_e128", {23.4, 95.2, 135, 293, 762}},
    {"mxfp4_w4a16", "qwen3-30b-a3b_e128", {24.4, 90.6, 139, 270, 714}},
    {"mxfp4", "qwen3-30b-a3b_e128", {26.8, 95.2, 141, 277, 732}},
    {"mxfp6_e3m2", "qwen3-30b-a3b_e128", {444, 1010, 1110, 1200, 1500}},
    {"mxfp6_e2m3", "qwen3-30b-a3b_e128", {445, 1010, 1110, 1200, 1500}},
    {"mxfp8", "qwen3-30b-a3b_e128", {45.1, 160, 229, 390, 808}},
    {"nvfp4", "qwen3-30b-a3b_e128", {27.1, 101, 148, 291, 752}},
    {"int8_w8a16_f16", "qwen3-30b-a3b_e128", {38.1, 135, 192, 327, 744}},
    {"int4_w4a16_f16", "qwen3-30b-a3b_e128", {25.1, 94.8, 134, 286, 778}},
    {"mxfp4_w4a16_f16", "qwen3-30b-a3b_e128", {40.2, 137, 205, 403, 1100}},
    {"nvfp4_f16", "qwen3-30b-a3b_e128", {27.3, 101, 147, 290, 747}},
    {"none", "qwen3-30b-a3b_e16", {484}},
    {"none_f16", "qwen3-30b-a3b_e16", {530}},
    {"fp8_w8a8", "qwen3-30b-a3b_e16", {377}},
    {"fp8_w8a8_channel", "qwen3-30b-a3b_e16", {467}},
    {"fp8_w8a8_tensor", "qwen3-30b-a3b_e16", {436}},
    {"int8_w8a8", "qwen3-30b-a3b_e16", {412}},
    {"int8_w8a16", "qwen3-30b-a3b_e16", {621}},
    {"int4_w4a16", "qwen3-30b-a3b_e16", {694}},
    {"mxfp4_w4a16", "qwen3-30b-a3b_e16", {609}},
    {"mxfp4", "qwen3-30b-a3b_e16", {650}},
    {"mxfp6_e3m2", "qwen3-30b-a3b_e16", {689}},
    {"mxfp6_e2m3", "qwen3-30b-a3b_e16", {689}},
    {"mxfp8", "qwen3-30b-a3b_e16", {663}},
    {"nvfp4", "qwen3-30b-a3b_e16", {663}},
    {"int8_w8a16_f16", "qwen3-30b-a3b_e16", {657}},
    {"int4_w4a16_f16", "qwen3-30b-a3b_e16", {745}},
    {"mxfp4_w4a16_f16", "qwen3-30b-a3b_e16", {905}},
    {"nvfp4_f16", "qwen3-30b-a3b_e16", {663}},
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
