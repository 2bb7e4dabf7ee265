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
    {"none", "deepseek-v3_e32", {191, 676, 699, 1280, 4060}},
    {"none_f16", "deepseek-v3_e32", {202, 678, 699, 1320, 4240}},
    {"fp8_w8a8", "deepseek-v3_e32", {123, 362, 393, 819, 2590}},
    {"fp8_w8a8_channel", "deepseek-v3_e32", {132, 375, 396, 826, 2570}},
    {"fp8_w8a8_tensor", "deepseek-v3_e32", {145, 390, 420, 819, 2540}},
    {"int8_w8a8", "deepseek-v3_e32", {127, 370, 396, 796, 2350}},
    {"int8_w8a16", "deepseek-v3_e32", {124, 369, 408, 1440, 4540}},
    {"int4_w4a16", "deepseek-v3_e32", {80, 243, 334, 1530, 4940}},
    {"mxfp4_w4a16", "deepseek-v3_e32", {82.6, 245, 304, 1280, 4260}},
    {"mxfp4", "deepseek-v3_e32", {87.4, 253, 314, 1300, 4260}},
    {"mxfp6_e3m2", "deepseek-v3_e32", {1060, 2260, 2300, 2940, 5690}},
    {"mxfp6_e2m3", "deepseek-v3_e32", {1050, 2260, 2300, 2930, 5690}},
    {"mxfp8", "deepseek-v3_e32", {145, 415, 487, 1530, 4830}},
    {"nvfp4", "deepseek-v3_e32", {97.9, 281, 344, 1370, 4550}},
    {"int8_w8a16_f16", "deepseek-v3_e32", {120, 368, 402, 1380, 4580}},
    {"int4_w4a16_f16", "deepseek-v3_e32", {92.4, 242, 333, 1540, 6250}},
    {"mxfp4_w4a16_f16", "deepseek-v3_e32", {123, 371, 491, 2380, 7970}},
    {"nvfp4_f16", "deepseek-v3_e32", {107, 279, 343, 1370, 4550}},
    {"none", "qwen3-30b-a3b_e128", {36.6, 216, 316, 367, 596}},
    {"none_f16", "qwen3-30b-a3b_e128", {45.9, 219, 317, 377, 645}},
    {"fp8_w8a8", "qwen3-30b-a3b_e128", {40.8, 137, 188, 247, 440}},
    {"fp8_w8a8_channel", "qwen3-30b-a3b_e128", {41.8, 151, 213, 278, 546}},
    {"fp8_w8a8_tensor", "qwen3-30b-a3b_e128", {54.8, 161, 216, 281, 499}},
    {"int8_w8a8", "qwen3-30b-a3b_e128", {41, 144, 205, 284, 505}},
    {"int8_w8a16", "qwen3-30b-a3b_e128", {42.5, 144, 200, 342, 767}},
    {"int4_w4a16", "qwen3-30b-a3b_e128", {27.9, 105, 149, 305, 819}},
    {"mxfp4_w4a16", "qwen3-30b-a3b_e128", {28.5, 103, 145, 275, 723}},
    {"mxfp4", "qwen3-30b-a3b_e128", {33.1, 112, 153, 305, 820}},
    {"mxfp6_e3m2", "qwen3-30b-a3b_e128", {452, 1020, 1120, 1210, 1540}},
    {"mxfp6_e2m3", "qwen3-30b-a3b_e128", {452, 1020, 1120, 1210, 1540}},
    {"mxfp8", "qwen3-30b-a3b_e128", {54.3, 170, 234, 404, 882}},
    {"nvfp4", "qwen3-30b-a3b_e128", {35.6, 122, 164, 328, 862}},
    {"int8_w8a16_f16", "qwen3-30b-a3b_e128", {41.4, 139, 195, 325, 752}},
    {"int4_w4a16_f16", "qwen3-30b-a3b_e128", {29, 104, 148, 302, 817}},
    {"mxfp4_w4a16_f16", "qwen3-30b-a3b_e128", {43.4, 139, 209, 422, 1160}},
    {"nvfp4_f16", "qwen3-30b-a3b_e128", {36.5, 121, 163, 328, 862}},
    {"none", "qwen3-30b-a3b_e16", {495}},
    {"none_f16", "qwen3-30b-a3b_e16", {539}},
    {"fp8_w8a8", "qwen3-30b-a3b_e16", {379}},
    {"fp8_w8a8_channel", "qwen3-30b-a3b_e16", {466}},
    {"fp8_w8a8_tensor", "qwen3-30b-a3b_e16", {440}},
    {"int8_w8a8", "qwen3-30b-a3b_e16", {411}},
    {"int8_w8a16", "qwen3-30b-a3b_e16", {624}},
    {"int4_w4a16", "qwen3-30b-a3b_e16", {695}},
    {"mxfp4_w4a16", "qwen3-30b-a3b_e16", {607}},
    {"mxfp4", "qwen3-30b-a3b_e16", {685}},
    {"mxfp6_e3m2", "qwen3-30b-a3b_e16", {728}},
    {"mxfp6_e2m3", "qwen3-30b-a3b_e16", {728}},
    {"mxfp8", "qwen3-30b-a3b_e16", {677}},
    {"nvfp4", "qwen3-30b-a3b_e16", {721}},
    {"int8_w8a16_f16", "qwen3-30b-a3b_e16", {662}},
    {"int4_w4a16_f16", "qwen3-30b-a3b_e16", {746}},
    {"mxfp4_w4a16_f16", "qwen3-30b-a3b_e16", {905}},
    {"nvfp4_f16", "qwen3-30b-a3b_e16", {764}},
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
