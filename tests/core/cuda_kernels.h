// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels of cuda_test.cc.  Every wait of theirs ends after kPatienceMs.
#pragma once

#include <cstdint>

#include "moebius/stream.h"

namespace moebius {

constexpr int64_t kPatienceMs = 5000;

// bytes[i] = value, by one thread each.
void launch_fill(const Stream& stream, uint8_t* bytes, int64_t count, uint8_t value);
// Waits until *flag is not 0, then sets it to 2; it stays as it is where nobody sets it in time.
// `started` (both mapped host memory) is set to 1 first.
void launch_wait_for_flag(const Stream& stream, int* started, int* flag);
// Of two such kernels each sets own and waits for other.  *met = 1 where it came in time, else 2.
void launch_meet(const Stream& stream, bool is_cooperative, int* own, int* other, int* met);
// out[i] = a[i] * b[i] + c[i]
void launch_multiply_add(const Stream& stream,
                         const float* a,
                         const float* b,
                         const float* c,
                         float* out,
                         int64_t count);

}  // namespace moebius
