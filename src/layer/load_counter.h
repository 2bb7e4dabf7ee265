// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// LoadCounter: how many rows the local experts got in the last call, by micro-batch.
#pragma once

#include <cstdint>

#include "moebius/modular_kernel.h"
#include "moebius/prepare_finalize.h"

namespace moebius {

class LoadCounter {
 public:
  LoadCounter() = default;  // counts nothing until another is assigned
  LoadCounter(int most_microbatches, int64_t num_local_experts);

  // A call begins that is cut into so many micro-batches and runs on `stream`.
  void begin(int num_microbatches, const Stream& stream);
  // Counts the selections of the call's own tokens, where it asks for them.
  static void count_own(const KernelInput& input, const Stream& stream);
  // Counts what prepare gave to a micro-batch.  expert_map: i32 [E], as the ids need it; optional.
  void count(int microbatch,
             const PrepareResult& prepared,
             const Tensor& expert_map,
             const Stream& stream);

  // i32 [N, L] where the last call ran, complete in the order of its stream.
  Tensor by_microbatch() const { return loads_.slice(0, num_microbatches_); }
  // i32 [L] on the CPU, of all micro-batches; waits for the last call's stream.
  Tensor total() const;

 private:
  // i32 [most_microbatches, L]: one tensor for all calls, since graphs keep its address.
  Tensor loads_;
  int num_microbatches_ = 1;
  Stream stream_;  // of the last call
};

}  // namespace moebius
