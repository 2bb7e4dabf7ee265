// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// One oneDNN matmul of a fixed shape, on the calling thread alone.  The only file that knows
// oneDNN, whose interface differs between versions 2 and 3.
#pragma once

#ifdef MOEBIUS_HAVE_ONEDNN

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "moebius/dtype.h"

namespace moebius::cpu {

// C [m, n] = A [m, k] * transpose(B [n, k]), row-major; rows of A and B are dense, those of C are
// `ldc` elements apart.  f32 x f32 and bf16 x bf16 give f32, i8 x i8 gives i32.
class OnednnMatmul {
 public:
  OnednnMatmul(DType operands, int64_t m, int64_t n, int64_t k, int64_t ldc);
  ~OnednnMatmul();
  OnednnMatmul(OnednnMatmul&&) noexcept;
  OnednnMatmul& operator=(OnednnMatmul&&) noexcept;

  size_t scratchpad_bytes() const;
  std::string implementation() const;  // oneDNN's own name for it
  // const and free of shared state: any number of threads may run one object.
  void run(const void* a, const void* b, void* c, void* scratchpad) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Whether oneDNN multiplies these operands by more than a reference loop, and right: bf16 from
// AVX-512 BF16 on, i8 from AVX-512 VNNI on (before, its i8 kernels may saturate pairs of products
// at 16 bits).
bool onednn_has_native(DType operands);

}  // namespace moebius::cpu

#endif  // MOEBIUS_HAVE_ONEDNN
