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
    {"none", "deepseek-v3_e32", {192, 682, 704, 1300, 4080}},
    {"none_f16", "deepseek-v3_e32", {202, 683, 701, 1350, 4260}},
    {"fp8_w8a8", "deepseek-v3_e32", {122, 362, 394, 827, 2630}},
    {"fp8_w8a8_channel", "deepseek-v3_e32", {133, 376, 398, 846, 2660}},
    {"fp8_w8a8_tensor", "deepseek-v3_e32", {146, 393, 424, 841, 2650}},
    {"int8_w8a8", "deepseek-v3_e32", {128, 371, 402, 802, 2470}},
    {"int8_w8a16", "deepseek-v3_e32", {125, 380, 459, 2070, 4820}},
    {"int4_w4a16", "deepseek-v3_e32", {96, 261, 388, 1950, 5080}},
    {"mxfp4_w4a16", "deepseek-v3_e32", {95.3, 277, 381, 1850, 4580}},
    {"mxfp4", "deepseek-v3_e32", {102, 285, 394, 1920, 4640}},
    {"mxfp6_e3m2", "deepseek-v3_e32", {1050, 2260, 2300, 2950, 5690}},
    {"mxfp6_e2m3", "deepseek-v3_e32", {1050, 2260, 2300, 2940, 5700}},
    {"mxfp8", "deepseek-v3_e32", {149, 439, 536, 2470, 5370}},
    {"nvfp4", "deepseek-v3_e32", {114, 316, 427, 2020, 4890}},
    {"int8_w8a16_f16", "deepseek-v3_e32", {122, 376, 437, 1950, 5500}},
    {"int4_w4a16_f16", "deepseek-v3_e32", {94.9, 259, 385, 1940, 6320}},
    {"mxfp4_w4a16_f16", "deepseek-v3_e32", {127, 389, 525, 2570, 8030}},
    {"nvfp4_f16", "deepseek-v3_e32", {114, 316, 426, 2020, 5570}},
    {"none", "qwen3-30b-a3b_e128", {36.8, 217, 317, 366, 604}},
    {"none_f16", "qwen3-30b-a3b_e128", {46.4, 220, 318, 378, 649}},
    {"fp8_w8a8", "qwen3-30b-a3b_e128", {40.2, 134, 189, 242, 441}},
    {"fp8_w8a8_channel", "qwen3-30b-a3b_e128", {43.3, 151, 213, 279, 551}},
    {"fp8_w8a8_tensor", "qwen3-30b-a3b_e128", {56.6, 161, 217, 282, 505}},
    {"int8_w8a8", "qwen3-30b-a3b_e128", {40.6, 144, 207, 280, 537}},
    {"int8_w8a16", "qwen3-30b-a3b_e128", {43, 155, 215, 440, 1230}},
    {"int4_w4a16", "qwen3-30b-a3b_e128", {39.8, 117, 166, 415, 1200}},
    {"mxfp4_w4a16", "qwen3-30b-a3b_e128", {39.6, 115, 165, 401, 1190}},
    {"mxfp4", "qwen3-30b-a3b_e128", {47.2, 122, 173, 425, 1270}},
    {"mxfp6_e3m2", "qwen3-30b-a3b_e128", {450, 1020, 1120, 1200, 1530}},
    {"mxfp6_e2m3", "qwen3-30b-a3b_e128", {450, 1020, 1120, 1210, 1530}},
    {"mxfp8", "qwen3-30b-a3b_e128", {54.2, 180, 251, 513, 1310}},
    {"nvfp4", "qwen3-30b-a3b_e128", {53.7, 133, 185, 450, 1300}},
    {"int8_w8a16_f16", "qwen3-30b-a3b_e128", {41.1, 149, 210, 427, 1260}},
    {"int4_w4a16_f16", "qwen3-30b-a3b_e128", {38.5, 117, 165, 412, 1200}},
    {"mxfp4_w4a16_f16", "qwen3-30b-a3b_e128", {43.1, 151, 228, 502, 1460}},
    {"nvfp4_f16", "qwen3-30b-a3b_e128", {52.6, 132, 184, 448, 1350}},
    {"none", "qwen3-30b-a3b_e16", {494}},
    {"none_f16", "qwen3-30b-a3b_e16", {537}},
    {"fp8_w8a8", "qwen3-30b-a3b_e16", {379}},
    {"fp8_w8a8_channel", "qwen3-30b-a3b_e16", {475}},
    {"fp8_w8a8_tensor", "qwen3-30b-a3b_e16", {450}},
    {"int8_w8a8", "qwen3-30b-a3b_e16", {458}},
    {"int8_w8a16", "qwen3-30b-a3b_e16", {621}},
    {"int4_w4a16", "qwen3-30b-a3b_e16", {695}},
    {"mxfp4_w4a16", "qwen3-30b-a3b_e16", {608}},
    {"mxfp4", "qwen3-30b-a3b_e16", {687}},
    {"mxfp6_e3m2", "qwen3-30b-a3b_e16", {724}},
    {"mxfp6_e2m3", "qwen3-30b-a3b_e16", {725}},
    {"mxfp8", "qwen3-30b-a3b_e16", {674}},
    {"nvfp4", "qwen3-30b-a3b_e16", {722}},
    {"int8_w8a16_f16", "qwen3-30b-a3b_e16", {657}},
    {"int4_w4a16_f16", "qwen3-30b-a3b_e16", {750}},
    {"mxfp4_w4a16_f16", "qwen3-30b-a3b_e16", {894}},
    {"nvfp4_f16", "qwen3-30b-a3b_e16", {762}},
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
