// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "core/given_tensors.h"
#include "core/ids.h"
#include "core/overlap.h"
#include "core/same_device.h"
#include "core/select.h"
#include "router/checks.h"
#include "router/impl.h"
#include "router/simulator.h"

namespace moebius {

namespace {

void expect_float(const Tensor& tensor, std::string_view what) {
  const DType dtype = tensor.dtype();
  expect(is_float(dtype), [&] {
    return fmt::format("{} dtype is {}, expected f32, f16 or bf16", what, name(dtype));
  });
}

// With `masks`, minus infinity is allowed.
void expect_finite(const Tensor& tensor, std::string_view what, bool masks = false) {
  for (int64_t i = 0, n = tensor.numel(); i < n; ++i) {
    const float value = get_float(tensor, i);
    if (!std::isfinite(value) && !(masks && value < 0)) {
      throw InvalidArgument(fmt::format(
          "{} is {}, expected a finite number{}", router::element_name(what, tensor.shape(), i),
          std::isnan(value) ? "NaN" : fmt::format("{}", value), masks ? " or -inf" : ""));
    }
  }
}

void check(const RouterConfig& config) {
  expect_ge(config.num_experts, 1, "num_experts");
  expect_ge(config.topk, 1, "topk");
  expect_le(config.topk, config.num_experts, "topk");
  expect_ge(config.num_groups, 1, "num_groups");
  expect_multiple_of(config.num_experts, config.num_groups, "num_experts, in num_groups groups,");
  expect_ge(config.topk_groups, 1, "topk_groups");
  expect_le(config.topk_groups, config.num_groups, "topk_groups");
  expect_le(config.topk, config.topk_groups * (config.num_experts / config.num_groups),
            "topk, against the experts of topk_groups groups,");
  expect(std::isfinite(config.routed_scaling_factor), [&] {
    return fmt::format("routed_scaling_factor is {}, expected a finite number",
                       config.routed_scaling_factor);
  });
  expect(std::isfinite(config.zipf_exponent) && config.zipf_exponent >= 0.0, [&] {
    return fmt::format("zipf_exponent is {}, expected a finite number of at least 0",
                       config.zipf_exponent);
  });
  if (config.logit_sums == LogitSums::kTensorCores && !config.device.is_cuda()) {
    throw Unsupported(fmt::format("logits summed by tensor cores on {}: they are of GPUs",
                                  to_string(config.device)));
  }
  if (config.device.is_cuda()) {
    expect_usable(config.device);
    if (config.custom || config.simulation != Simulation::kNone) {
      throw Unsupported(fmt::format("{} routing on {}: it runs on the CPU",
                                    config.custom ? "custom" : "simulated",
                                    to_string(config.device)));
    }
  }
}

void check(const RouterConfig& config, const RouterWeights& weights) {
  if (weights.gate) {
    expect_float(weights.gate, "gate");
    expect_eq(weights.gate.num_dims(), 2, "dimensions of gate");
    expect_eq(weights.gate.dim(0), config.num_experts, "gate.dim(0)");
    expect_ge(weights.gate.dim(1), 1, "gate.dim(1)");
    expect_finite(weights.gate, "gate");
  }
  for (const auto& [bias, what] :
       {std::pair(&weights.bias, "bias"), std::pair(&weights.correction_bias, "correction_bias"),
        std::pair(&weights.expert_scale, "expert_scale")}) {
    if (*bias) {
      expect_float(*bias, what);
      expect_shape(*bias, {config.num_experts}, what);
      expect_finite(*bias, what, bias == &weights.correction_bias);
    }
  }
}

// What Scoring::kSparseMixer, which has steps of its own, goes with.
void check_mixer(const RouterConfig& config, const RouterWeights& weights) {
  if (config.scoring != Scoring::kSparseMixer) {
    return;
  }
  expect(std::isfinite(config.mixer_epsilon) && config.mixer_epsilon >= 0.0f, [&] {
    return fmt::format("mixer_epsilon is {}, expected a finite number of at least 0",
                       config.mixer_epsilon);
  });
  expect_eq(config.num_groups, 1, "num_groups, with the sparse mixer,");
  expect(!config.score_after_topk,
         "score_after_topk is true, expected false with the sparse mixer");
  expect(!weights.correction_bias, "correction_bias is given, expected none with the sparse mixer");
}

std::vector<float> to_floats(const Tensor& tensor) {
  const Tensor wide = convert(tensor, DType::kF32);
  return {wide.data<float>(), wide.data<float>() + wide.numel()};
}

Tensor on_cpu(Tensor tensor, Device device, std::string_view what) {
  if (!tensor || tensor.device().is_cpu()) {
    return tensor;
  }
  expect_on(tensor, device, what);
  return to_device(tensor, Device::cpu(), Stream::cuda(device.index));
}

RouterWeights facts_of(const RouterWeights& weights) {
  return {facts_of(weights.gate), facts_of(weights.bias), facts_of(weights.correction_bias),
          facts_of(weights.expert_scale)};
}

router::Model make_model(RouterConfig config, RouterWeights given) {
  check(config);
  check_mixer(config, given);
  if (config.num_groups == config.num_experts) {  // the best K experts are in the best K groups
    config.num_groups = config.topk_groups = 1;
  }
  RouterWeights weights = {
      on_cpu(std::move(given.gate), config.device, "gate"),
      on_cpu(std::move(given.bias), config.device, "bias"),
      on_cpu(std::move(given.correction_bias), config.device, "correction_bias"),
      on_cpu(std::move(given.expert_scale), config.device, "expert_scale"),
  };
  check(config, weights);
  router::Model model;
  model.bias = weights.bias ? to_floats(weights.bias)
                            : std::vector<float>(static_cast<size_t>(config.num_experts));
  model.config = std::move(config);
  model.gate = own(std::move(weights.gate));
  if (weights.correction_bias) {
    model.correction_bias = to_floats(weights.correction_bias);
  }
  if (weights.expert_scale) {
    model.expert_scale = to_floats(weights.expert_scale);
  }
  return model;
}

}  // namespace

struct Router::State {
  State(RouterConfig config, RouterWeights weights)
      : given(facts_of(weights)),
        model(make_model(std::move(config), std::move(weights))),
        entry(select_impl(router::impls(),
                          "router",
                          "MOEBIUS_ROUTER",
                          "",
                          [this](const router::ImplEntry& e) {
                            return e.device == model.config.device.type
                                       ? e.supports(model)
                                       : Support::no("the router works on " +
                                                     to_string(model.config.device));
                          })),
        impl(entry.make(model)),
        simulator(model.config) {}

