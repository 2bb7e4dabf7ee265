// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Hopper's tensor cores: a warpgroup computes D[64, N] += A[64, k] * B[N, k]^T with A and B in
// shared memory and D in registers.  In thread t, d[4 j + i] is
//   row 16 (t / 32) + t % 32 / 4 + 8 (i / 2), column 8 j + 2 (t % 4) + i % 2.
// A may be in registers, too: a[i] is
//   row 16 (t / 32) + t % 32 / 4 + 8 (i % 2), columns 2 (t % 4) + 8 (i / 2) and the next.
// REQUIRES: sm_90a.  Between wgmma_fence and wgmma_wait<0> nothing else may touch D, or A in
// registers.
#pragma once

#include <cstdint>

#include "core/cuda/ptx.cuh"

namespace moebius::ptx {

// Descriptors count shared memory in units of so many bytes.
inline constexpr int kDescriptorUnit = 16;

// Describes rows of 128 bytes along k with TMA's 128-byte swizzle, where eight rows take 1024
// bytes.  The low word has the shared address, a multiple of 1024, in units, so adding 2 moves 32
// bytes along k.  In a cluster a CTA's addresses have its rank in bits 24 and above, which come to
// the leading offset; this layout does not use that.
__device__ __forceinline__ uint32_t wgmma_descriptor_low(uint32_t address) {
  constexpr uint32_t kUnused = 1u << 16;  // leading offset
  return kUnused + address / kDescriptorUnit;
}
inline constexpr uint32_t kDescriptorHigh = 1u << 30 | 1024 / kDescriptorUnit;
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t low,
                                                     uint32_t high = kDescriptorHigh) {
  return uint64_t{high} << 32 | low;
}

// Call this before the first wgmma and after other code has touched registers of D.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until all but the latest kPending groups are complete.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving accesses to D across this place.
template <int kCount>
__device__ __forceinline__ void wgmma_pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile("" : "+f"(d[i])::"memory");
  }
}
template <int kCount>
__device__ __forceinline__ void wgmma_pin(int32_t (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile("" : "+r"(d[i])::"memory");
  }
}

// The registers of D, as operands ("+f" or "+r") and as the text of an instruction.
#define MOEBIUS_SUMS_4(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define MOEBIUS_SUMS_8(c, i) MOEBIUS_SUMS_4(c, i), MOEBIUS_SUMS_4(c, i + 4)
#define MOEBIUS_SUMS_12(c, i) MOEBIUS_SUMS_8(c, i), MOEBIUS_SUMS_4(c, i + 8)
#define MOEBIUS_SUMS_16(c, i) MOEBIUS_SUMS_8(c, i), MOEBIUS_SUMS_8(c, i + 8)
#define MOEBIUS_SUMS_20(c, i) MOEBIUS_SUMS_16(c, i), MOEBIUS_SUMS_4(c, i + 16)
#define MOEBIUS_SUMS_24(c, i) MOEBIUS_SUMS_16(c, i), MOEBIUS_SUMS_8(c, i + 16)
#define MOEBIUS_SUMS_28(c, i) MOEBIUS_SUMS_24(c, i), MOEBIUS_SUMS_4(c, i + 24)
#define MOEBIUS_SUMS_32(c, i) MOEBIUS_SUMS_16(c, i), MOEBIUS_SUMS_16(c, i + 16)
#define MOEBIUS_SUMS_48(c, i) MOEBIUS_SUMS_32(c, i), MOEBIUS_SUMS_16(c, i + 32)
#define MOEBIUS_SUMS_64(c, i) MOEBIUS_SUMS_32(c, i), MOEBIUS_SUMS_32(c, i + 32)
#define MOEBIUS_SUMS_80(c, i) MOEBIUS_SUMS_64(c, i), MOEBIUS_SUMS_16(c, i + 64)
#define MOEBIUS_SUMS_96(c, i) MOEBIUS_SUMS_64(c, i), MOEBIUS_SUMS_32(c, i + 64)
#define MOEBIUS_SUMS_112(c, i) MOEBIUS_SUMS_64(c, i), MOEBIUS_SUMS_48(c, i + 64)
#define MOEBIUS_SUMS_128(c, i) MOEBIUS_SUMS_64(c, i), MOEBIUS_SUMS_64(c, i + 64)
#define MOEBIUS_REGISTERS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define MOEBIUS_REGISTERS_12 MOEBIUS_REGISTERS_8 ", %8, %9, %10, %11"
#define MOEBIUS_REGISTERS_16 MOEBIUS_REGISTERS_12 ", %12, %13, %14, %15"
#define MOEBIUS_REGISTERS_20 MOEBIUS_REGISTERS_16 ", %16, %17, %18, %19"
#define MOEBIUS_REGISTERS_24 MOEBIUS_REGISTERS_20 ", %20, %21, %22, %23"
#define MOEBIUS_REGISTERS_28 MOEBIUS_REGISTERS_24 ", %24, %25, %26, %27"
#define MOEBIUS_REGISTERS_32 MOEBIUS_REGISTERS_28 ", %28, %29, %30, %31"
#define MOEBIUS_REGISTERS_48 \
  MOEBIUS_REGISTERS_32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define MOEBIUS_REGISTERS_64 \
  MOEBIUS_REGISTERS_48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MOEBIUS_REGISTERS_80 \
  MOEBIUS_REGISTERS_64       \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define MOEBIUS_REGISTERS_96 \
  MOEBIUS_REGISTERS_80       \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define MOEBIUS_REGISTERS_112                                                    \
  MOEBIUS_REGISTERS_96                                                           \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, " \
  "%109, %110, %111"
