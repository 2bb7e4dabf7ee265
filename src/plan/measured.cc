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
    {"none", "deepseek-v3_e32", {192, 681, 702, 1300, 4080}},
    {"none_f16", "deepseek-v3_e32", {202, 682, 704, 1350, 4260}},
    {"fp8_w8a8", "deepseek-v3_e32", {124, 365, 395, 830, 2600}},
    {"fp8_w8a8_channel", "deepseek-v3_e32", {132, 378, 398, 834, 2570}},
    {"fp8_w8a8_tensor", "deepseek-v3_e32", {145, 392, 421, 830, 2540}},
    {"int8_w8a8", "deepseek-v3_e32", {127, 372, 397, 798, 2340}},
    {"int8_w8a16", "deepseek-v3_e32", {126, 381, 455, 2070, 4820}},
    {"int4_w4a16", "deepseek-v3_e32", {80.5, 262, 389, 1940, 4980}},
    {"mxfp4_w4a16", "deepseek-v3_e32", {88.6, 279, 382, 1860, 4580}},
    {"mxfp4", "deepseek-v3_e32", {96.6, 286, 395, 1920, 4630}},
    {"mxfp6_e3m2", "deepseek-v3_e32", {1050, 2260, 2310, 2940, 5690}},
    {"mxfp6_e2m3", "deepseek-v3_e32", {1050, 2260, 2310, 2940, 5700}},
    {"mxfp8", "deepseek-v3_e32", {149, 440, 540, 2480, 5370}},
    {"nvfp4", "deepseek-v3_e32", {106, 315, 429, 2030, 4910}},
    {"int8_w8a16_f16", "deepseek-v3_e32", {122, 377, 438, 1960, 5520}},
    {"int4_w4a16_f16", "deepseek-v3_e32", {92.2, 261, 388, 1940, 6250}},
    {"mxfp4_w4a16_f16", "deepseek-v3_e32", {125, 384, 526, 2580, 7980}},
    {"nvfp4_f16", "deepseek-v3_e32", {110, 316, 426, 2020, 5570}},
    {"none", "qwen3-30b-a3b_e128", {37.1, 218, 318, 368, 606}},
    {"none_f16", "qwen3-30b-a3b_e128", {45.9, 220, 319, 379, 652}},
    {"fp8_w8a8", "qwen3-30b-a3b_e128", {40.8, 137, 190, 248, 441}},
    {"fp8_w8a8_channel", "qwen3-30b-a3b_e128", {41.6, 151, 213, 279, 544}},
    {"fp8_w8a8_tensor", "qwen3-30b-a3b_e128", {55.3, 160, 216, 282, 499}},
    {"int8_w8a8", "qwen3-30b-a3b_e128", {41.2, 144, 205, 284, 502}},
    {"int8_w8a16", "qwen3-30b-a3b_e128", {42.7, 154, 215, 443, 1230}},
    {"int4_w4a16", "qwen3-30b-a3b_e128", {27.8, 117, 166, 415, 1200}},
    {"mxfp4_w4a16", "qwen3-30b-a3b_e128", {29.1, 116, 166, 401, 1190}},
    {"mxfp4", "qwen3-30b-a3b_e128", {33.7, 123, 173, 425, 1270}},
    {"mxfp6_e3m2", "qwen3-30b-a3b_e128", {452, 1020, 1120, 1210, 1540}},
    {"mxfp6_e2m3", "qwen3-30b-a3b_e128", {451, 1020, 1120, 1210, 1530}},
    {"mxfp8", "qwen3-30b-a3b_e128", {54.1, 180, 252, 513, 1310}},
    {"nvfp4", "qwen3-30b-a3b_e128", {36.8, 133, 187, 450, 1300}},
    {"int8_w8a16_f16", "qwen3-30b-a3b_e128", {41.2, 149, 210, 422, 1260}},
    {"int4_w4a16_f16", "qwen3-30b-a3b_e128", {29, 117, 165, 414, 1200}},
    {"mxfp4_w4a16_f16", "qwen3-30b-a3b_e128", {43.4, 149, 227, 504, 1470}},
    {"nvfp4_f16", "qwen3-30b-a3b_e128", {37.6, 133, 186, 449, 1350}},
    {"none", "qwen3-30b-a3b_e16", {496}},
    {"none_f16", "qwen3-30b-a3b_e16", {541}},
    {"fp8_w8a8", "qwen3-30b-a3b_e16", {377}},
    {"fp8_w8a8_channel", "qwen3-30b-a3b_e16", {465}},
    {"fp8_w8a8_tensor", "qwen3-30b-a3b_e16", {437}},
    {"int8_w8a8", "qwen3-30b-a3b_e16", {408}},
    {"int8_w8a16", "qwen3-30b-a3b_e16", {621}},
    {"int4_w4a16", "qwen3-30b-a3b_e16", {693}},
    {"mxfp4_w4a16", "qwen3-30b-a3b_e16", {611}},
    {"mxfp4", "qwen3-30b-a3b_e16", {688}},
    {"mxfp6_e3m2", "qwen3-30b-a3b_e16", {726}},
    {"mxfp6_e2m3", "qwen3-30b-a3b_e16", {726}},
    {"mxfp8", "qwen3-30b-a3b_e16", {676}},
    {"nvfp4", "qwen3-30b-a3b_e16", {722}},
    {"int8_w8a16_f16", "qwen3-30b-a3b_e16", {659}},
    {"int4_w4a16_f16", "qwen3-30b-a3b_e16", {743}},
    {"mxfp4_w4a16_f16", "qwen3-30b-a3b_e16", {901}},
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
