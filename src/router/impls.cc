// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// All implementations of the router, most specialised first.  The first that accepts is used.
#include "core/cpu_features.h"
#include "router/cpu/cpu.h"
#include "router/cuda/cuda.h"
#include "router/impl.h"
#include "router/ref/ref.h"

namespace moebius::router {

namespace {

constexpr DeviceType kCpu = DeviceType::kCpu;
constexpr ImplEntry kImpls[] = {
#ifdef MOEBIUS_HAVE_CUDA
    {"cuda", DeviceType::kCuda, cuda_supports, make_cuda},
#endif
#ifdef MOEBIUS_HAVE_AMX
    {"cpu_amx", kCpu, cpu_amx_supports,
     [](const Model& model) { return make_cpu(model, kAvx512Ops, amx_logits); }},
#endif
#ifdef MOEBIUS_HAVE_AVX512
    {"cpu_avx512", kCpu,
     [](const Model& model) {
       return cpu_supports(model, cpu_features().avx512, "AVX-512 F, BW, VL and DQ");
     },
     [](const Model& model) { return make_cpu(model, kAvx512Ops); }},
#endif
#ifdef MOEBIUS_HAVE_AVX2
    {"cpu_avx2", kCpu,
     [](const Model& model) {
       return cpu_supports(model, cpu_features().avx2, "AVX2 with FMA and F16C");
     },
     [](const Model& model) { return make_cpu(model, kAvx2Ops); }},
#endif
    {"ref", kCpu, ref_supports, make_ref},
};

}  // namespace

std::span<const ImplEntry> impls() {
  return kImpls;
}

}  // namespace moebius::router
