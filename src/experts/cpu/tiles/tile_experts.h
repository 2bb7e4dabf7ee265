// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Experts whose weights are packed into tiles (tile_kernels.h), computed by the kernels of one
// instruction set.
#pragma once

#include <memory>
#include <string_view>

#include "experts/cpu/tiles/tile_kernels.h"
#include "moebius/experts.h"

namespace moebius::cpu {

std::unique_ptr<Experts> make_tile_experts(const ExpertsDesc& desc,
                                           ExpertWeights weights,
                                           const Stream& stream,
                                           std::string_view implementation,
                                           const TileKernels& kernels);
// Whether int8 codes are multiplied as integers (TileCode::kI8): both operands are int8, scales are
// outside the sum, and the sum stays below 2^31.
bool multiplies_integers(const ExpertsDesc& desc, const QuantConfig& quant);

// cpu_amx multiplies by AMX bf16 and int8, cpu_avx512 by AVX-512 BF16.  cpu_portable multiplies
// values of all types as f32, by the widest vectors that the processor has.  All of them multiply
// int8 by int8 as integers.
Support amx_supports(const ExpertsDesc& desc, const ExpertWeights& weights);
Support avx512_supports(const ExpertsDesc& desc, const ExpertWeights& weights);
Support portable_supports(const ExpertsDesc& desc, const ExpertWeights& weights);
std::unique_ptr<Experts> make_amx(const ExpertsDesc& desc,
                                  ExpertWeights weights,
                                  const Stream& stream);
std::unique_ptr<Experts> make_avx512(const ExpertsDesc& desc,
                                     ExpertWeights weights,
                                     const Stream& stream);
std::unique_ptr<Experts> make_portable(const ExpertsDesc& desc,
                                       ExpertWeights weights,
                                       const Stream& stream);

}  // namespace moebius::cpu
