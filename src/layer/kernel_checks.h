// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What a ModularKernel refuses: parts that do not fit together, and inputs that do not fit the
// parts. All of it before any work is enqueued.
#pragma once

#include "moebius/modular_kernel.h"

namespace moebius {

// Whether they have memory in common.
bool overlap(const Tensor& a, const Tensor& b);

// i32 [num_experts]; on the CPU with entries in [-1, num_local_experts).
void expect_expert_map(const Tensor& map, int64_t num_experts, int64_t num_local_experts);

// Whether the experts take unquantized rows and quantize for themselves.
bool defers_input_quant(const Experts& experts);

// What a kernel is composed of.
struct KernelParts {
  const PrepareFinalize& prepare_finalize;
  const Experts& experts;
  const SharedExperts* shared_experts = nullptr;  // optional
  const Router* router = nullptr;                 // optional
};

// Throws InvalidArgument naming both sides.
void expect_composable(const KernelParts& parts);

// Those of a call: i32 [T], adapters or -1; the values where the CPU can read them.
void expect_lora_ids(const Tensor& ids, int64_t num_tokens, int64_t num_adapters);

// Throws InvalidArgument on shapes, dtypes, devices, aliases, ids and limits; both values named.
void expect_kernel_input(const KernelParts& parts,
                         const KernelInput& input,
                         const Tensor& output,
                         const Tensor& shared_output,
                         const CallContext& context);

// The rows that prepare handed over: x [M, H] with ids [M, K], or x [L, max_rows, H] with counts.
void expect_prepared(const PrepareResult& prepared, const Experts& experts);

}  // namespace moebius
