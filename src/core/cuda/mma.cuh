// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The tensor core instructions of a warp, with sums in f32 or i32: d += a * b, where a is 16 x K, b
// is K x 8, and K elements are 32 bytes.  Each function is one instruction.  Lane l holds rows l /
// 4 and l / 4 + 8, columns l % 4 * 2 and l % 4 * 2 + 1 of d.
#pragma once

#include <cstdint>

namespace moebius::ptx {

// These copy 16 or 8 bytes from global to shared memory, or write zeros when `exists` is false.
// The copy belongs to this thread's current group.  REQUIRES: addresses are aligned.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global, bool exists) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global),
               "r"(exists ? 16 : 0)
               : "memory");
}
// The same, but L2 fetches the 256 bytes around the address, too.
__device__ __forceinline__ void copy_async_16_ahead(uint32_t shared_address,
                                                    const void* global,
                                                    bool exists) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(shared_address),
               "l"(global), "r"(exists ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_async_16_ahead(void* shared, const void* global, bool exists) {
  copy_async_16_ahead(static_cast<uint32_t>(__cvta_generic_to_shared(shared)), global, exists);
}
__device__ __forceinline__ void copy_async_8(void* shared, const void* global, bool exists) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(address), "l"(global),
               "r"(exists ? 8 : 0)
               : "memory");
}
// The same through L1, for what other warps of the SM copy, too.
__device__ __forceinline__ void copy_async_16_by_l1(uint32_t shared_address, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(shared_address), "l"(global)
               : "memory");
}
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until all but the latest kPending groups of this thread have arrived.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Loads four matrices of 8 rows x 16 bytes from shared memory.  Lane l passes the address of row l
// % 8 of matrix l / 8.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&d)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&d)[4], const void* row) {
  ldmatrix_x4(d, static_cast<uint32_t>(__cvta_generic_to_shared(row)));
}

// a & b | c in one instruction, even if b and c are constants.
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
// a & b ^ c, the same.
__device__ __forceinline__ uint32_t and_xor(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

#define MOEBIUS_MMA(name, Sum, constraint, instruction)                                   \
  __device__ __forceinline__ void name(Sum(&d)[4], const uint32_t(&a)[4], uint32_t b0,    \
                                       uint32_t b1) {                                     \
    asm volatile("mma.sync.aligned." instruction                                          \
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"       \
                 : constraint(d[0]), constraint(d[1]), constraint(d[2]), constraint(d[3]) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));         \
  }
MOEBIUS_MMA(mma_bf16, float, "+f", "m16n8k16.row.col.f32.bf16.bf16.f32")
MOEBIUS_MMA(mma_f16, float, "+f", "m16n8k16.row.col.f32.f16.f16.f32")
MOEBIUS_MMA(mma_s8, int32_t, "+r", "m16n8k32.row.col.s32.s8.s8.s32")
#undef MOEBIUS_MMA

}  // namespace moebius::ptx
