// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Loops of nothing but multiply-adds, each in a file compiled for its instruction set: what the
// processor computes when nothing else is in its way.
// Why nothing but declarations here: such files share no inline functions with others.
#pragma once

#include <cstdint>

namespace moebius::bench {

// Each runs `rounds` rounds on the calling thread and returns how many operations that was, a
// multiply and an add being two.
int64_t run_avx2_fma(int64_t rounds);
int64_t run_avx512_fma(int64_t rounds);
int64_t run_avx512_bf16(int64_t rounds);  // pairs of bf16 to f32
int64_t run_avx512_vnni(int64_t rounds);  // quads of int8 to i32
// 4 products of tiles per round, their 4 operand tiles loaded from L1.
int64_t run_amx_bf16(int64_t rounds);
int64_t run_amx_int8(int64_t rounds);

}  // namespace moebius::bench
