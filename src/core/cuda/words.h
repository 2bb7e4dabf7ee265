// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels that fill and copy words of a GPU's memory.  Why the runtime's memset and copy are not
// used: the next kernel of a graph begins 2 to 4 us after them, but less than 1 us after a kernel.
#pragma once

#include <cstdint>

namespace moebius::cuda {

// Both enqueue.  REQUIRES: the memory is on the stream's GPU, `index`, and is 4-byte aligned.
void fill_words(void* to, int64_t num_words, uint32_t bits, void* stream, int index);
void copy_words(void* to, const void* from, int64_t num_words, void* stream, int index);

}  // namespace moebius::cuda
