// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels of cuda_test.cc.  Each of their waits ends after kPatienceMs.
#pragma once

#include <cstdint>

#include "moebius/stream.h"

namespace moebius {

constexpr int64_t kPatienceMs = 5000;

// bytes[i] = value; a thread sets one byte.
void launch_fill(const Stream& stream, uint8_t* bytes, int64_t count, uint8_t value);
// Sets *started to 1, waits until *flag is not 0 and then sets *flag to 2.  *flag stays 0 when it
// is not set in time.  Both are in mapped host memory.
void launch_wait_for_flag(const Stream& stream, int* started, int* flag);
// Two such kernels meet: each sets *own and waits for *other.  *met is 1 if that came in time,
// else 2.
void launch_meet(const Stream& stream, bool is_cooperative, int* own, int* other, int* met);
// out[i] = a[i] * b[i] + c[i]
void launch_multiply_add(const Stream& stream,
                         const float* a,
                         const float* b,
                         const float* c,
                         float* out,
                         int64_t count);

}  // namespace moebius
