// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// WorkspacePool: scratch memory that all layers of a model share, one set per micro-batch.
// Layers run one after another, so they can share it.  Micro-batches run interleaved, so they
// cannot.  Memory comes from the allocator of the device (allocator.h).
// Thread-safety: one thread at a time may use a pool.  Every rank has a pool of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "moebius/api.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius MOEBIUS_API {

// Tensors that are alive at the same time are in different slots.
enum class WorkspaceSlot : uint8_t {
  kLayer,          // MoeLayer: converted input, logits, ids, weights, results not yet output
  kOrder,          // kernel: an order of slots that comes with the call
  kLoraIds,        // kernel: ids of tokens for which the caller gave none
  kWeightedInput,  // prepare: rows times router weight
  kPrepare,        // prepare: rows handed to the experts, their scales and counts
  kExtras,         // prepare: extra tensors of the caller; low latency: static scales
  kRouter,         // monolithic kernel: ids and weights chosen after prepare
  kIntermediate,   // experts: GEMM2's operand
  kScratch,        // experts: anything else
  kFusedOutput,    // experts: output, of all chunks or parts
  kFinalize,       // finalize: reduced rows before they travel; low latency: weights of 1
  kShared,         // shared experts: everything they need
};
inline constexpr int kNumWorkspaceSlots = 12;

struct TensorSpec {
  Shape shape;
  DType dtype = DType::kF32;
};

class WorkspacePool {
 public:
  WorkspacePool();
  // On a GPU the pool may be destroyed while work that uses its buffers is under way.  Their memory
  // is reused only after that work, and the host does not wait for it.  REQUIRES: a wrapped stream
  // that was given to get() or used_on() outlives the pool, because the destructor records an event
  // on it.
  ~WorkspacePool();

  // Returns an uninitialised tensor in the slot's buffer, on the stream's device.  It is valid
  // until the next get() of the same slot and micro-batch.  A shape with a zero dimension takes no
  // memory.  The buffer never shrinks.  It is replaced where it is too small or on another device;
  // on a GPU the host then waits for this stream and for the stream of the slot's last get(), since
  // earlier work may use the old buffer.  The pool does not order the streams of a slot otherwise:
  // a slot's work goes to one stream, or the caller orders its streams by events.  Throws
  // InvalidArgument (a negative micro-batch) and what Tensor::empty() throws without memory.
  Tensor get(int microbatch,
             WorkspaceSlot slot,
             const Shape& shape,
             DType dtype,
             const Stream& stream = {});
  // Writes one tensor for each of `specs` to `tensors`, which has as many elements.  They lie side
  // by side in the slot's buffer, in the order given, each aligned to 256 bytes.
  void get(int microbatch,
           WorkspaceSlot slot,
           std::span<const TensorSpec> specs,
           std::span<Tensor> tensors,
           const Stream& stream = {});

  // Marks a slot as taken until the result is gone, or throws InvalidArgument if it is taken. Calls
  // that are in flight at the same time do so, because they would overwrite each other's tensors;
  // get() does not look.
  std::shared_ptr<void> hold(int microbatch, WorkspaceSlot slot);

  // A number that no other pool has, and that changes where a buffer is replaced or given back.  A
  // Graph that has recorded calls with this pool can be launched while the number stays.
  uint64_t generation() const;
  // Notes that work on `stream` uses a slot's buffer without get(), as a launch of a Graph does on
  // another stream than the one that it was recorded on.  It counts as the slot's last get().
  void used_on(int microbatch, WorkspaceSlot slot, const Stream& stream);

  int64_t bytes() const;  // that all slots of all micro-batches hold now

  // Gives all buffers back to their allocator; the next get() makes new ones.  Tensors of earlier
  // get()s keep theirs alive.  On a GPU memory is reused only after the work that uses it, and the
  // host does not wait.  REQUIRES: no Graph that was recorded with this pool is launched again.
  // Throws CudaError.
  void trim();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moebius