#define MOEBIUS_REGISTERS_128                                                  \
  MOEBIUS_REGISTERS_112                                                        \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, " \
  "%124, %125, %126, %127"

// One instruction with `count` registers.  A is the parameter `rows` of type `A`, whose text in the
// instruction is `a`; b and p are the numbers of the operands after it.  `more` has the arguments
// after p, which differ from type to type, and the last macro argument the operands that A takes.
#define MOEBIUS_WGMMA(name, instruction, Sum, c, count, A, a, b, p, more, ...)                     \
  static __device__ __forceinline__ void name(Sum(&d)[count], A rows, uint64_t b_rows,             \
                                              bool accumulates) {                                  \
    asm volatile(                                                                                  \
        "{\n"                                                                                      \
        ".reg .pred p;\n"                                                                          \
        "setp.ne.b32 p, %" p                                                                       \
        ", 0;\n"                                                                                   \
        "wgmma.mma_async.sync.aligned." instruction " {" MOEBIUS_REGISTERS_##count "}, " a ", %" b \
                                                                                   ", p" more      \
                                                                                   ";\n"           \
                                                                                   "}"             \
        : MOEBIUS_SUMS_##count(c, 0)                                                               \
        : __VA_ARGS__, "l"(b_rows), "r"(static_cast<int>(accumulates)));                           \
  }
#define MOEBIUS_WGMMA_SHARED(name, instruction, Sum, c, count, a, b, p, more) \
  MOEBIUS_WGMMA(name, instruction, Sum, c, count, uint64_t, "%" a, b, p, more, "l"(rows))
#define MOEBIUS_WGMMA_BF16(shape, count, a, b, p) \
  MOEBIUS_WGMMA_SHARED(bf16, shape "k16.f32.bf16.bf16", float, "+f", count, a, b, p, ", 1, 1, 0, 0")
#define MOEBIUS_WGMMA_F16(shape, count, a, b, p) \
  MOEBIUS_WGMMA_SHARED(f16, shape "k16.f32.f16.f16", float, "+f", count, a, b, p, ", 1, 1, 0, 0")
#define MOEBIUS_WGMMA_E4M3(shape, count, a, b, p) \
  MOEBIUS_WGMMA_SHARED(e4m3, shape "k32.f32.e4m3.e4m3", float, "+f", count, a, b, p, ", 1, 1")
#define MOEBIUS_WGMMA_S8(shape, count, a, b, p) \
  MOEBIUS_WGMMA_SHARED(s8, shape "k32.s32.s8.s8", int32_t, "+r", count, a, b, p, "")

