// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// LayerCall: a call of MoeLayer or ModularKernel that its caller drives step by step.
//
//   LayerCall call = layer.start(hidden, output, context);
//   while (call.step()) {
//     attend(other_microbatch);  // while rows of this one travel
//   }
//
// A step ends where rows have been sent: each micro-batch of the call has one such point after
// dispatch and one after combine.  Where a call is cut into micro-batches or pieces there are more
// points; all ranks have the same number.  The next step waits for what has been sent longest, and
// computes with it.  The results have the bits of forward().
//
// What a step may wait for.  On CPUs the first half of each transfer is done when a step ends, and
// the next step waits for rows that other ranks have yet to send, or that are still on a slow link.
// Besides, steps wait for what forward() waits for while rows do not travel: high throughput tells
// counts before it sends and meets the others after its sums; ranks agree on the number of
// micro-batches or pieces; a TP group gathers its slices at the end.  On GPUs steps only enqueue
// where forward() does, and rows travel on a stream beside the call's (CallContext::transfers, or
// the kernel's own), so work that is enqueued on the call's stream between two steps runs while
// they do.  allgather_reducescatter has no halves: its rows travel within a step, and nothing is
// hidden.
//
// Calls of different layers may be in flight at the same time, also on one transport; each takes a
// CallContext::microbatch, or a pool, of its own.  A layer has one call at a time.  All ranks make
// the same calls and steps in the same order; forward() counts as a call whose steps follow each
// other.
//
// Dropping a call before its end gives it up.  What it has under way is ended, the layer can be
// called again, and where there are other ranks they are told: their waits end with a CommError
// that says which rank has dropped a call, and this rank's group is broken, too.  Kernels of GPUs
// that wait for the rows of such a call end at their deadline.  A call without a step is dropped
// silently, because nothing has been sent.  During unwinding the owner of the exception tells the
// others, as with an Exchange.
// Thread-safety: one thread at a time may use a call, and it counts as a use of its layer.
#pragma once

#include <memory>

#include "moebius/api.h"

namespace moebius MOEBIUS_API {

class LayerCall {
 public:
  struct State;  // internal

  LayerCall();  // a call that is done
  explicit LayerCall(std::unique_ptr<State> state);
  LayerCall(LayerCall&& other) noexcept;
  LayerCall& operator=(LayerCall&& other) noexcept;  // drops the call that it held
  ~LayerCall();

  // Runs until rows have been sent again (true), or to the end of the call (false).  Throws what
  // forward() throws; the call is then over.  Once a call is over, it returns false.
  bool step();
  void finish() {
    while (step()) {
    }
  }
  bool is_over() const { return state_ == nullptr; }

 private:
  std::unique_ptr<State> state_;
};

}  // namespace moebius
