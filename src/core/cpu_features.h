// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The instruction sets that this processor and its operating system support.
#pragma once

namespace moebius {

struct CpuFeatures {
  bool avx2 = false;    // with fma and f16c
  bool avx512 = false;  // f, bw, vl, dq
  bool avx512_vnni = false;
  bool avx512_bf16 = false;
  bool avx512_fp16 = false;
  bool avx512_vbmi = false;
  bool amx_bf16 = false;
  bool amx_int8 = false;
  bool intel = false;  // the maker, for what no feature says: which instructions are fast
};

const CpuFeatures& cpu_features();

}  // namespace moebius
