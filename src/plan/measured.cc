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
    {"none", "deepseek-v3_e32", {191, 680, 701, 1260, 3940}},
    {"none_f16", "deepseek-v3_e32", {201, 682, 705, 1310, 4120}},
    {"fp8_w8a8", "deepseek-v3_e32", {123, 362, 396, 797, 2520}},
    {"fp8_w8a8_channel", "deepseek-v3_e32", {130, 374, 399, 806, 2500}},
    {"fp8_w8a8_tensor", "deepseek-v3_e32", {143, 390, 419, 799, 2470}},
    {"int8_w8a8", "deepseek-v3_e32", {126, 370, 397, 786, 2300}},
    {"int8_w8a16", "deepseek-v3_e32", {123, 371, 409, 1400, 4420}},
    {"int4_w4a16", "deepseek-v3_e32", {79.3, 242, 318, 1440, 4480}},
    {"mxfp4_w4a16", "deepseek-v3_e32", {82.7, 245, 303, 1260, 4140}},
    {"mxfp4", "deepseek-v3_e32", {85.9, 247, 305, 1250, 4030}},
    {"mxfp6_e3m2", "deepseek-v3_e32", {1050, 2250, 2300, 2890, 5490}},
    {"mxfp6_e2m3", "deepseek-v3_e32", {1050, 2250, 2300, 2890, 5500}},
    {"mxfp8", "deepseek-v3_e32", {142, 411, 482, 1490, 4580}},
    {"nvfp4", "deepseek-v3_e32", {91.3, 271, 326, 1290, 4180}},
    {"int8_w8a16_f16", "deepseek-v3_e32", {120, 368, 405, 1360, 4460}},
    {"int4_w4a16_f16", "deepseek-v3_e32", {91.1, 241, 317, 1440, 4540}},
    {"mxfp4_w4a16_f16", "deepseek-v3_e32", {121, 368, 494, 2310, 7970}},
    {"nvfp4_f16", "deepseek-v3_e32", {98.2, 271, 327, 1290, 4170}},
    {"none", "qwen3-30b-a3b_e128", {35.4, 216, 315, 367, 592}},
    {"none_f16", "qwen3-30b-a3b_e128", {45.5, 218, 317, 378, 639}},
    {"fp8_w8a8", "qwen3-30b-a3b_e128", {39.1, 134, 186, 247, 436}},
    {"fp8_w8a8_channel", "qwen3-30b-a3b_e128", {40.9, 149, 209, 279, 541}},
    {"fp8_w8a8_tensor", "qwen3-30b-a3b_e128", {54, 157, 212, 279, 495}},
    {"int8_w8a8", "qwen3-30b-a3b_e128", {39.7, 141, 202, 285, 504}},
    {"int8_w8a16", "qwen3-30b-a3b_e128", {41.6, 141, 197, 342, 758}},
    {"int4_w4a16", "qwen3-30b-a3b_e128", {26.8, 105, 147, 296, 790}},
    {"mxfp4_w4a16", "qwen3-30b-a3b_e128", {28.1, 101, 145, 275, 718}},
    {"mxfp4", "qwen3-30b-a3b_e128", {29.6, 106, 148, 283, 742}},
    {"mxfp6_e3m2", "qwen3-30b-a3b_e128", {446, 1020, 1110, 1200, 1490}},
    {"mxfp6_e2m3", "qwen3-30b-a3b_e128", {445, 1010, 1120, 1200, 1490}},
    {"mxfp8", "qwen3-30b-a3b_e128", {48.5, 165, 228, 384, 824}},
    {"nvfp4", "qwen3-30b-a3b_e128", {30, 111, 156, 297, 753}},
    {"int8_w8a16_f16", "qwen3-30b-a3b_e128", {39.9, 137, 196, 327, 740}},
    {"int4_w4a16_f16", "qwen3-30b-a3b_e128", {28.7, 104, 147, 296, 787}},
    {"mxfp4_w4a16_f16", "qwen3-30b-a3b_e128", {41.9, 137, 210, 414, 1120}},
    {"nvfp4_f16", "qwen3-30b-a3b_e128", {30, 111, 155, 298, 751}},
    {"none", "qwen3-30b-a3b_e16", {486}},
    {"none_f16", "qwen3-30b-a3b_e16", {530}},
    {"fp8_w8a8", "qwen3-30b-a3b_e16", {377}},
    {"fp8_w8a8_channel", "qwen3-30b-a3b_e16", {464}},
    {"fp8_w8a8_tensor", "qwen3-30b-a3b_e16", {436}},
    {"int8_w8a8", "qwen3-30b-a3b_e16", {410}},
    {"int8_w8a16", "qwen3-30b-a3b_e16", {621}},
    {"int4_w4a16", "qwen3-30b-a3b_e16", {692}},
    {"mxfp4_w4a16", "qwen3-30b-a3b_e16", {605}},
    {"mxfp4", "qwen3-30b-a3b_e16", {645}},
    {"mxfp6_e3m2", "qwen3-30b-a3b_e16", {686}},
    {"mxfp6_e2m3", "qwen3-30b-a3b_e16", {686}},
    {"mxfp8", "qwen3-30b-a3b_e16", {662}},
    {"nvfp4", "qwen3-30b-a3b_e16", {657}},
    {"int8_w8a16_f16", "qwen3-30b-a3b_e16", {652}},
    {"int4_w4a16_f16", "qwen3-30b-a3b_e16", {741}},
    {"mxfp4_w4a16_f16", "qwen3-30b-a3b_e16", {905}},
    {"nvfp4_f16", "qwen3-30b-a3b_e16", {659}},
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
