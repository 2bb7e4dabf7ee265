// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Transports: what moves the rows of all layers of a model.
// A transport holds windows, banks and buffers, and no state of a layer, so that one serves any
// number of layers of a group that have the same shape: the memory of 64 layers is that of one.
// Place: made once per rank beside the group, before the layers.
// Calls of different layers, and their micro-batches, may be in flight on one transport at the same
// time; dispatch.h and low_latency.h say how many results may be alive.  All ranks make these calls
// in the same order.  A failure of a transport is one of all its layers.
// Thread-safety: one thread at a time may use an object and the transports that it gives.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "moebius/api.h"
#include "moebius/dispatch.h"
#include "moebius/group.h"
#include "moebius/low_latency.h"

namespace moebius MOEBIUS_API {

class Transports {
 public:
  // The group must outlive the object and every transport that it gives.
  explicit Transports(Group& group);
  ~Transports();

  // Each returns the same object for equal arguments, and makes it where there is none yet; it is
  // then collective, like its constructor, and throws what that throws.  The object is kept as long
  // as this one lives, so that all ranks find it or make it together.  Ranks that find different
  // ones are not told so here; a MoeLayer compares placements itself.
  // A config that is not given is the one that the constructor takes then.
  std::shared_ptr<HighThroughput> high_throughput(
      const ExpertPlacement& placement,
      std::optional<DispatchConfig> dispatch_config = std::nullopt,
      std::optional<DispatchConfig> combine_config = std::nullopt);
  std::shared_ptr<LowLatency> low_latency(const ExpertPlacement& placement,
                                          const LowLatencyOptions& options);

  // Makes window memory ahead, on one node.  An object of low_latency() that fits in what is left
  // of it takes its part, and is then made without a word to other ranks, so that it does not
  // matter if one is gone by then (LowLatencyOptions::excludes_missing).  LowLatency::size_hint()
  // tells what an object takes.  What ranks ask for is not compared then.  CPUs: memory that nobody
  // touches costs nothing.  A second call adds a window, and what is left of the first one is given
  // up.  Collective; all ranks give the same number.  Rank threads of GPUs still wait for each
  // other then.  Throws InvalidArgument: bytes < 0, or more than any machine has; Unsupported:
  // ranks on several nodes.
  void reserve_low_latency(int64_t bytes);

  Group& group() const;
  // The bytes of windows and buffers that this rank holds for all of them now, with what is left of
  // reserved ones.
  int64_t bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moebius
