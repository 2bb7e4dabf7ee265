// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The implementations of the experts stage, most specialised first.
#include <utility>

#include "core/select.h"
#include "experts/choose.h"
#include "experts/cpu/tiles/tile_experts.h"
#include "experts/cuda/experts.h"
#include "experts/ref/ref_experts.h"
#include "experts/validate.h"

namespace moebius {

namespace {

constexpr DeviceType kCpu = DeviceType::kCpu;
constexpr ExpertsImpl kImpls[] = {
#ifdef MOEBIUS_HAVE_CUDA
    {"cuda", DeviceType::kCuda, cuda::experts_support, cuda::make_cuda_experts},
#endif
#ifdef MOEBIUS_HAVE_AMX
    {"cpu_amx", kCpu, cpu::amx_supports, cpu::make_amx},
#endif
#ifdef MOEBIUS_HAVE_AVX512_VBMI
    {"cpu_avx512", kCpu, cpu::avx512_supports, cpu::make_avx512},
#endif
    {"cpu_portable", kCpu, cpu::portable_supports, cpu::make_portable},
    {"ref", kCpu, ref::supports, ref::make},
};

}  // namespace

std::string_view name(ActivationFormat format) {
  return format == ActivationFormat::kStandard ? "standard" : "batched";
}

std::string_view name(Activation activation) {
  constexpr std::string_view kNames[] = {"silu",       "gelu",  "gelu_tanh",
                                         "swiglu_oai", "relu2", "swiglu_step"};
  return kNames[static_cast<size_t>(activation)];
}

int64_t LoraWeights::num_adapters() const {
  return scaling && scaling.num_dims() > 0 ? scaling.dim(0) : 0;
}

int64_t LoraWeights::rank() const {
  const Tensor& b = w1_b ? w1_b : w2_b;
  return b && b.num_dims() > 0 ? b.shape().back() : 0;
}

std::span<const ExpertsImpl> experts_impls() {
  return kImpls;
}

void Experts::update_weights(const ExpertWeights& weights, const Stream&) {
  expect_update(weights);
}

void Experts::expect_update(const ExpertWeights&) const {
  throw Unsupported("experts " + std::string(name()) + " cannot replace their weights");
}

const ExpertsImpl& choose_experts(const ExpertsDesc& desc,
                                  const ExpertWeights& weights,
                                  Device device,
                                  std::string_view implementation) {
  return select_impl(
      experts_impls(), "experts", "MOEBIUS_EXPERTS", implementation, [&](const ExpertsImpl& i) {
        return i.device == device.type ? i.supports(desc, weights)
                                       : Support::no("the stream is on " + to_string(device));
      });
}

std::unique_ptr<Experts> make_experts(const ExpertsDesc& desc,
                                      ExpertWeights weights,
                                      const Stream& stream,
                                      std::string_view implementation) {
  validate_experts_desc(desc);
  validate_expert_weights(desc, weights);
  validate_weights_device(desc, weights, stream.device());
  const ExpertsImpl& impl = choose_experts(desc, weights, stream.device(), implementation);
  return impl.make(desc, std::move(weights), stream);
}

}  // namespace moebius
