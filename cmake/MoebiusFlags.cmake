# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0

# moebius_flags has the flags that each of our own targets is compiled and linked with. It is never exported.

add_library(moebius_flags INTERFACE)
target_compile_features(moebius_flags INTERFACE cxx_std_20)
# Why -ffp-contract=off and --fmad=false: scalar, SIMD and GPU code must agree bit by bit. A multiply and an
# add that the compiler fuses round once, so an FMA may only happen where the source asks for it.
set(moebius_host_flags -Wall -Wextra -Wshadow -Wsign-conversion -ffp-contract=off)
# Why -std=c++20 by hand: CMake 3.25 believes that it is the default of nvcc 13, which is c++17.
# Why --expt-relaxed-constexpr: kernels share constexpr functions with the host, so a rule is written once.
# Why FMT_CONSTEVAL: nvcc cannot check format strings while compiling.
# Why fewer warnings for CUDA: the code that nvcc generates around device code causes the others. nvcc
# takes them as one list with commas.
set(moebius_cuda_host_flags -Wall -Wextra -Wno-unused-parameter -ffp-contract=off)
if(MOEBIUS_WERROR)
  list(APPEND moebius_host_flags -Werror)
  list(APPEND moebius_cuda_host_flags -Werror)
endif()
list(JOIN moebius_cuda_host_flags "," moebius_cuda_host_flags)
target_compile_options(
  moebius_flags
  INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${moebius_host_flags}>"
            "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--fmad=false;--expt-relaxed-constexpr;-DFMT_CONSTEVAL=;-Xcompiler=${moebius_cuda_host_flags}>")
if(MOEBIUS_WERROR)
  target_compile_options(moebius_flags INTERFACE
                         "$<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings>")
endif()
# Why: programs are copied to other machines and should only need the libraries that they use.
target_link_options(moebius_flags INTERFACE LINKER:--as-needed)

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

# The flags of the instruction sets that a single source file may be compiled for. They are never global:
# the program chooses at run time.
# Why no warnings of uninitialized values: GCC 12 gives false ones inside its intrinsics (GCC bug 105593).
set(MOEBIUS_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c -Wno-uninitialized -Wno-maybe-uninitialized)
set(MOEBIUS_ISA_FLAGS_avx512 ${MOEBIUS_ISA_FLAGS_avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq)
set(MOEBIUS_ISA_FLAGS_avx512_bf16 ${MOEBIUS_ISA_FLAGS_avx512} -mavx512bf16)
set(MOEBIUS_ISA_FLAGS_avx512_vnni ${MOEBIUS_ISA_FLAGS_avx512} -mavx512vnni)
# What Zen 4 and Sapphire Rapids have in common.
set(MOEBIUS_ISA_FLAGS_avx512_vbmi ${MOEBIUS_ISA_FLAGS_avx512_bf16} -mavx512vnni -mavx512vbmi)
set(MOEBIUS_ISA_FLAGS_amx ${MOEBIUS_ISA_FLAGS_avx512_vbmi} -mavx512fp16 -mamx-tile -mamx-bf16 -mamx-int8)
