// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// MoeLayer: a router, a modular kernel and shared experts, made from weights: hidden states go in,
// the output comes out.  Most callers want this class; its parts are public for those who compose
// layers of their own.
// Letters: T tokens of this rank, H hidden, E experts, L local experts, Is intermediate size of the
// shared experts.
//
// In a group, rank = dp_rank * tp + tp_rank, with the tp and dp that the model was started with:
//   backend none  dp is 1.  Every rank has all tokens and computes on the experts that it owns, and
//                 the outputs of the ranks are summed.
//   others        Ranks of one TP group hold the same tokens.  Each brings a slice of them, so that
//                 all ranks send and compute different tokens, and at the end the slices of the
//                 output are gathered.  With sequence_parallel every rank has tokens of its own,
//                 and nothing is sliced or gathered.
// Shared experts are whole on every rank, which computes them for its own tokens.
// Which experts a rank owns is said by MoeLayerWeights::placement; without one, neighbours live
// together.
// LoRA: experts.lora holds the adapters of the local experts.  Their number and their LoRA rank are
// the same on every rank of the group.  The router and the shared experts take no adapters.
// Thread-safety: one thread at a time may use an object.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "moebius/api.h"
#include "moebius/dispatch.h"
#include "moebius/group.h"
#include "moebius/layer_call.h"
#include "moebius/low_latency.h"
#include "moebius/modular_kernel.h"
#include "moebius/parallel_config.h"
#include "moebius/router.h"
#include "moebius/transports.h"

namespace moebius MOEBIUS_API {

// The weights of one layer and the facts that go with them, as a checkpoint gives them.
struct MoeLayerWeights {
  MoeConfig config;
  // The router needs neither of them where every call brings ids and weights, or where the caller
  // brings a router or a routing of its own (MoeLayerParts).
  RouterConfig router_config;
  RouterWeights router;
  bool apply_router_weight_on_input = false;
  ActivationSpec activation;
  ExpertWeights experts;  // this rank's local experts; undefined where MoeLayerParts has experts
  // The ranks of all experts, ep_size of them, each with at least one expert; the same on every
  // rank.  `experts` are then those of ep_rank, in the order of their ids.  Unset: linear.
  std::optional<ExpertPlacement> placement = std::nullopt;
  // Shared experts: w1 [1, 2*Is, H], w2 [1, H, Is].  Undefined where the model has none.
  ExpertWeights shared;
  int64_t shared_intermediate = 0;
  Tensor shared_gate;  // [1, H] f32, bf16 or f16; optional
};

struct MoeLayerOptions {
  ActivationFormat format = ActivationFormat::kStandard;
  std::string experts;  // the implementation to force; empty: one is chosen
  // Whose memory the routed and the shared experts compute on.  Routers and gates always have their
  // own.
  WeightMemory weight_memory = WeightMemory::kOwned;
  Precision precision = Precision::kModel;
  KernelOptions kernel;
  // The following are for groups, whose backend is weights.config.parallel.backend.
  // What moves the rows, shared with other layers of the group; null: the layer makes its own.  The
  // layer takes one transport of it and keeps that, so this may go before the layer does.
  std::shared_ptr<Transports> transports;
  bool monolithic = false;  // allgather_reducescatter only
  // GPUs: the number of SMs of every transport kernel, which is even; 0: the backend chooses.
  int comm_sms = 0;
  // For high_throughput on the GPUs of one node; the same on every rank.
  // Unset: in each call the host waits for the number of rows that come to this rank.
  // Set: there is room for so many rows in a call, or in each of its micro-batches; 0 stands for
  // the tokens of all ranks, which is always enough.  No host waits for a GPU, and a Graph can
  // record calls.  Results are the same, except that with weights stored in codes the capacity
  // decides the order of sums.  If more rows come, every rank gets a CommError (see check()), and
  // the layer cannot be used any more.
  std::optional<int64_t> capacity = std::nullopt;
  // For low_latency; the same on every rank.  kRanks needs ranks of one node (else Unsupported) and
  // sends as many bytes back as high_throughput.
  LowLatencySum low_latency_sum = LowLatencySum::kSelections;
  // hidden holds tokens of this rank alone even where tp > 1.  Backend none allows it on one rank.
  bool sequence_parallel = false;
};

// Chooses the experts of tokens: sets ids i32 [T, K] (-1 = masked) and weights f32 [T, K] from
// hidden [T, H], which has the model's dtype.  Of tokens that a TP group shares, these are this
// rank's slice.  On a GPU the function enqueues on context.stream and does not wait.  On the CPU
// ids are checked afterwards, as ids that a call brings.
using Routing = std::function<void(
    const Tensor& hidden, const Tensor& ids, const Tensor& weights, const CallContext& context)>;

// The parts of a layer that the caller brings.  The layer makes those that are absent, from weights
// and options.  Options about a part that the caller brings have no effect.
struct MoeLayerParts {
  // One of these two at most.  The router is on the layer's device.
  std::shared_ptr<const Router> router = nullptr;
  Routing routing = nullptr;
  // The desc must be that of the layer: sizes, dtype and format of MoeLayerWeights::config.
  std::unique_ptr<Experts> experts = nullptr;
  // It brings rows to the experts and sums over ranks itself, whatever config.parallel.backend
  // says.  With several ranks it may communicate in its own way, and the layer then needs no Group
  // unless ranks share tokens (tp > 1 without sequence_parallel).  Without a Group a call brings at
  // most as many tokens as a batched one takes.
  std::unique_ptr<PrepareFinalize> prepare_finalize = nullptr;
  std::shared_ptr<const SharedExperts> shared_experts = nullptr;
};

struct MoeLayerInput {
  Tensor hidden;  // [T, H] f32, bf16 or f16
  // The experts of each token, i32 or i64 [T, K] with -1 = masked, and their weights f32 [T, K].
  // Both or neither; with them the layer does not route.
  Tensor topk_ids = {};
  Tensor topk_weights = {};
  // i32 [T]: adapter of each token, -1 = none; undefined: no token has an adapter.
  Tensor lora_ids = {};
  // f32 [T]: see KernelInput::a2_scale.
  Tensor a2_scale = {};
  // See KernelInput::options.
  std::optional<KernelOptions> kernel = std::nullopt;
};

class MoeLayer {
 public:
  // The layer works on the device of `stream`; weights that are elsewhere are copied there.  With a
  // group, which must outlive the layer, construction and forward() are collective.  The weights
  // then are this rank's share, and config.parallel says which share that is.  If the ranks of the
  // group have GPUs, `stream` belongs to this rank's GPU.  Throws InvalidArgument where weights,
  // options, group and config do not fit each other, and Unsupported, naming what was tried, where
  // no implementation can serve them.
  MoeLayer(MoeLayerWeights weights,
           const MoeLayerOptions& options,
           const Stream& stream,
           Group* group = nullptr,
           MoeLayerParts parts = {});
  // REQUIRES: on a GPU all work of forward() is done, because the memory may be reused at once.
  ~MoeLayer();

