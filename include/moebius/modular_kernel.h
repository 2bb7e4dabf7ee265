// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ModularKernel: composes PrepareFinalize x Experts x WeightAndReduce, with workspaces, chunks and
// shared experts.  It names no backend: parts that fit the interfaces compose, and the constructor
// refuses all others with the reason.
// Letters: T tokens of this rank, K top-k, E experts, L local experts, H hidden.
// Thread-safety: one thread at a time may use an object.
// On a GPU a call is enqueued, and the host waits only where the prepare/finalize backend does.
// Shared experts run on a stream beside the call's.  The call's stream waits for them at the end,
// or before finalize where finalize adds their results.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "moebius/api.h"
#include "moebius/experts.h"
#include "moebius/layer_call.h"
#include "moebius/prepare_finalize.h"
#include "moebius/router.h"
#include "moebius/shared_experts.h"
#include "moebius/slot_order.h"

namespace moebius MOEBIUS_API {

// All ranks of a group have the same options, in each call: by them ranks decide what they send to
// each other, and when.
struct KernelOptions {
  // The most rows per pass through the experts; 0: setting MOEBIUS_CHUNK_TOKENS (default 32768).
  // More rows are cut into chunks if the experts support that; their results return whole.
  int64_t chunk_tokens = 0;
  // The most micro-batches that a call is cut into: while the rows of one travel, another computes.
  // A call takes fewer, down to one, where some rank would have less than min_microbatch_tokens
  // tokens in one of them.  Ranks agree on the number at the start of the call.  With
  // min_microbatch_tokens = 0 no micro-batch is too small, and ranks need not agree; unset: the
  // result of default_min_microbatch_tokens().
  int microbatches = 1;
  std::optional<int64_t> min_microbatch_tokens = std::nullopt;
  // Parts by columns in which results go back: while one part travels, the experts' second GEMM
  // makes the next.  Parts are used with a single micro-batch, if the experts can make and
  // prepare/finalize can take them.  0: num_combine_parts() chooses.
  int combine_parts = 0;
  // Rows come in waves, and the experts' first GEMM begins before all have arrived, if the rank
  // that receives most rows gets at least so many; 0: never.  Waves are used on GPUs with a single
  // micro-batch, if prepare/finalize sends and the experts take them.  Unset: 16384, or 0 where
  // shared experts are computed while rows travel.
  std::optional<int64_t> early_rows = std::nullopt;

  bool operator==(const KernelOptions&) const = default;
};

struct KernelInput {
  Tensor hidden;              // [T, H] f32/bf16/f16
  Tensor topk_ids = {};       // i32 or i64 [T, K] (modular)
  Tensor topk_weights = {};   // f32 [T, K] (modular)
  Tensor router_logits = {};  // f32, bf16 or f16 [T, E] (monolithic)
  int64_t num_experts = -1;   // E; -1: all experts are local
  // i32 [E], local index or -1.  It may be undefined where all experts are local, and where the
  // backend knows which are (PrepareFinalizeTraits::placed_experts).  In the latter case a map must
  // agree with the backend.
  Tensor expert_map = {};
  bool apply_router_weight_on_input = false;
  // i32 [T]: adapter of each token, -1 = none.  Each rank may give ids or not, whatever the others
  // do, but the number of adapters must be the same on all ranks.
  Tensor lora_ids = {};
  // f32 [T]: the static scale of each token's rows of GEMM2; see ExpertsInput::a2_scale.  It goes
  // where the token goes (PrepareInput::extras).
  Tensor a2_scale = {};
  // Adds the shared experts' result: output becomes the routed experts' rounded sum plus
  // shared_output, rounded again.
  bool add_shared = false;
  // i32 [E], optional: the call writes here how many selections of topk_ids each expert has.
  Tensor own_load = {};
  // The order of the slots of topk_ids, optional: what room_for_order() has given, filled in.  It
  // stays alive until the call is over.
  const SlotOrder* order = nullptr;
  // The options of this call in place of those that the kernel was made with; `microbatches` is at
  // most theirs, for which there is room.  Shared experts then take chunks of as many rows, too.
  // Every rank gives the same options, or none.
  std::optional<KernelOptions> options = std::nullopt;
};

// The fewest tokens per rank that are worth a micro-batch.  Every micro-batch reads the weights of
// the experts once more, and small GEMMs are slow.  The result is 32 on the CPU.  On a GPU it is
// the number with which an expert gets 512 rows if rows spread evenly: with fewer, cutting a call
// costs more than it hides.
int64_t default_min_microbatch_tokens(int64_t num_experts,
                                      int64_t topk,
                                      int num_ranks,
                                      Device device);

// The number of parts in which results go back, where the rank that receives most rows has results
// [rows, hidden]: `asked`, or with 0 the best number, at most 4.  It is smaller where a part would
// not consist of whole blocks of 128 columns.
int num_combine_parts(int asked, int64_t rows, int64_t hidden, DType dtype, int num_ranks);

class ModularKernel {
 public:
  // shared_experts and router may be null, but a monolithic prepare/finalize needs a router.
  // Throws InvalidArgument that names both sides: for activation formats that differ, a batched
  // format without a limit of tokens or a standard one with it, a monolithic backend without a
  // router, a weight-and-reduce or a quantization that prepare/finalize does not accept, and
  // experts with an a2_scale for each row behind a backend that carries no extra tensors.
  ModularKernel(std::unique_ptr<PrepareFinalize> prepare_finalize,
                std::unique_ptr<Experts> experts,
                std::shared_ptr<const SharedExperts> shared_experts = nullptr,
                std::shared_ptr<const Router> router = nullptr,
                KernelOptions options = {});
  ~ModularKernel();

