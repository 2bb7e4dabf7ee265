// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// LoadCounter: how many rows each local expert got in the last call, by micro-batch.
#pragma once

#include <cstdint>

#include "moebius/modular_kernel.h"
#include "moebius/prepare_finalize.h"

namespace moebius {

class LoadCounter {
 public:
  LoadCounter() = default;  // counts nothing until another is assigned
  LoadCounter(int most_microbatches, int64_t num_local_experts);

  // Begins a call that has so many micro-batches and runs on `stream`.
  void begin(int num_microbatches, const Stream& stream);
  // Counts the selections of this rank's own tokens into input.own_load, if the caller asks for it.
  static void count_own(const KernelInput& input, const Stream& stream);
  // Counts the rows that prepare has handed to a micro-batch.  expert_map: i32 [E], where prepared
  // ids are global; else undefined.
  void count(int microbatch,
             const PrepareResult& prepared,
             const Tensor& expert_map,
             const Stream& stream);

  // Where the rows of a micro-batch are counted, i32 [L], for experts that count them themselves.
  Tensor of(int microbatch) const { return loads_[microbatch]; }
  // i32 [N, L] on the device of the last call, complete in the order of its stream.
  Tensor by_microbatch() const { return loads_.slice(0, num_microbatches_); }
  // The sum over all micro-batches, i32 [L] on the CPU.  Waits for the last call's stream.
  Tensor total() const;

 private:
  // i32 [most_microbatches, L].  All calls use one tensor, because graphs keep its address.
  Tensor loads_;
  int num_microbatches_ = 1;
  Stream stream_;  // of the last call
};

}  // namespace moebius
