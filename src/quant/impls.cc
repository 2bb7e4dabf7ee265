// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "quant/impls.h"

#include <atomic>
#include <optional>
#include <string>

#include "core/select.h"
#include "quant/kernel_tables.h"

namespace moebius::quant {

namespace {

#ifdef MOEBIUS_HAVE_AVX512
Support cpu_avx512_supports(const CpuFeatures& features) {
  return features.avx512 ? Support::yes()
                         : Support::no("the processor lacks AVX-512 F, BW, VL, DQ");
}
#endif

#ifdef MOEBIUS_HAVE_AVX2
Support cpu_avx2_supports(const CpuFeatures& features) {
  return features.avx2 ? Support::yes() : Support::no("the processor lacks AVX2, FMA, F16C");
}
#endif

Support ref_supports(const CpuFeatures&) {
  return Support::yes();
}

#ifdef MOEBIUS_HAVE_CUDA
Support cuda_supports(const CpuFeatures&) {
  return cuda_device_count() > 0 ? Support::yes() : Support::no("no GPU");
}
#endif

constexpr DeviceType kCpu = DeviceType::kCpu;
constexpr Impl kImpls[] = {
#ifdef MOEBIUS_HAVE_CUDA
    {"cuda", DeviceType::kCuda, cuda_supports, nullptr, &cuda_kernels},
#endif
#ifdef MOEBIUS_HAVE_AVX512
    {"cpu_avx512", kCpu, cpu_avx512_supports, &cpu_avx512_kernels},
#endif
#ifdef MOEBIUS_HAVE_AVX2
    {"cpu_avx2", kCpu, cpu_avx2_supports, &cpu_avx2_kernels},
#endif
    {"ref", kCpu, ref_supports, &ref_kernels},
};

}  // namespace

std::span<const Impl> impls() {
  return kImpls;
}

// Why the choice is remembered: weights are decoded in many small calls, and a choice is logged
// only when it changes.
const Impl& select_quant_impl(Device device) {
  const auto select = [device](std::string_view forced) -> const Impl& {
    return select_impl(kImpls, "quant", "MOEBIUS_QUANT", forced, [device](const Impl& impl) {
      return impl.device == device.type ? impl.supports(cpu_features())
                                        : Support::no("the operands are on " + to_string(device));
    });
  };
  const std::optional<std::string> forced = setting("MOEBIUS_QUANT");
  if (!forced && device.is_cpu()) {
    static const Impl& best = select({});
    return best;
  }
  static std::atomic<const Impl*> last_on_cpu{nullptr};
  static std::atomic<const Impl*> last_on_gpu{nullptr};
  std::atomic<const Impl*>& last = device.is_cpu() ? last_on_cpu : last_on_gpu;
  const Impl* impl = last.load();
  if (impl == nullptr || (forced && impl->name != *forced)) {
    impl = &select(forced.value_or(""));
    last.store(impl);
  }
  return *impl;
}

}  // namespace moebius::quant
