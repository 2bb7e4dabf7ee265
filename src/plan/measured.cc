// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "plan/measured.h"

#include <cmath>

#include "plan/gemm.h"
#include "plan/stages.h"

namespace moebius::plan {

namespace {

struct Shape {
  int64_t hidden, intermediate, num_experts;
};
constexpr Shape kDeepSeek{7168, 2048, 32};
constexpr Shape kQwen{2048, 768, 16};
constexpr Shape kWholeQwen{2048, 768, 128};

constexpr MeasuredExperts row(std::string_view scheme, const Shape& s, int64_t tokens, double us) {
  return {scheme, s.hidden, s.intermediate, s.num_experts, 8, tokens, us};
}

constexpr MeasuredExperts kMeasured[] = {
    row("none", kDeepSeek, 4096, 4130),
    row("none", kDeepSeek, 128, 697),
    row("none", kQwen, 4096, 524),
    row("none", kWholeQwen, 1, 33),
    row("none", kWholeQwen, 16, 208),
    row("none", kWholeQwen, 128, 312),
    row("none", kWholeQwen, 1024, 358),
    row("none", kWholeQwen, 4096, 588),
    row("fp8_w8a8", kDeepSeek, 4096, 2610),
    row("fp8_w8a8", kDeepSeek, 128, 389),
    row("fp8_w8a8", kQwen, 4096, 394),
    row("int8_w8a8", kDeepSeek, 4096, 2410),
    row("int8_w8a8", kDeepSeek, 128, 402),
    row("int8_w8a8", kQwen, 4096, 472),
    row("fp8_w8a8_channel", kDeepSeek, 4096, 2560),
    row("fp8_w8a8_channel", kDeepSeek, 128, 400),
    row("fp8_w8a8_channel", kQwen, 4096, 465),
    row("int8_w8a16", kDeepSeek, 4096, 4860),
    row("int8_w8a16", kDeepSeek, 128, 451),
    row("int8_w8a16", kDeepSeek, 16, 374),
    row("int8_w8a16", kDeepSeek, 1, 123),
    row("int8_w8a16", kQwen, 4096, 650),
    row("int4_w4a16", kDeepSeek, 4096, 5000),
    row("int4_w4a16", kDeepSeek, 128, 381),
    row("int4_w4a16", kDeepSeek, 16, 254),
    row("int4_w4a16", kDeepSeek, 1, 94),
    row("int4_w4a16", kQwen, 4096, 676),
    row("mxfp4_w4a16", kDeepSeek, 4096, 4640),
    row("mxfp4_w4a16", kDeepSeek, 128, 376),
    row("mxfp4_w4a16", kDeepSeek, 16, 275),
    row("mxfp4_w4a16", kDeepSeek, 1, 93),
    row("mxfp4_w4a16", kQwen, 4096, 638),
    row("nvfp4", kDeepSeek, 4096, 4920),
    row("nvfp4", kDeepSeek, 128, 419),
    row("nvfp4", kDeepSeek, 16, 312),
    row("nvfp4", kDeepSeek, 1, 113),
    row("nvfp4", kQwen, 4096, 764),
};

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
  return kMeasured;
}

double measured_correction(const Deployment& d,
                           int64_t intermediate,
                           double rows_of_expert,
                           const Machine& machine) {
  constexpr double kSameCase = 1e-3;  // as far away as a case may be that counts alone
  const GemmKind kind = gemm_kind(d, intermediate, rows_of_expert);
  double weights = 0;
  double logs = 0;
  for (const MeasuredExperts& m : kMeasured) {
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
