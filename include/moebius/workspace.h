// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// WorkspacePool: scratch memory shared by all layers of a model, one set per micro-batch.
// Layers run one after another, so they may share; micro-batches run interleaved, so they may not.
// Thread-safety: one thread at a time (a rank has a pool of its own).
#pragma once

#include <cstdint>
#include <memory>

#include "moebius/tensor.h"

namespace moebius {

enum class WorkspaceSlot : uint8_t {
  kWorkspace13,
  kWorkspace2,
  kFusedOutput,
  kScratch,
  kPrepare,
  kShared
};

class WorkspacePool {
 public:
  WorkspacePool();
  ~WorkspacePool();

  // An uninitialised tensor on the slot's buffer, which grows when too small and never shrinks; it
  // is replaced when the device differs.  Valid until the next get() of the same slot and
  // micro-batch.  A shape with a zero dimension costs nothing.
  Tensor get(
      int microbatch, WorkspaceSlot slot, const Shape& shape, DType dtype, Device device = {});

  int64_t bytes() const;  // held now, over all slots and micro-batches

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moebius
