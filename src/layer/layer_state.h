// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// MoeLayer::State: the parts and settings of a layer, and the steps of a call.  layer.cc makes it
// and checks calls, and layer_forward.cc computes them.
#pragma once

#include <cstdint>
#include <memory>

#include "layer/call_state.h"
#include "layer/replays.h"
#include "layer/rows/token_slices.h"
#include "moebius/moe_layer.h"

namespace moebius {

struct MoeLayer::State {
  MoeConfig config;
  Group* group = nullptr;  // null: one rank
  bool sequence_parallel = false;
  bool has_capacity = false;
  bool has_own_transport = false;        // prepare_finalize is the caller's
  std::shared_ptr<const Router> router;  // these two: at most one is set
  Routing routing;
  // The layer's own parts, whose weights it may replace; null where the caller brought them.
  std::shared_ptr<Router> own_router;
  std::shared_ptr<SharedExperts> own_shared;
  std::shared_ptr<const SharedExperts> shared_experts;
  std::unique_ptr<ModularKernel> kernel;
  Tensor expert_map;  // undefined: all experts are local
  bool apply_router_weight_on_input = false;
  Device device;
  // Both are on that device.
  Tensor counts;         // i32 [E], selections of the last call
  Tensor computed_rows;  // i64 [L], of the last call if it took several calls of the kernel
  bool took_pieces = false;
  int num_microbatches = 1;
  Stream stream;  // of the last call
  OneCall one_call;
  bool can_replay = false;  // whether calls that repeat may be replayed
  Replays replays;

  DType in_dtype() const { return kernel->experts().desc().in_dtype; }
  int num_ranks() const { return group == nullptr ? 1 : group->size(); }
  // The number of ranks that hold the same tokens as this one, itself included.
  int tp_size() const { return group == nullptr ? 1 : num_ranks() / config.parallel.dp_size; }
  // Whether this class has to sum the partial outputs of all ranks, which backends do themselves.
  bool sums_over_ranks() const {
    return num_ranks() > 1 && config.parallel.backend == All2AllBackend::kNone &&
           !has_own_transport;
  }
  bool has_dead_ranks() const {
    for (int rank = 0; rank < num_ranks(); ++rank) {
      if (group != nullptr && group->is_dead(rank)) {
        return true;
      }
    }
    return false;
  }
  // Whether the selections of this rank's own tokens are counted apart.  Otherwise they are the
  // rows that its experts compute.
  bool counts_own() const {
    return expert_map || kernel->prepare_finalize().traits().num_dispatchers > 1;
  }
  bool slices_tokens() const { return tp_size() > 1 && !sums_over_ranks() && !sequence_parallel; }

  // The arguments of forward(), or this rank's slices of them.
  struct Call {
    MoeLayerInput input;
    Tensor output;
  };
  // What the kernel computes for a call.
  struct Work {
    KernelInput input;
    Tensor routed;
    Tensor shared;
    Tensor summed;    // room for the sums over ranks, if there are any
    SlotOrder order;  // made by the router where the kernel takes one
    bool writes_to_output = false;
  };
  void expect_call(const Call& call, const Stream& call_stream) const;
  void expect_ids(const MoeLayerInput& input) const;
  Call slice_of(const Call& call) const;
  // Launches the graph of a call that repeats, or returns false where the call is to be made.
  bool replay(const Call& call, const CallContext& context);
  void call_once(const Call& call, const CallContext& context);
  // A whole call.  It gives up its turn where the kernel has sent rows, if it is `in_steps`.
  Task run(Call call, CallContext context, bool in_steps);
  // The beginning of a call, from hidden states to routed tokens, and its end.
  Work begin(const Call& call, const CallContext& context);
  void add_up(const Call& call, const Work& work, const CallContext& context) const;
  void gather(const Tensor& output, const CallContext& context) const;
  // Chooses the experts of the tokens, and orders the slots where the kernel has room for that.
  void route(Work& work, const CallContext& context);
  int64_t num_pieces(int64_t num_tokens, int64_t limit) const;
  // It takes references to what outlives it, the arguments of run().
  Task run_kernel(const Work& work, const CallContext& context, bool in_steps);
  static Work piece_of(const Work& work, const TokenSlice& own);
  void count_computed(const Stream& call_stream) const;
};

}  // namespace moebius
