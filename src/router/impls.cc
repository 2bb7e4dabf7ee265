// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Every implementation of the router, most specialised first; the first that accepts is used.
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
    {"cpu_amx", kCpu, cpu_amx_supports, make_cpu_amx},
#endif
#ifdef MOEBIUS_HAVE_AVX512
    {"cpu_avx512", kCpu, cpu_avx512_supports, make_cpu_avx512},
#endif
#ifdef MOEBIUS_HAVE_AVX2
    {"cpu_avx2", kCpu, cpu_avx2_supports, make_cpu_avx2},
#endif
    {"ref", kCpu, ref_supports, make_ref},
};

}  // namespace

std::span<const ImplEntry> impls() {
  return kImpls;
}

}  // namespace moebius::router
