// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// OutsideOfCaptures: calls of the CUDA runtime that are no part of the graph being captured.
#pragma once

#include <cuda_runtime_api.h>

namespace moebius::cuda {

// While it lives, this thread may allocate, copy and ask for events on streams that are not
// captured while another stream is.  The default of a capture forbids that, in case it was meant to
// be part of the graph.
class OutsideOfCaptures {
 public:
  OutsideOfCaptures() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~OutsideOfCaptures() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  OutsideOfCaptures(const OutsideOfCaptures&) = delete;
  OutsideOfCaptures& operator=(const OutsideOfCaptures&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // then the mode of before
};

}  // namespace moebius::cuda
