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
    {"none", "deepseek-v3_e32", {188, 673, 693, 1250, 3980}},
    {"none_f16", "deepseek-v3_e32", {194, 674, 698, 1300, 4160}},
    {"fp8_w8a8", "deepseek-v3_e32", {120, 359, 393, 798, 2550}},
    {"fp8_w8a8_channel", "deepseek-v3_e32", {124, 367, 392, 806, 2530}},
    {"fp8_w8a8_tensor", "deepseek-v3_e32", {143, 385, 413, 800, 2500}},
    {"int8_w8a8", "deepseek-v3_e32", {123, 367, 393, 786, 2330}},
    {"int8_w8a16", "deepseek-v3_e32", {121, 367, 403, 1410, 4470}},
    {"int4_w4a16", "deepseek-v3_e32", {65.7, 232, 303, 1340, 4370}},
    {"mxfp4_w4a16", "deepseek-v3_e32", {70.1, 238, 291, 1270, 4180}},
    {"mxfp4", "deepseek-v3_e32", {70.4, 244, 291, 1250, 3990}},
    {"mxfp6_e3m2", "deepseek-v3_e32", {1020, 2220, 2260, 2850, 5480}},
    {"mxfp6_e2m3", "deepseek-v3_e32", {1020, 2210, 2260, 2860, 5490}},
    {"mxfp8", "deepseek-v3_e32", {135, 412, 477, 1480, 4560}},
    {"nvfp4", "deepseek-v3_e32", {73.4, 255, 301, 1270, 4170}},
    {"int8_w8a16_f16", "deepseek-v3_e32", {118, 363, 400, 1370, 4500}},
    {"int4_w4a16_f16", "deepseek-v3_e32", {80.3, 231, 302, 1420, 4560}},
    {"mxfp4_w4a16_f16", "deepseek-v3_e32", {120, 368, 479, 2250, 8040}},
    {"nvfp4_f16", "deepseek-v3_e32", {73.5, 254, 302, 1270, 4170}},
    {"none", "qwen3-30b-a3b_e128", {33.4, 211, 311, 364, 591}},
    {"none_f16", "qwen3-30b-a3b_e128", {41.5, 214, 311, 376, 641}},
    {"fp8_w8a8", "qwen3-30b-a3b_e128", {37.5, 131, 184, 245, 438}},
    {"fp8_w8a8_channel", "qwen3-30b-a3b_e128", {38.4, 143, 206, 279, 545}},
    {"fp8_w8a8_tensor", "qwen3-30b-a3b_e128", {53.5, 153, 209, 280, 498}},
    {"int8_w8a8", "qwen3-30b-a3b_e128", {37.3, 141, 198, 284, 505}},
    {"int8_w8a16", "qwen3-30b-a3b_e128", {38.7, 136, 191, 333, 759}},
    {"int4_w4a16", "qwen3-30b-a3b_e128", {22, 86, 134, 291, 760}},
    {"mxfp4_w4a16", "qwen3-30b-a3b_e128", {23.1, 79.8, 137, 271, 713}},
    {"mxfp4", "qwen3-30b-a3b_e128", {23.7, 80.8, 140, 278, 726}},
    {"mxfp6_e3m2", "qwen3-30b-a3b_e128", {422, 971, 1070, 1160, 1460}},
    {"mxfp6_e2m3", "qwen3-30b-a3b_e128", {423, 971, 1070, 1160, 1450}},
    {"mxfp8", "qwen3-30b-a3b_e128", {45, 159, 230, 386, 811}},
    {"nvfp4", "qwen3-30b-a3b_e128", {24, 84.9, 148, 284, 748}},
    {"int8_w8a16_f16", "qwen3-30b-a3b_e128", {38.1, 134, 189, 325, 745}},
    {"int4_w4a16_f16", "qwen3-30b-a3b_e128", {22.5, 89.7, 134, 284, 775}},
    {"mxfp4_w4a16_f16", "qwen3-30b-a3b_e128", {40.2, 135, 205, 401, 1090}},
    {"nvfp4_f16", "qwen3-30b-a3b_e128", {24.3, 85.2, 147, 284, 744}},
    {"none", "qwen3-30b-a3b_e16", {490}},
    {"none_f16", "qwen3-30b-a3b_e16", {536}},
    {"fp8_w8a8", "qwen3-30b-a3b_e16", {380}},
    {"fp8_w8a8_channel", "qwen3-30b-a3b_e16", {468}},
    {"fp8_w8a8_tensor", "qwen3-30b-a3b_e16", {438}},
    {"int8_w8a8", "qwen3-30b-a3b_e16", {413}},
    {"int8_w8a16", "qwen3-30b-a3b_e16", {626}},
    {"int4_w4a16", "qwen3-30b-a3b_e16", {694}},
    {"mxfp4_w4a16", "qwen3-30b-a3b_e16", {607}},
    {"mxfp4", "qwen3-30b-a3b_e16", {646}},
    {"mxfp6_e3m2", "qwen3-30b-a3b_e16", {684}},
    {"mxfp6_e2m3", "qwen3-30b-a3b_e16", {684}},
    {"mxfp8", "qwen3-30b-a3b_e16", {662}},
    {"nvfp4", "qwen3-30b-a3b_e16", {662}},
    {"int8_w8a16_f16", "qwen3-30b-a3b_e16", {664}},
    {"int4_w4a16_f16", "qwen3-30b-a3b_e16", {746}},
    {"mxfp4_w4a16_f16", "qwen3-30b-a3b_e16", {908}},
    {"nvfp4_f16", "qwen3-30b-a3b_e16", {664}},
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
