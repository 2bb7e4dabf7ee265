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
    {"none", "deepseek-v3_e32", {191, 680, 704, 1290, 4030}},
    {"none_f16", "deepseek-v3_e32", {202, 682, 704, 1340, 4210}},
    {"fp8_w8a8", "deepseek-v3_e32", {123, 363, 397, 826, 2590}},
    {"fp8_w8a8_channel", "deepseek-v3_e32", {132, 377, 398, 843, 2630}},
    {"fp8_w8a8_tensor", "deepseek-v3_e32", {146, 392, 418, 838, 2610}},
    {"int8_w8a8", "deepseek-v3_e32", {128, 372, 401, 796, 2330}},
    {"int8_w8a16", "deepseek-v3_e32", {125, 382, 455, 2060, 4770}},
    {"int4_w4a16", "deepseek-v3_e32", {82.3, 261, 386, 1950, 5020}},
    {"mxfp4_w4a16", "deepseek-v3_e32", {88.7, 279, 381, 1860, 4540}},
    {"mxfp4", "deepseek-v3_e32", {96.4, 285, 394, 1920, 4620}},
    {"mxfp6_e3m2", "deepseek-v3_e32", {1050, 2260, 2300, 2940, 5660}},
    {"mxfp6_e2m3", "deepseek-v3_e32", {1050, 2260, 2300, 2940, 5670}},
    {"mxfp8", "deepseek-v3_e32", {149, 438, 536, 2480, 5330}},
    {"nvfp4", "deepseek-v3_e32", {106, 315, 426, 2040, 4850}},
    {"int8_w8a16_f16", "deepseek-v3_e32", {122, 375, 435, 1940, 5460}},
    {"int4_w4a16_f16", "deepseek-v3_e32", {93, 260, 384, 1950, 6290}},
    {"mxfp4_w4a16_f16", "deepseek-v3_e32", {127, 391, 526, 2590, 8060}},
    {"nvfp4_f16", "deepseek-v3_e32", {111, 315, 424, 2030, 5540}},
    {"none", "qwen3-30b-a3b_e128", {37.3, 217, 317, 366, 598}},
    {"none_f16", "qwen3-30b-a3b_e128", {46.4, 220, 319, 378, 646}},
    {"fp8_w8a8", "qwen3-30b-a3b_e128", {40, 135, 189, 244, 443}},
    {"fp8_w8a8_channel", "qwen3-30b-a3b_e128", {42.7, 151, 214, 280, 552}},
    {"fp8_w8a8_tensor", "qwen3-30b-a3b_e128", {56.4, 161, 216, 282, 504}},
    {"int8_w8a8", "qwen3-30b-a3b_e128", {40.6, 145, 208, 280, 501}},
    {"int8_w8a16", "qwen3-30b-a3b_e128", {42.6, 154, 215, 441, 1230}},
    {"int4_w4a16", "qwen3-30b-a3b_e128", {27.7, 118, 165, 416, 1210}},
    {"mxfp4_w4a16", "qwen3-30b-a3b_e128", {29.1, 116, 165, 401, 1190}},
    {"mxfp4", "qwen3-30b-a3b_e128", {33.6, 122, 173, 426, 1270}},
    {"mxfp6_e3m2", "qwen3-30b-a3b_e128", {450, 1020, 1120, 1210, 1530}},
    {"mxfp6_e2m3", "qwen3-30b-a3b_e128", {449, 1020, 1120, 1210, 1530}},
    {"mxfp8", "qwen3-30b-a3b_e128", {54.2, 179, 252, 513, 1310}},
    {"nvfp4", "qwen3-30b-a3b_e128", {36.4, 133, 185, 450, 1300}},
    {"int8_w8a16_f16", "qwen3-30b-a3b_e128", {41.2, 149, 209, 425, 1260}},
    {"int4_w4a16_f16", "qwen3-30b-a3b_e128", {29, 116, 164, 412, 1200}},
    {"mxfp4_w4a16_f16", "qwen3-30b-a3b_e128", {43.4, 151, 228, 503, 1470}},
    {"nvfp4_f16", "qwen3-30b-a3b_e128", {37.7, 133, 185, 449, 1350}},
    {"none", "qwen3-30b-a3b_e16", {489}},
    {"none_f16", "qwen3-30b-a3b_e16", {534}},
    {"fp8_w8a8", "qwen3-30b-a3b_e16", {375}},
    {"fp8_w8a8_channel", "qwen3-30b-a3b_e16", {473}},
    {"fp8_w8a8_tensor", "qwen3-30b-a3b_e16", {445}},
    {"int8_w8a8", "qwen3-30b-a3b_e16", {407}},
    {"int8_w8a16", "qwen3-30b-a3b_e16", {619}},
    {"int4_w4a16", "qwen3-30b-a3b_e16", {694}},
    {"mxfp4_w4a16", "qwen3-30b-a3b_e16", {609}},
    {"mxfp4", "qwen3-30b-a3b_e16", {687}},
    {"mxfp6_e3m2", "qwen3-30b-a3b_e16", {724}},
    {"mxfp6_e2m3", "qwen3-30b-a3b_e16", {725}},
    {"mxfp8", "qwen3-30b-a3b_e16", {674}},
    {"nvfp4", "qwen3-30b-a3b_e16", {724}},
    {"int8_w8a16_f16", "qwen3-30b-a3b_e16", {656}},
    {"int4_w4a16_f16", "qwen3-30b-a3b_e16", {748}},
    {"mxfp4_w4a16_f16", "qwen3-30b-a3b_e16", {896}},
    {"nvfp4_f16", "qwen3-30b-a3b_e16", {761}},
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
