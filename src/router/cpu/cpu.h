// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The router with threads and SIMD.  It gives the bits of ref.
#pragma once

#include <memory>

#include "router/cpu/simd.h"
#include "router/impl.h"

namespace moebius::router {

// Whether the processor has the instruction set and the model fits.
Support cpu_supports(const Model& model, bool has_isa, const char* isa);
// AMX multiplies where hidden states and gate are bf16; the rest is done with AVX-512.
Support cpu_amx_supports(const Model& model);

// `ops` are an instruction set's; `amx` multiplies bf16 in their place where it is given.
std::unique_ptr<Impl> make_cpu(const Model& model, const SimdOps& ops, AmxLogits amx = nullptr);

}  // namespace moebius::router
