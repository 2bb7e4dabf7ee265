// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What a ModularKernel refuses, before any work is enqueued: parts that do not fit each other, and
// inputs that do not fit the parts.
#pragma once

#include "moebius/modular_kernel.h"

namespace moebius {

// Throws InvalidArgument unless map is i32 [num_experts].  On the CPU it also checks that entries
// are in [-1, num_local_experts).
void expect_expert_map(const Tensor& map, int64_t num_experts, int64_t num_local_experts);

// Whether the experts take unquantized rows and quantize for themselves.
bool defers_input_quant(const Experts& experts);

// Throws InvalidArgument for a number that means nothing.
void expect_kernel_options(const KernelOptions& options);

// The parts of a kernel.
struct KernelParts {
  const PrepareFinalize& prepare_finalize;
  const Experts& experts;
  const SharedExperts* shared_experts = nullptr;  // optional
  const Router* router = nullptr;                 // optional
};

// Throws InvalidArgument, naming both sides, for parts that do not fit each other.
void expect_composable(const KernelParts& parts);

// Throws InvalidArgument unless all ids, i32 or i64 [T, K] on the CPU, are in [-1, num_experts).
// The message names token and slot.
void expect_expert_ids(const Tensor& topk_ids, int64_t num_experts);

// Throws InvalidArgument unless ids is i32 [num_tokens].  Where the CPU can read the values, it
// also checks that they are -1 or adapters.
void expect_lora_ids(const Tensor& ids, int64_t num_tokens, int64_t num_adapters);

// Throws InvalidArgument for shapes, dtypes, devices, aliases, ids and limits that do not fit the
// parts.  Messages name the value and what was expected.
void expect_kernel_input(const KernelParts& parts,
                         const KernelInput& input,
                         const Tensor& output,
                         const Tensor& shared_output,
                         const CallContext& context);

// Throws InvalidArgument unless prepare has handed over x [M, H] with ids [M, K], or x
// [L, max_rows, H] with counts.
void expect_prepared(const PrepareResult& prepared, const Experts& experts);

}  // namespace moebius
