// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "router/cuda/cuda.h"

#include <fmt/format.h>

#include "core/cuda/check.h"
#include "core/cuda/fetch_ahead.h"
#include "core/cuda/slot_order.h"
#include "router/cuda/logits.h"
#include "router/cuda/select.h"

namespace moebius::router {

namespace {

Tensor of_host(const std::vector<float>& values) {
  auto* data = const_cast<float*>(values.data());
  return Tensor::borrow(data, {static_cast<int64_t>(values.size())}, DType::kF32);
}

class Cuda final : public Impl {
 public:
  explicit Cuda(const Model& model) : model_(model) {
    const auto room = [&](const Shape& shape, DType dtype) {
      return Tensor::empty(shape, dtype, model.config.device);
    };
    const Shape per_expert = {model.config.num_experts};
    bias_ = room(per_expert, DType::kF32);
    if (!model.correction_bias.empty()) {
      correction_bias_ = room(per_expert, DType::kF32);
    }
    if (!model.expert_scale.empty()) {
      expert_scale_ = room(per_expert, DType::kF32);
    }
    if (model.gate) {
      gate_ = room(model.gate.shape(), model.gate.dtype());
    }
    update(Stream::cuda(model.config.device.index));
  }

  bool update(const Stream& stream) override {
    copy(of_host(model_.bias), bias_, stream);
    if (correction_bias_) {
      copy(of_host(model_.correction_bias), correction_bias_, stream);
    }
    if (expert_scale_) {
      copy(of_host(model_.expert_scale), expert_scale_, stream);
    }
    if (gate_) {
      copy(model_.gate, gate_, stream);
    }
    stream.synchronize();
    return true;
  }

  void logits(const Tensor& hidden, const Tensor& out, const Stream& stream) const override {
    const cuda::DeviceGuard guard(stream);
    launch_logits_of(logits_args(hidden, out), stream);
  }

  void select(const Tensor& logits,
              const Tensor& ids,
              const Tensor& weights,
              const Stream& stream) const override {
    const cuda::DeviceGuard guard(stream);
    launch_select(select_args(logits, ids, weights), cuda::as_stream(stream));
  }

  // The kernel that chooses the experts of few tokens also orders the slots.  Those of more tokens
  // are ordered by kernels of their own.
  void route(const Tensor& hidden, const RouteOutput& out, const Stream& stream) const override {
    const cuda::DeviceGuard guard(stream);
    LogitsArgs logits = logits_args(hidden, out.logits);
    if (out.order != nullptr && out.order->first_weights) {
      const Tensor& weights = out.order->first_weights;
      logits.fetch = cuda::FetchAhead::of(weights, 0, weights.nbytes());
    }
    launch_logits_of(logits, stream);
    SelectArgs args = select_args(out.logits, out.ids, out.weights);
    if (out.order == nullptr) {
      launch_select(args, cuda::as_stream(stream));
      return;
    }
    const CudaOrderArgs order = CudaOrderArgs::of(out.ids, *out.order);
    args.order = slot_sort(order);
    const bool orders = can_order(args);
    args.order = orders ? args.order : SlotSort{};
    launch_select(args, cuda::as_stream(stream));
    if (!orders) {
      cuda_order_slots(order, stream);
    }
  }

 private:
  bool sums_on_tensor_cores() const { return model_.config.logit_sums == LogitSums::kTensorCores; }
  LogitsArgs logits_args(const Tensor& hidden, const Tensor& out) const {
    return {.hidden = hidden.raw(),
            .hidden_dtype = hidden.dtype(),
            .gate = gate_.raw(),
            .gate_dtype = gate_.dtype(),
            .bias = bias_.data<float>(),
            .num_tokens = hidden.dim(0),
            .num_experts = model_.config.num_experts,
            .depth = hidden.dim(1),
            .out = out.data<float>()};
  }
  SelectArgs select_args(const Tensor& logits, const Tensor& ids, const Tensor& weights) const {
    const RouterConfig& config = model_.config;
    return {.logits = logits.data<float>(),
            .num_tokens = logits.dim(0),
            .num_experts = static_cast<int>(config.num_experts),
            .topk = static_cast<int>(config.topk),
            .num_groups = static_cast<int>(config.num_groups),
            .topk_groups = static_cast<int>(config.topk_groups),
            .scoring = config.scoring,
            .score_after_topk = config.score_after_topk,
            .renormalize = config.renormalize,
            .routed_scaling_factor = config.routed_scaling_factor,
            .mixer_epsilon = config.mixer_epsilon,
            .correction_bias = correction_bias_ ? correction_bias_.data<float>() : nullptr,
            .expert_scale = expert_scale_ ? expert_scale_.data<float>() : nullptr,
            .ids = IdsOut::of(ids),
            .weights = weights.data<float>()};
  }
  void launch_logits_of(const LogitsArgs& args, const Stream& stream) const {
    const auto launch = sums_on_tensor_cores() ? launch_tensor_logits : launch_logits;
    launch(args, stream.device().index, cuda::as_stream(stream));
  }

  const Model& model_;
  Tensor gate_;
  Tensor bias_;
  Tensor correction_bias_;  // undefined: none
  Tensor expert_scale_;     // undefined: none
};

}  // namespace

Support cuda_supports(const Model& model) {
  if (cuda_device_count() == 0) {
    return Support::no("no GPU");
  }
  if (model.config.num_experts > kMaxCudaExperts) {
    return Support::no(
        fmt::format("num_experts {} is more than {}", model.config.num_experts, kMaxCudaExperts));
  }
  if (model.config.logit_sums == LogitSums::kTensorCores && model.gate) {
    if (model.gate.dtype() != DType::kBF16) {
      return Support::no(fmt::format("the gate is {}, and tensor cores sum logits of bf16",
                                     name(model.gate.dtype())));
    }
    if (model.gate.dim(1) % kTensorDepth != 0) {
      return Support::no(
          fmt::format("hidden size {} is not a multiple of {}, as logits summed by "
                      "tensor cores need it",
                      model.gate.dim(1), kTensorDepth));
    }
  }
  return Support::yes();
}

std::unique_ptr<Impl> make_cuda(const Model& model) {
  return std::make_unique<Cuda>(model);
}

}  // namespace moebius::router
