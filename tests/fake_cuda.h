// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A CUDA runtime that runs nothing: one GPU of architecture 9.0 whose memory is the host's, and
// kernels that do nothing.  A program that links fake_cuda.cc uses it in place of CUDA's, so it can
// count what a call asks of the runtime on a machine without a GPU.
// Thread-safety: one thread at a time.
#pragma once

#include <map>
#include <string>

namespace moebius::testing {

// How often each function of the runtime has been called since the last call of this function.
// Launches of all kinds count as "launch".
std::map<std::string, int> take_cuda_calls();
// From now on events are complete when they are asked for, as they are at first, or are not.
void complete_events(bool are_complete);
// From now on the GPU has memory left, as it has at first, or has not.
void set_gpu_memory(bool is_left);

}  // namespace moebius::testing
