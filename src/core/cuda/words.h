// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Words of a GPU's memory, by kernels.  Why not a memset or a copy of the runtime: beside one, the
// next kernel of a graph begins 2 to 4 us later, after a kernel in less than 1.
#pragma once

#include <cstdint>

namespace moebius::cuda {

// Enqueued.  Memory is the stream's GPU's, `index`, and 4-byte aligned.
void fill_words(void* to, int64_t num_words, uint32_t bits, void* stream, int index);
void copy_words(void* to, const void* from, int64_t num_words, void* stream, int index);

}  // namespace moebius::cuda
