// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The sets of tile kernels that this processor runs.
#pragma once

#include <algorithm>
#include <vector>

#include "core/cpu_features.h"
#include "experts/cpu/tiles/tile_kernels.h"

namespace moebius::cpu {

// All sets but the one in plain C++, with which the others are compared.
inline std::vector<const TileKernels*> kernel_sets() {
  std::vector<const TileKernels*> sets;
#ifdef MOEBIUS_HAVE_AVX2
  if (cpu_features().avx2) {
    sets.push_back(&avx2_tiles());
  }
#endif
#ifdef MOEBIUS_HAVE_AVX512_VNNI
  if (cpu_features().avx512 && cpu_features().avx512_vnni) {
    sets.push_back(&vnni_tiles());
  }
#endif
#ifdef MOEBIUS_HAVE_AVX512_VBMI
  if (can_run_avx512_tiles()) {
    sets.push_back(&avx512_tiles());
  }
#endif
#ifdef MOEBIUS_HAVE_AMX
  if (can_run_amx_tiles()) {
    sets.push_back(&amx_tiles());
  }
#endif
  return sets;
}

// All sets, with the one in plain C++.
inline std::vector<const TileKernels*> all_kernel_sets() {
  std::vector<const TileKernels*> sets = kernel_sets();
  sets.push_back(&plain_tiles());
  return sets;
}

// Describes weights whose codes have a scale of 1.
inline QuantDesc unscaled(QuantFormat format, int64_t num_experts = 1) {
  QuantDesc desc;
  desc.format = format;
  desc.shape = GroupShape::per_tensor();
  desc.scale = Tensor::empty({num_experts}, DType::kF32);
  std::fill_n(desc.scale.data<float>(), num_experts, 1.0f);
  return desc;
}

}  // namespace moebius::cpu
