// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// MoeLayer: router + modular kernel + shared experts, made from weights: hidden states in, output
// out.  This is what most callers want; the parts are public for those who compose their own.
//
// Over a group, rank = dp_rank * tp + tp_rank, with tp and dp as the model was started:
//   backend none  dp is 1: every rank has all tokens, computes what it owns, and outputs are summed
//   others        ranks of one TP group hold the same tokens; each brings a slice of them, so all
//                 ranks of the group send and compute different tokens, and the slices of the
//                 output are gathered in the end (not with sequence_parallel: then tokens are
//                 sliced already)
// Shared experts are whole on every rank and computed for the rank's own tokens.
// LoRA: experts.lora holds the adapters of the local experts, as many and of the same rank on every
// rank of the group.  Router and shared experts take none.
// Thread-safety: one thread at a time per object.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "moebius/group.h"
#include "moebius/low_latency.h"
#include "moebius/modular_kernel.h"
#include "moebius/parallel_config.h"
#include "moebius/router.h"

namespace moebius {

// One layer's weights and the facts that go with them, as a checkpoint gives them.
struct MoeLayerWeights {
  MoeConfig config;
  RouterConfig router_config;
  RouterWeights router;
  bool apply_router_weight_on_input = false;
  ActivationSpec activation;
  ExpertWeights experts;  // this rank's local experts
  // Shared experts: w1 [1, 2*Is, H], w2 [1, H, Is]; undefined tensors = none.
  ExpertWeights shared;
  int64_t shared_intermediate = 0;
  Tensor shared_gate;  // [1, H] f32, bf16 or f16; optional
};

struct MoeLayerOptions {
  ActivationFormat format = ActivationFormat::kStandard;
  std::string experts;  // implementation to force; empty = choose
  Precision precision = Precision::kModel;
  KernelOptions kernel;
  // Over a group; the backend is weights.config.parallel.backend.
  bool monolithic = false;  // allgather_reducescatter only
  int comm_sms = 0;         // GPUs: SMs of every transport kernel, even; 0: as the backend has them
  // high_throughput on the GPUs of one node, the same on every rank.  Unset: the host waits for the
  // number of rows that come to this rank.  Else there is room for so many, in a call or in each of
  // its micro-batches; 0: for the tokens of all ranks, so always enough.  Then no host waits for a
  // GPU and a Graph can record calls; results are the same (of weights in codes but for the order
  // of sums, which the room decides), and more rows are a CommError on every rank (check()), which
  // ends the layer's use.
  std::optional<int64_t> capacity = std::nullopt;
  // low_latency only, the same on every rank.  kRanks: on one node, else Unsupported; as many bytes
  // back as high_throughput.
  LowLatencySum low_latency_sum = LowLatencySum::kSelections;
  // hidden holds tokens of this rank alone, also where tp > 1; over ranks not with backend none.
  bool sequence_parallel = false;
};

class MoeLayer {
 public:
  // Takes the weights: handles are dropped once repacked.  With a group (which must outlive the
  // layer) construction and forward() are collective; weights are this rank's share, and
  // config.parallel says of what.  Throws InvalidArgument when weights, options, group and config
  // do not fit, Unsupported when nothing here can serve them, naming what was tried. The layer
  // works where `stream` does; weights that are elsewhere are copied there.  A group of GPUs has a
  // GPU per rank, and the stream is of this rank's.
  MoeLayer(MoeLayerWeights weights,
           const MoeLayerOptions& options,
           const Stream& stream,
           Group* group = nullptr);
  // REQUIRES: on a GPU the work of its forward() is done; the memory may be another's at once.
  ~MoeLayer();

  // hidden [T, H] f32/bf16/f16 -> output [T, H] f32, bf16 or f16 = routed + shared, summed in f32
  // and rounded once.  output may be hidden.  Hidden states of another dtype than config().in_dtype
  // are rounded to it first; kF64 then widens them to f32, so that the oracle sees what the model
  // sees.  Batched formats take any T: longer inputs are split by max_num_tokens.
  // lora_ids i32 [T]: adapter of each token, -1 = none; undefined: none at all.  Ranks that hold
  // the same tokens give the same ids; others may give ids or not, each by itself.
  // Throws InvalidArgument (shape, dtype, device, ids of adapters outside [-1, adapters) on the
  // CPU), CommError (a rank was lost; of a GPU, also what an earlier call met), CudaError, Error
  // (no memory for workspaces).
  void forward(const Tensor& hidden,
               const Tensor& output,
               const CallContext& context,
               const Tensor& lora_ids = {});

  // low_latency on one node: goes on without a rank, after a CommError that names it or before one.
  // Its experts contribute nothing.  Every live rank does the same before its next forward(), which
  // then takes at most config().max_num_tokens tokens, since ranks no longer agree on the pieces of
  // longer inputs; tokens that a TP group shares cannot be gathered any more (CommError).
  // Throws Unsupported with other backends.
  void set_dead(int rank, bool dead);

  // On a GPU forward() returns before its work is done, and a rank that was lost meanwhile is found
  // out by the next call; or by this one, which throws that CommError as far as known until now.
  void check() const;
  // Whether forward() on a GPU only enqueues, so that a Graph can record it; else why not.  The
  // numbers of tokens, of all ranks, are then those of every launch.
  Support can_be_captured() const;

  const Router& router() const;
  const ModularKernel& kernel() const;
  const MoeConfig& config() const;
  // On a GPU these two wait for the stream of the last forward(), and are of the last launch of a
  // Graph on that stream.
  // Of the last forward(): selections per expert, i64 [E], of the tokens this rank has routed.
  Tensor expert_load() const;
  // Of the last forward(): rows this rank's experts computed, of whichever tokens, i64 [L].
  Tensor local_expert_load() const;
  // Of the last forward(): the most micro-batches that a piece of it was cut into, where it took
  // several calls of the kernel.
  int last_microbatches() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moebius
