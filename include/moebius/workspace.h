// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// WorkspacePool: scratch memory shared by all layers of a model, one set per micro-batch.
// Layers run one after another, so they may share; micro-batches run interleaved, so they may not.
// Thread-safety: one thread at a time (a rank has a pool of its own).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius {

// What is alive at the same time has slots of its own.
enum class WorkspaceSlot : uint8_t {
  kLayer,          // MoeLayer: converted input, logits, ids, weights, results not yet output
  kLoraIds,        // kernel: ids of tokens for which the caller gave none
  kWeightedInput,  // prepare: rows times router weight
  kPrepare,        // prepare: rows handed to the experts, their scales and counts
  kRouter,         // monolithic kernel: ids and weights chosen after prepare
  kIntermediate,   // experts: GEMM2's operand
  kScratch,        // experts: anything else
  kFusedOutput,    // experts: output, of all chunks or parts
  kFinalize,       // finalize: rows weighted and reduced, before they travel, or weights of 1
  kShared,         // shared experts: all of theirs
};
inline constexpr int kNumWorkspaceSlots = 10;

struct TensorSpec {
  Shape shape;
  DType dtype = DType::kF32;
};

class WorkspacePool {
 public:
  WorkspacePool();
  // On a GPU work that uses the buffers may be under way: nobody is given their memory before that
  // is done, and the host does not wait for it.  REQUIRES: a wrapped stream that was given to get()
  // outlives the pool, which records on it when it goes.
  ~WorkspacePool();

  // An uninitialised tensor on the slot's buffer, which grows when too small and never shrinks; it
  // is replaced when the stream's device differs.  Valid until the next get() of the same slot and
  // micro-batch.  A shape with a zero dimension costs nothing.
  // On a GPU the host waits for this stream, and for that of the slot's last get(), where a buffer
  // is replaced, since work enqueued before may use it: a slot's work goes to one stream, or the
  // caller orders the streams by events.
  Tensor get(int microbatch,
             WorkspaceSlot slot,
             const Shape& shape,
             DType dtype,
             const Stream& stream = {});
  // Several tensors side by side on the slot's buffer, each 256-byte aligned, in the order given.
  // `tensors`: one for each of specs.
  void get(int microbatch,
           WorkspaceSlot slot,
           std::span<const TensorSpec> specs,
           std::span<Tensor> tensors,
           const Stream& stream = {});

  int64_t bytes() const;  // held now, over all slots and micro-batches

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moebius