  // The model of these weights, which fit in the place of those that there are.
  router::Model updated(const RouterWeights& weights) const;
  // The checks of logits(), select() and route().
  void expect_logits(const Tensor& hidden, const Tensor& out) const;
  void expect_choice(int64_t num_tokens, const Tensor& ids, const Tensor& weights) const;

  RouterWeights given;  // only dtypes and shapes may be read
  router::Model model;
  const router::ImplEntry& entry;
  std::unique_ptr<router::Impl> impl;
  router::Simulator simulator;
  std::atomic<uint64_t> num_selects{0};
};

router::Model Router::State::updated(const RouterWeights& weights) const {
  expect_like(weights.gate, given.gate, "gate");
  expect_like(weights.bias, given.bias, "bias");
  expect_like(weights.correction_bias, given.correction_bias, "correction_bias");
  expect_like(weights.expert_scale, given.expert_scale, "expert_scale");
  return make_model(model.config, weights);
}

Router::Router(RouterConfig config, RouterWeights weights)
    : state_(std::make_unique<State>(std::move(config), std::move(weights))) {}
Router::~Router() = default;
Router::Router(Router&&) noexcept = default;
Router& Router::operator=(Router&&) noexcept = default;

const RouterConfig& Router::config() const {
  return state_->model.config;
}

bool Router::has_gate() const {
  return state_->model.gate.defined();
}

void Router::expect_update(const RouterWeights& weights) const {
  state_->updated(weights);
}

void Router::update_weights(const RouterWeights& weights, const Stream& stream) {
  expect_stream(stream, config().device);
  router::Model model = state_->updated(weights);
  state_->model.gate = std::move(model.gate);
  state_->model.bias = std::move(model.bias);
  state_->model.correction_bias = std::move(model.correction_bias);
  state_->model.expert_scale = std::move(model.expert_scale);
  if (!state_->impl->update(stream)) {
    state_->impl = state_->entry.make(state_->model);
  }
}

std::string_view Router::implementation() const {
  return state_->entry.name;
}

void Router::State::expect_logits(const Tensor& hidden, const Tensor& out) const {
  const RouterConfig& config = model.config;
  expect_defined(model.gate, "the router's gate");
  expect_defined(hidden, "hidden");
  expect_on(hidden, config.device, "hidden");
  expect_float(hidden, "hidden");
  expect_eq(hidden.num_dims(), 2, "dimensions of hidden");
  expect_eq(hidden.dim(1), model.gate.dim(1), "hidden.dim(1)");
  expect_dtype(out, DType::kF32, "out");
  expect_on(out, config.device, "out");
  expect_writable(out, "out");
  expect_shape(out, {hidden.dim(0), config.num_experts}, "out");
  expect_apart(out, hidden, "out", "hidden");
  if (config.logit_sums == LogitSums::kTensorCores) {
    expect_dtype(hidden, DType::kBF16, "hidden, for logits summed by tensor cores,");
    expect(reinterpret_cast<uintptr_t>(hidden.raw()) % 16 == 0, [&] {
      return fmt::format(
          "hidden is at {}, expected a multiple of 16 bytes for logits summed by "
          "tensor cores",
          hidden.raw());
    });
  }
}

void Router::State::expect_choice(int64_t num_tokens,
                                  const Tensor& ids,
                                  const Tensor& weights) const {
  const RouterConfig& config = model.config;
  expect_id_dtype(ids, "ids");
  expect_on(ids, config.device, "ids");
  expect_writable(ids, "ids");
  expect_shape(ids, {num_tokens, config.topk}, "ids");
  expect_dtype(weights, DType::kF32, "weights");
  expect_on(weights, config.device, "weights");
  expect_writable(weights, "weights");
  expect_shape(weights, {num_tokens, config.topk}, "weights");
  expect_apart(ids, weights, "ids", "weights");
}

void Router::logits(const Tensor& hidden, const Tensor& out, const Stream& stream) const {
  state_->expect_logits(hidden, out);
  expect_stream(stream, config().device);
  state_->impl->logits(hidden, out, stream);
}

void Router::route(const Tensor& hidden, const RouteOutput& out, const Stream& stream) const {
  if (config().device.is_cpu()) {
    if (out.order != nullptr) {
      throw Unsupported("an order of slots from a router on the CPU, where experts make their own");
    }
    logits(hidden, out.logits, stream);
    select(out.logits, out.ids, out.weights, stream);
    return;
  }
  state_->expect_logits(hidden, out.logits);
  state_->expect_choice(hidden.dim(0), out.ids, out.weights);
  if (out.order != nullptr) {
    expect_order(*out.order, hidden.dim(0), config().topk, out.order->expert_counts.numel(),
                 config().device);
  }
  expect_stream(stream, config().device);
  state_->impl->route(hidden, out, stream);
}

void Router::select(const Tensor& logits,
                    const Tensor& ids,
                    const Tensor& weights,
                    const Stream& stream) const {
  expect_dtype(logits, DType::kF32, "logits");
  expect_on(logits, config().device, "logits");
  expect_eq(logits.num_dims(), 2, "dimensions of logits");
  expect_eq(logits.dim(1), config().num_experts, "logits.dim(1)");
  state_->expect_choice(logits.dim(0), ids, weights);
  expect_apart(ids, logits, "ids", "logits");
  expect_apart(weights, logits, "weights", "logits");
  expect_stream(stream, config().device);

  if (ids.dtype() == DType::kI64 && ids.device().is_cpu()) {  // only kernels of GPUs write i64
    const Tensor narrow = Tensor::empty(ids.shape(), DType::kI32);
    select(logits, narrow, weights, stream);
    std::copy_n(narrow.data<int32_t>(), ids.numel(), ids.data<int64_t>());
    return;
  }
  const uint64_t call = state_->num_selects.fetch_add(1, std::memory_order_relaxed);
  if (config().custom) {
    constexpr int32_t kUnwritten = -2;
    std::fill_n(ids.data<int32_t>(), ids.numel(), kUnwritten);
    config().custom(logits, ids, weights);
    router::expect_ids_below(ids, config().num_experts, "custom routing: ids");
  } else if (config().simulation != Simulation::kNone) {
    state_->simulator.select(call, ids, weights, stream);
  } else {
    state_->impl->select(logits, ids, weights, stream);
  }
}

}  // namespace moebius
