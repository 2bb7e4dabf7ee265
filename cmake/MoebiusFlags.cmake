# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0

# moebius_flags: what each of our own targets is compiled and linked with. Never exported.

add_library(moebius_flags INTERFACE)
target_compile_features(moebius_flags INTERFACE cxx_std_20)
target_compile_options(
  moebius_flags
  INTERFACE -Wall
            -Wextra
            -Wshadow
            -Wsign-conversion
            # Why: a multiply and an add fused by the compiler round once; SIMD and scalar code must
            # agree bit by bit, so an FMA happens only where the source asks for it.
            -ffp-contract=off)
if(MOEBIUS_WERROR)
  target_compile_options(moebius_flags INTERFACE -Werror)
endif()

if(MOEBIUS_SANITIZE)
  list(JOIN MOEBIUS_SANITIZE "," moebius_sanitizers)
  target_compile_options(
    moebius_flags
    INTERFACE -fsanitize=${moebius_sanitizers}
              -fno-sanitize-recover=all
              -fno-omit-frame-pointer
              # Why: GCC's flow analysis reports false positives in instrumented code.
              -Wno-maybe-uninitialized)
  target_link_options(moebius_flags INTERFACE -fsanitize=${moebius_sanitizers})
endif()

# Instruction sets a single source file may be compiled for; chosen at run time, never globally.
# Why no uninitialized warnings: GCC 12 gives false ones inside its intrinsics (GCC bug 105593).
set(MOEBIUS_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c -Wno-uninitialized -Wno-maybe-uninitialized)
set(MOEBIUS_ISA_FLAGS_avx512 ${MOEBIUS_ISA_FLAGS_avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq)
set(MOEBIUS_ISA_FLAGS_avx512_bf16 ${MOEBIUS_ISA_FLAGS_avx512} -mavx512bf16)
set(MOEBIUS_ISA_FLAGS_avx512_vnni ${MOEBIUS_ISA_FLAGS_avx512} -mavx512vnni)
set(MOEBIUS_ISA_FLAGS_amx ${MOEBIUS_ISA_FLAGS_avx512_bf16} -mavx512vnni -mavx512fp16 -mamx-tile
                          -mamx-bf16 -mamx-int8)
