// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The formulas of the activations, with the rounding points of the public vLLM kernels: silu and
// gelu round act(gate) and then the product; swiglu-oai, swiglu-step and relu2 round once.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

#include "moebius/experts.h"

namespace moebius::ref {

template <typename Real>
Real silu(Real x) {
  return x / (Real(1) + std::exp(-x));
}

template <typename Real>
Real gelu(Real x) {
  return Real(0.5) * x * (Real(1) + std::erf(x / std::numbers::sqrt2_v<Real>));
}

template <typename Real>
Real gelu_tanh(Real x) {
  const Real scale = std::numbers::sqrt2_v<Real> * std::numbers::inv_sqrtpi_v<Real>;
  const Real inner = scale * (x + Real(0.044715) * x * x * x);
  return Real(0.5) * x * (Real(1) + std::tanh(inner));
}

template <typename Real>
Real swiglu_oai(Real gate, Real up, Real alpha, Real beta, Real limit) {
  const Real g = std::min(gate, limit);
  const Real u = std::clamp(up, -limit, limit);
  return (u + beta) * (g / (Real(1) + std::exp(-alpha * g)));
}

template <typename Real>
Real swiglu_step(Real gate, Real up, Real limit) {
  return std::min(silu(gate), limit) * std::clamp(up, -limit, limit);
}

// Computes one value of the intermediate.  `up` is ignored when not gated; `round` takes Real to
// the nearest value of the result's dtype.
template <typename Real, typename Round>
Real activate(const ActivationSpec& spec, Real gate, Real up, Round round) {
  switch (spec.kind) {
    case Activation::kSilu:
      return spec.gated ? round(round(silu(gate)) * up) : round(silu(gate));
    case Activation::kGelu:
      return spec.gated ? round(round(gelu(gate)) * up) : round(gelu(gate));
    case Activation::kGeluTanh:
      return spec.gated ? round(round(gelu_tanh(gate)) * up) : round(gelu_tanh(gate));
    case Activation::kSwigluOai:
      return round(swiglu_oai(gate, up, Real(spec.alpha), Real(spec.beta), Real(spec.limit)));
    case Activation::kSwigluStep:
      return round(swiglu_step(gate, up, Real(spec.limit)));
    case Activation::kRelu2: {
      const Real positive = std::max(gate, Real(0));
      return round(positive * positive);
    }
  }
  return Real(0);
}

}  // namespace moebius::ref
