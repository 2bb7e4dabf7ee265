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
  std::string_view scheme;
  std::string_view model;
  std::array<double, std::size(kTokens)> us;  // in the order of the model's tokens
};
// Printed by tools/gpu_table.py --measured.
constexpr Line kLines[] = {
    {"none", "deepseek-v3_e32", {192, 681, 705, 1300, 4060}},
    {"fp8_w8a8", "deepseek-v3_e32", {123, 364, 398, 825, 2620}},
    {"fp8_w8a8_channel", "deepseek-v3_e32", {131, 376, 399, 842, 2650}},
    {"fp8_w8a8_tensor", "deepseek-v3_e32", {145, 392, 420, 838, 2630}},
    {"int8_w8a8", "deepseek-v3_e32", {127, 371, 400, 802, 2460}},
    {"int8_w8a16", "deepseek-v3_e32", {125, 381, 458, 2630, 4820}},
    {"int4_w4a16", "deepseek-v3_e32", {96.3, 261, 387, 2840, 5050}},
    {"mxfp4_w4a16", "deepseek-v3_e32", {95.6, 279, 383, 2520, 4570}},
    {"mxfp4", "deepseek-v3_e32", {103, 286, 393, 2580, 4630}},
    {"mxfp6_e3m2", "deepseek-v3_e32", {1060, 2260, 2300, 2940, 5680}},
    {"mxfp6_e2m3", "deepseek-v3_e32", {1060, 2260, 2310, 2940, 5690}},
    {"mxfp8", "deepseek-v3_e32", {149, 440, 537, 2630, 5360}},
    {"nvfp4", "deepseek-v3_e32", {114, 318, 427, 2620, 4880}},
    {"none", "qwen3-30b-a3b_e128", {36.8, 217, 317, 366, 601}},
    {"fp8_w8a8", "qwen3-30b-a3b_e128", {40.3, 135, 190, 245, 441}},
    {"fp8_w8a8_channel", "qwen3-30b-a3b_e128", {43, 151, 214, 281, 552}},
    {"fp8_w8a8_tensor", "qwen3-30b-a3b_e128", {56.9, 162, 216, 283, 507}},
    {"int8_w8a8", "qwen3-30b-a3b_e128", {39.8, 145, 208, 283, 540}},
    {"int8_w8a16", "qwen3-30b-a3b_e128", {43, 155, 216, 441, 1230}},
    {"int4_w4a16", "qwen3-30b-a3b_e128", {40.2, 118, 166, 417, 1300}},
    {"mxfp4_w4a16", "qwen3-30b-a3b_e128", {40.4, 117, 164, 402, 1190}},
    {"mxfp4", "qwen3-30b-a3b_e128", {46.9, 123, 172, 427, 1270}},
    {"mxfp6_e3m2", "qwen3-30b-a3b_e128", {451, 1020, 1120, 1210, 1540}},
    {"mxfp6_e2m3", "qwen3-30b-a3b_e128", {450, 1020, 1120, 1210, 1540}},
    {"mxfp8", "qwen3-30b-a3b_e128", {54.2, 181, 252, 514, 1320}},
    {"nvfp4", "qwen3-30b-a3b_e128", {52.9, 133, 186, 452, 1310}},
    {"none", "qwen3-30b-a3b_e16", {493}},
    {"fp8_w8a8", "qwen3-30b-a3b_e16", {379}},
    {"fp8_w8a8_channel", "qwen3-30b-a3b_e16", {476}},
    {"fp8_w8a8_tensor", "qwen3-30b-a3b_e16", {452}},
    {"int8_w8a8", "qwen3-30b-a3b_e16", {460}},
    {"int8_w8a16", "qwen3-30b-a3b_e16", {620}},
    {"int4_w4a16", "qwen3-30b-a3b_e16", {699}},
    {"mxfp4_w4a16", "qwen3-30b-a3b_e16", {612}},
    {"mxfp4", "qwen3-30b-a3b_e16", {687}},
    {"mxfp6_e3m2", "qwen3-30b-a3b_e16", {727}},
    {"mxfp6_e2m3", "qwen3-30b-a3b_e16", {726}},
    {"mxfp8", "qwen3-30b-a3b_e16", {678}},
    {"nvfp4", "qwen3-30b-a3b_e16", {723}},
};

std::vector<MeasuredExperts> make_cases() {
  std::vector<MeasuredExperts> cases;
  for (const Line& line : kLines) {
    const Model& m = *std::find_if(std::begin(kModels), std::end(kModels),
                                   [&](const Model& one) { return one.name == line.model; });
    for (size_t i = 0; i < m.tokens.size(); ++i) {
      cases.push_back(
          {line.scheme, m.hidden, m.intermediate, m.num_experts, kTopk, m.tokens[i], line.us[i]});
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
  double weights = 0;
  double logs = 0;
  for (const MeasuredExperts& m : measured_experts()) {
    if (m.scheme != d.formats.name) {
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
