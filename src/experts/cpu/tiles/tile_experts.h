// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Experts on weights packed into tiles (tile_kernels.h), by the kernels of one instruction set.
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
// int8 on both sides with scales outside the sum, which stays below 2^31: TileCode::kI8.
bool multiplies_integers(const ExpertsDesc& desc, const QuantConfig& quant);

// cpu_amx: AMX bf16 and int8.  cpu_avx512: AVX-512 BF16.  cpu_portable: f32 products of all types
// by the widest vectors at hand.  Each multiplies int8 by int8 as integers.
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
