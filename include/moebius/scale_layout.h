// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The swizzled layout of block scales (cuBLAS/CUTLASS "F8_128x4"): tiles of 128 rows x 4 columns of
// 512 bytes each are stored in the order [row tile][column tile][32][4][4].
// Scale (m, k) of an [M, S] matrix of one-byte scales is at offset
//   ((m/128) * ceil(S/4) + k/4) * 512 + (m%32) * 16 + ((m/32)%4) * 4 + k%4.
// Source: cuBLAS documentation, "1D block scaling factors layout".
// Thread-safety: all functions are pure.
// Errors: InvalidArgument for other shapes, types or devices.
#pragma once

#include <cstdint>

#include "moebius/api.h"
#include "moebius/tensor.h"

namespace moebius MOEBIUS_API {

// The shape with rows padded to a multiple of 128 and columns to a multiple of 4.
Shape swizzled_scale_shape(int64_t rows, int64_t cols);
int64_t swizzled_scale_offset(int64_t row, int64_t col, int64_t cols);
// [M, S] e8m0, f8e4m3 or u8 on the CPU -> the padded shape, with padding of zeros;
// unswizzle_scales() is the reverse, with rows = M and cols = S.
Tensor swizzle_scales(const Tensor& scales);
Tensor unswizzle_scales(const Tensor& swizzled, int64_t rows, int64_t cols);

}  // namespace moebius