  // output [T, H] has the dtype of hidden and is overwritten with the routed experts' sum (see also
  // add_shared).  It may be hidden itself if there are no shared experts.  shared_output [T, H]
  // receives the shared experts' result; it is required if there are shared experts, and undefined
  // otherwise.  Neither output may overlap another input.  Collective where prepare/finalize is.
  // Throws InvalidArgument before anything is enqueued (shapes, dtypes, devices, router weight on
  // the input with K > 1, too many tokens for a batched format), CommError where another rank fails
  // or does not come in time, and whatever the experts throw.  The kernel can be called again after
  // an exception.
  void forward(const KernelInput& input,
               const Tensor& output,
               const Tensor& shared_output,
               const CallContext& context);

  // The same in steps of the caller; see LayerCall.  It checks the arguments and enqueues nothing;
  // the first step begins.  Throws the InvalidArgument of forward(), and one if a call of this
  // kernel is under way.  The tensors and what the context names must stay alive until the call is
  // over, and so must the kernel.
  LayerCall start(const KernelInput& input,
                  const Tensor& output,
                  const Tensor& shared_output,
                  const CallContext& context);

  // Room for the order of this call's slots, whose ids need not be chosen yet, or none where the
  // call would not use one.  A Router fills it in (RouteOutput).  It counts rows, too, so the call
  // of the kernel that comes next is the one that it belongs to.
  SlotOrder room_for_order(const KernelInput& input, const CallContext& context);

  // Notes a launch of a graph on context.stream, which has recorded a call of one micro-batch,
  // whole and in one part: the functions below describe it from then on.  Throws InvalidArgument if
  // a call of this kernel, or one with these workspaces, is under way.
  void note_replay(const CallContext& context);

  // See PrepareFinalize.  Every live rank makes this call before its next forward().
  void set_dead(int rank, bool dead);

  // See Experts::update_weights().
  void update_weights(const ExpertWeights& weights, const Stream& stream);

  const PrepareFinalize& prepare_finalize() const;
  const Experts& experts() const;
  // The next five describe the last call.
  // Rows that each local expert computed, i32 [L] on the CPU.  On a GPU this waits for the stream
  // of that call.
  Tensor last_expert_load() const;
  // The same on the device of the call, one row for each of N micro-batches (i32 [N, L]).  It is
  // complete in the order of the call's stream, and valid until the next call.
  Tensor expert_load_on_device() const;
  int last_microbatches() const;   // micro-batches that it was cut into
  int last_combine_parts() const;  // parts in which its results went back
  bool last_rows_came_in_waves() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moebius