  // Sets output [T, H] f32, bf16 or f16 to the routed and the shared experts' results, summed in
  // f32 and rounded once.  output may be hidden itself, and may not overlap another input.  Hidden
  // states of another dtype than config().in_dtype are rounded to that dtype first.  kF64 then
  // widens them to f32, so that the oracle sees the same values as the model.  Batched formats take
  // any T, too: inputs longer than max_num_tokens are split.
  // Ranks that hold the same tokens give the same ids, weights and lora_ids.  Other ranks may give
  // ids or route, and may give lora_ids or not, independently.
  // On one GPU, a layer without parts of the caller's records a call that comes a fifth time with
  // the same tensors, options, workspaces and stream, and from then on launches it as a CUDA graph,
  // with the same results and a fraction of the host's time.  Calls with a profile, and calls that
  // are captured, are not replayed.  Recording takes the host as long as some ten calls and may
  // wait for an idle GPU.  So where kernels of other ranks of this process wait on the GPU for this
  // rank, set MOEBIUS_REPLAYS to 0.
  // Throws InvalidArgument (shape, dtype, device; ids without weights, neither ids nor a router,
  // ids for a monolithic backend; on the CPU ids of experts or adapters that do not exist, which on
  // a GPU count as masked), CommError (a rank was lost; on a GPU also in an earlier call),
  // CudaError, and OutOfMemory (for workspaces).
  void forward(const MoeLayerInput& input, const Tensor& output, const CallContext& context);
  void forward(const Tensor& hidden, const Tensor& output, const CallContext& context);

  // The same in steps of the caller; see LayerCall.  It checks the arguments and enqueues nothing;
  // the first step begins.  Throws the InvalidArgument of forward(), and one if a call of this
  // layer is under way.  The tensors and what the context names must stay alive until the call is
  // over, and so must the layer.
  LayerCall start(const MoeLayerInput& input, const Tensor& output, const CallContext& context);
  LayerCall start(const Tensor& hidden, const Tensor& output, const CallContext& context);

  // Whether the caller must keep the memory of the experts' weights alive and in place.  It follows
  // from MoeLayerOptions::weight_memory, or is what the caller's own experts say.
  bool retains_weights() const;
  // Replaces the values of weights in place, between calls, so that a Graph that has recorded calls
  // computes with the new ones; see Experts::update_weights().  Each of `experts`, `shared` (with
  // shared_gate) and `router` may be left out, and stays as it is then.  The rest of `weights` is
  // not read.  The result is that of a layer made from the new weights.  Local: each rank updates
  // its own share, and no call is under way meanwhile.  Throws, before anything is written,
  // InvalidArgument for what differs from the weights that the layer was made from, naming both
  // values, and Unsupported where a part that the caller brought cannot replace its weights.
  void update_weights(const MoeLayerWeights& weights, const Stream& stream);

  // low_latency on one node: goes on without a rank, whether or not a CommError has named it; the
  // experts of that rank contribute nothing.  Every live rank makes this call before its next
  // forward().  From then on forward() takes at most config().max_num_tokens tokens, because ranks
  // cannot agree on how to split longer inputs, and throws CommError where a TP group shares
  // tokens, because they cannot be gathered.  Throws Unsupported with other backends.
  void set_dead(int rank, bool dead);

  // On a GPU forward() returns before its work is done, so the loss of a rank is found later: by
  // the next forward(), or by this function, which throws CommError if a loss is known by now.
  void check() const;
  // Whether forward() on a GPU only enqueues work, so that a Graph can record it; if not, why.
  // Every launch of the graph then has the numbers of tokens, on all ranks, that were recorded.
  Support can_be_captured() const;

  const Router* router() const;  // null: every call brings ids, or the caller's routing chooses
  const ModularKernel& kernel() const;
  const MoeConfig& config() const;
  // The next three describe the last forward().  On a GPU the two loads wait for its stream, and
  // after launches of a Graph on that stream they describe the last launch.
  // Selections per expert, i64 [E] on the CPU, of this rank's tokens, routed here or given with
  // ids.
  Tensor expert_load() const;
  // Rows that each expert of this rank has computed, for tokens of any rank, i64 [L] on the CPU.
  Tensor local_expert_load() const;
  // Micro-batches that it was cut into; where it took several calls of the kernel, the most that
  // one of them had.
  int last_microbatches() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moebius
