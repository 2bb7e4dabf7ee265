// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Threads + SIMD, bit for bit what ref gives.
#pragma once

#include <memory>

#include "router/impl.h"

namespace moebius::router {

Support cpu_avx2_supports(const Model& model);
std::unique_ptr<Impl> make_cpu_avx2(const Model& model);

// AVX-512, and AMX where hidden states and gate are bf16.
Support cpu_amx_supports(const Model& model);
std::unique_ptr<Impl> make_cpu_amx(const Model& model);

Support cpu_avx512_supports(const Model& model);
std::unique_ptr<Impl> make_cpu_avx512(const Model& model);

}  // namespace moebius::router
