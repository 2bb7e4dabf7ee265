// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The interface of a router implementation, and the list of implementations.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "moebius/router.h"

namespace moebius::router {

// The validated arguments of a Router.  They outlive the implementation.
struct Model {
  RouterConfig config;
  Tensor gate;                         // [E, H] f32, f16 or bf16 on the CPU, our own; optional
  std::vector<float> bias;             // [E], zeros when there is none
  std::vector<float> correction_bias;  // [E], or empty
  std::vector<float> expert_scale;     // [E], or empty
};

// Router has checked the arguments of these functions.  It handles simulated and custom routing
// itself.
class Impl {
 public:
  virtual ~Impl() = default;
  virtual void logits(const Tensor& hidden, const Tensor& out, const Stream& stream) const = 0;
  virtual void select(const Tensor& logits,
                      const Tensor& ids,
                      const Tensor& weights,
                      const Stream& stream) const = 0;
  // What Router::route() does.  Only implementations on GPUs are asked for an order.
  virtual void route(const Tensor& hidden, const RouteOutput& out, const Stream& stream) const {
    logits(hidden, out.logits, stream);
    select(out.logits, out.ids, out.weights, stream);
  }
  // Takes the values that the model has by now, in place on a GPU.  Returns false where the
  // implementation has to be made anew, which is so on the CPU.
  virtual bool update(const Stream& /*stream*/) { return false; }
};

struct ImplEntry {
  std::string_view name;
  DeviceType device;  // must be that of config.device
  Support (*supports)(const Model& model);
  std::unique_ptr<Impl> (*make)(const Model& model);
};

std::span<const ImplEntry> impls();

}  // namespace moebius::router
