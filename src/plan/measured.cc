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
    {"none", "deepseek-v3_e32", {191, 682, 702, 1310, 4090}},
    {"none_f16", "deepseek-v3_e32", {204, 682, 702, 1340, 4270}},
    {"fp8_w8a8", "deepseek-v3_e32", {122, 365, 398, 830, 2600}},
    {"fp8_w8a8_channel", "deepseek-v3_e32", {130, 377, 400, 834, 2570}},
    {"fp8_w8a8_tensor", "deepseek-v3_e32", {144, 390, 418, 827, 2550}},
    {"int8_w8a8", "deepseek-v3_e32", {126, 374, 398, 800, 2340}},
    {"int8_w8a16", "deepseek-v3_e32", {125, 372, 422, 1930, 4840}},
    {"int4_w4a16", "deepseek-v3_e32", {79.8, 236, 325, 1650, 4980}},
    {"mxfp4_w4a16", "deepseek-v3_e32", {88.6, 259, 326, 1670, 4600}},
    {"mxfp4", "deepseek-v3_e32", {93.9, 267, 340, 1720, 4650}},
    {"mxfp6_e3m2", "deepseek-v3_e32", {1040, 2260, 2300, 2920, 5540}},
    {"mxfp6_e2m3", "deepseek-v3_e32", {1040, 2260, 2310, 2920, 5540}},
    {"mxfp8", "deepseek-v3_e32", {144, 410, 486, 2260, 5180}},
    {"nvfp4", "deepseek-v3_e32", {104, 298, 376, 1800, 4580}},
    {"int8_w8a16_f16", "deepseek-v3_e32", {122, 367, 410, 1680, 5230}},
    {"int4_w4a16_f16", "deepseek-v3_e32", {90.3, 234, 324, 1620, 6070}},
    {"mxfp4_w4a16_f16", "deepseek-v3_e32", {122, 366, 491, 2430, 7900}},
    {"nvfp4_f16", "deepseek-v3_e32", {109, 297, 375, 1800, 5390}},
    {"none", "qwen3-30b-a3b_e128", {37.2, 218, 318, 369, 564}},
    {"none_f16", "qwen3-30b-a3b_e128", {45.7, 222, 319, 379, 615}},
    {"fp8_w8a8", "qwen3-30b-a3b_e128", {39.3, 137, 191, 247, 419}},
    {"fp8_w8a8_channel", "qwen3-30b-a3b_e128", {41.9, 151, 213, 276, 530}},
    {"fp8_w8a8_tensor", "qwen3-30b-a3b_e128", {55.9, 162, 217, 279, 475}},
    {"int8_w8a8", "qwen3-30b-a3b_e128", {40.8, 145, 207, 283, 497}},
    {"int8_w8a16", "qwen3-30b-a3b_e128", {43, 143, 200, 389, 1090}},
    {"int4_w4a16", "qwen3-30b-a3b_e128", {27.8, 105, 146, 326, 932}},
    {"mxfp4_w4a16", "qwen3-30b-a3b_e128", {28.8, 106, 153, 321, 919}},
    {"mxfp4", "qwen3-30b-a3b_e128", {32.6, 116, 162, 349, 1030}},
    {"mxfp6_e3m2", "qwen3-30b-a3b_e128", {446, 1020, 1120, 1200, 1520}},
    {"mxfp6_e2m3", "qwen3-30b-a3b_e128", {447, 1020, 1120, 1200, 1520}},
    {"mxfp8", "qwen3-30b-a3b_e128", {53.6, 168, 230, 433, 1240}},
    {"nvfp4", "qwen3-30b-a3b_e128", {36.2, 123, 173, 367, 1080}},
    {"int8_w8a16_f16", "qwen3-30b-a3b_e128", {41.3, 138, 194, 374, 1040}},
    {"int4_w4a16_f16", "qwen3-30b-a3b_e128", {28.7, 104, 146, 323, 929}},
    {"mxfp4_w4a16_f16", "qwen3-30b-a3b_e128", {42.9, 138, 209, 440, 1270}},
    {"nvfp4_f16", "qwen3-30b-a3b_e128", {37.5, 122, 172, 365, 1080}},
    {"none", "qwen3-30b-a3b_e16", {476}},
    {"none_f16", "qwen3-30b-a3b_e16", {519}},
    {"fp8_w8a8", "qwen3-30b-a3b_e16", {372}},
    {"fp8_w8a8_channel", "qwen3-30b-a3b_e16", {460}},
    {"fp8_w8a8_tensor", "qwen3-30b-a3b_e16", {428}},
    {"int8_w8a8", "qwen3-30b-a3b_e16", {402}},
    {"int8_w8a16", "qwen3-30b-a3b_e16", {612}},
    {"int4_w4a16", "qwen3-30b-a3b_e16", {686}},
    {"mxfp4_w4a16", "qwen3-30b-a3b_e16", {602}},
    {"mxfp4", "qwen3-30b-a3b_e16", {682}},
    {"mxfp6_e3m2", "qwen3-30b-a3b_e16", {719}},
    {"mxfp6_e2m3", "qwen3-30b-a3b_e16", {719}},
    {"mxfp8", "qwen3-30b-a3b_e16", {668}},
    {"nvfp4", "qwen3-30b-a3b_e16", {716}},
    {"int8_w8a16_f16", "qwen3-30b-a3b_e16", {648}},
    {"int4_w4a16_f16", "qwen3-30b-a3b_e16", {735}},
    {"mxfp4_w4a16_f16", "qwen3-30b-a3b_e16", {896}},
    {"nvfp4_f16", "qwen3-30b-a3b_e16", {755}},
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
