// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Loops that consist of multiply-adds only, which show what the processor can compute at best.
// Each is in a file that is compiled for its instruction set.
// Why declarations only: such files may share no inline functions with others.
#pragma once

#include <cstdint>

namespace moebius::bench {

// Each runs `rounds` rounds on the calling thread and returns the number of operations, where a
// multiply and an add count as two.
int64_t run_avx2_fma(int64_t rounds);
int64_t run_avx512_fma(int64_t rounds);
int64_t run_avx512_bf16(int64_t rounds);  // pairs of bf16 to f32
int64_t run_avx512_vnni(int64_t rounds);  // quads of int8 to i32
// A round loads 4 operand tiles from L1 and multiplies 4 pairs of them.
int64_t run_amx_bf16(int64_t rounds);
int64_t run_amx_int8(int64_t rounds);

}  // namespace moebius::bench