// The same with A (k is 16) in registers; `a` has the numbers of their operands.
using WgmmaRows = const uint32_t (&)[4];
#define MOEBIUS_WGMMA_REGISTERS(name, instruction, count, a, b, p)                              \
  MOEBIUS_WGMMA(name, instruction, float, "+f", count, WgmmaRows, "{" a "}", b, p, ", 1, 1, 0", \
                "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]))
#define MOEBIUS_WGMMA_BF16_REGISTERS(shape, count, a, b, p) \
  MOEBIUS_WGMMA_REGISTERS(bf16, shape "k16.f32.bf16.bf16", count, a, b, p)
#define MOEBIUS_WGMMA_F16_REGISTERS(shape, count, a, b, p) \
  MOEBIUS_WGMMA_REGISTERS(f16, shape "k16.f32.f16.f16", count, a, b, p)

// k is 16 (bf16, f16) or 32 (f8e4m3, int8).  The first product of a sum has accumulates = false.
template <int kN>
struct Wgmma;

// A of these products is always in registers.
#define MOEBIUS_WGMMA_OF_REGISTERS(n, count, a, b, p)       \
  template <>                                               \
  struct Wgmma<n> {                                         \
    MOEBIUS_WGMMA_BF16_REGISTERS("m64n" #n, count, a, b, p) \
    MOEBIUS_WGMMA_F16_REGISTERS("m64n" #n, count, a, b, p)  \
  };
MOEBIUS_WGMMA_OF_REGISTERS(16, 8, "%8, %9, %10, %11", "12", "13")
MOEBIUS_WGMMA_OF_REGISTERS(24, 12, "%12, %13, %14, %15", "16", "17")
MOEBIUS_WGMMA_OF_REGISTERS(40, 20, "%20, %21, %22, %23", "24", "25")
MOEBIUS_WGMMA_OF_REGISTERS(48, 24, "%24, %25, %26, %27", "28", "29")
MOEBIUS_WGMMA_OF_REGISTERS(56, 28, "%28, %29, %30, %31", "32", "33")
MOEBIUS_WGMMA_OF_REGISTERS(96, 48, "%48, %49, %50, %51", "52", "53")
MOEBIUS_WGMMA_OF_REGISTERS(160, 80, "%80, %81, %82, %83", "84", "85")
MOEBIUS_WGMMA_OF_REGISTERS(192, 96, "%96, %97, %98, %99", "100", "101")
MOEBIUS_WGMMA_OF_REGISTERS(224, 112, "%112, %113, %114, %115", "116", "117")
#undef MOEBIUS_WGMMA_OF_REGISTERS

template <>
struct Wgmma<32> {
  MOEBIUS_WGMMA_BF16_REGISTERS("m64n32", 16, "%16, %17, %18, %19", "20", "21")
  MOEBIUS_WGMMA_F16_REGISTERS("m64n32", 16, "%16, %17, %18, %19", "20", "21")
  MOEBIUS_WGMMA_BF16("m64n32", 16, "16", "17", "18")
  MOEBIUS_WGMMA_F16("m64n32", 16, "16", "17", "18")
  MOEBIUS_WGMMA_E4M3("m64n32", 16, "16", "17", "18")
  MOEBIUS_WGMMA_S8("m64n32", 16, "16", "17", "18")
};

template <>
struct Wgmma<64> {
  MOEBIUS_WGMMA_BF16_REGISTERS("m64n64", 32, "%32, %33, %34, %35", "36", "37")
  MOEBIUS_WGMMA_F16_REGISTERS("m64n64", 32, "%32, %33, %34, %35", "36", "37")
  MOEBIUS_WGMMA_BF16("m64n64", 32, "32", "33", "34")
  MOEBIUS_WGMMA_F16("m64n64", 32, "32", "33", "34")
  MOEBIUS_WGMMA_E4M3("m64n64", 32, "32", "33", "34")
  MOEBIUS_WGMMA_S8("m64n64", 32, "32", "33", "34")
};

template <>
struct Wgmma<128> {
  MOEBIUS_WGMMA_BF16_REGISTERS("m64n128", 64, "%64, %65, %66, %67", "68", "69")
  MOEBIUS_WGMMA_F16_REGISTERS("m64n128", 64, "%64, %65, %66, %67", "68", "69")
  MOEBIUS_WGMMA_BF16("m64n128", 64, "64", "65", "66")
  MOEBIUS_WGMMA_F16("m64n128", 64, "64", "65", "66")
  MOEBIUS_WGMMA_E4M3("m64n128", 64, "64", "65", "66")
};

template <>
struct Wgmma<256> {
  MOEBIUS_WGMMA_BF16_REGISTERS("m64n256", 128, "%128, %129, %130, %131", "132", "133")
  MOEBIUS_WGMMA_F16_REGISTERS("m64n256", 128, "%128, %129, %130, %131", "132", "133")
  MOEBIUS_WGMMA_BF16("m64n256", 128, "128", "129", "130")
  MOEBIUS_WGMMA_F16("m64n256", 128, "128", "129", "130")
  MOEBIUS_WGMMA_S8("m64n256", 128, "128", "129", "130")
};

#undef MOEBIUS_WGMMA_BF16
#undef MOEBIUS_WGMMA_F16
#undef MOEBIUS_WGMMA_E4M3
#undef MOEBIUS_WGMMA_S8
#undef MOEBIUS_WGMMA_BF16_REGISTERS
#undef MOEBIUS_WGMMA_F16_REGISTERS
#undef MOEBIUS_WGMMA_REGISTERS
#undef MOEBIUS_WGMMA_SHARED
#undef MOEBIUS_WGMMA
#undef MOEBIUS_SUMS_4
#undef MOEBIUS_SUMS_8
#undef MOEBIUS_REGISTERS_8
#undef MOEBIUS_SUMS_12
#undef MOEBIUS_REGISTERS_12
#undef MOEBIUS_SUMS_16
#undef MOEBIUS_REGISTERS_16
#undef MOEBIUS_SUMS_20
#undef MOEBIUS_REGISTERS_20
#undef MOEBIUS_SUMS_24
#undef MOEBIUS_REGISTERS_24
#undef MOEBIUS_SUMS_28
#undef MOEBIUS_REGISTERS_28
#undef MOEBIUS_SUMS_32
#undef MOEBIUS_REGISTERS_32
#undef MOEBIUS_SUMS_48
#undef MOEBIUS_REGISTERS_48
#undef MOEBIUS_SUMS_64
#undef MOEBIUS_REGISTERS_64
#undef MOEBIUS_SUMS_80
#undef MOEBIUS_REGISTERS_80
#undef MOEBIUS_SUMS_96
#undef MOEBIUS_REGISTERS_96
#undef MOEBIUS_SUMS_112
#undef MOEBIUS_REGISTERS_112
#undef MOEBIUS_SUMS_128
#undef MOEBIUS_REGISTERS_128

}  // namespace moebius::ptx
