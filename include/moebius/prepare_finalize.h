// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// PrepareFinalize: the two ends of an MoE layer around the experts.
//   prepare   quantizes and dispatches a rank's tokens; its result is what the experts compute on.
//   finalize  weights, reduces and combines the experts' outputs into the rank's own tokens.
// Both ends are one class, because they share the transport and its state.
// Letters: T tokens of this rank, M rows received, K top-k, H hidden, L local, E global experts.
// Tensors are handles that share memory; every tensor of a call is on the stream's device.
// Thread-safety: one thread at a time may use an object.  Every rank has objects of its own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "moebius/api.h"
#include "moebius/dispatch.h"
#include "moebius/experts.h"
#include "moebius/pending.h"
#include "moebius/profile.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"
#include "moebius/weight_and_reduce.h"
#include "moebius/workspace.h"

namespace moebius MOEBIUS_API {

// What a call runs with.  The caller owns all of it and keeps it alive until the call has returned.
struct CallContext {
  Stream stream = {};
  WorkspacePool* workspaces = nullptr;  // required
  int microbatch = 0;                   // selects the workspaces and the transport's state
  Profile* profile = nullptr;           // optional
  // On a GPU: the stream on which rows travel while `stream` computes.  Without one they travel on
  // `stream`.  A ModularKernel brings such a stream itself where a call has micro-batches, rows in
  // waves or results in parts.
  std::optional<Stream> transfers = std::nullopt;
  // On a GPU: the most SMs that GEMMs may take (see ExpertsInput); 0: all.  They take fewer while a
  // transport holds some.
  int max_sms = 0;

  WorkspacePool& pool() const;  // throws InvalidArgument when there is none
  // A tensor of the pool for this micro-batch and stream.
  Tensor get(WorkspaceSlot slot, const Shape& shape, DType dtype) const;
  // Several tensors side by side, in the order given: auto [ids, weights] = get(...).
  template <size_t kCount>
  std::array<Tensor, kCount> get(WorkspaceSlot slot, const TensorSpec (&specs)[kCount]) const {
    std::array<Tensor, kCount> tensors;
    pool().get(microbatch, slot, specs, tensors, stream);
    return tensors;
  }
};

// This rank's own tokens in the form in which prepare sends them.  Shared experts compute on them
// while the rows travel.
struct OwnRows {
  // When the transfer begins; x is complete by then.  Unset where prepare does not say.
  std::optional<Event> transfer_begin;
  // [T, H] quantized as quant->a1 says, and scales as in ExpertsInput.  Undefined where tokens are
  // not quantized before they travel, or by a static scale.  Valid until the next prepare of this
  // micro-batch.
  Tensor x;
  Tensor x_scale;
};

struct PrepareInput {
  Tensor hidden;            // [T, H] f32/bf16/f16; not modified
  Tensor topk_ids;          // i32 or i64 [T, K] global ids, -1 = masked (modular)
  Tensor topk_weights;      // f32 [T, K] (modular)
  Tensor router_logits;     // f32, bf16 or f16 [T, E] (monolithic only)
  int64_t num_experts = 0;  // E
  Tensor expert_map;        // i32 [E], local index or -1; undefined: all experts are local
  bool apply_router_weight_on_input = false;  // K must be 1
  const QuantConfig* quant = nullptr;         // required
  bool defer_input_quant = false;             // hand over unquantized rows; the experts quantize
  // With defer_input_quant: rows that travel may be quantized before, and are handed over so (see
  // ExpertsTraits::takes_quantized_transfers).
  bool may_quantize_transfers = false;
  Tensor lora_ids;  // i32 [T], -1 = none; optional
  // Tensors [T, ...] of the caller, of any dtype, that go where the rows go.  Every rank gives as
  // many.  Backends that carry none throw Unsupported (PrepareFinalizeTraits::carries_extras).
  std::vector<Tensor> extras = {};
  OwnRows* own_rows = nullptr;  // optional; prepare writes it
  // Rows, for backends whose sends_in_waves() is true; see DispatchInput.  REQUIRES where
  // early_rows is not 0: the context has a stream for transfers.
  int64_t early_rows = 0;
  int64_t most_early_rows = 0;
};

// What prepare hands over.  It is valid until the next prepare of the same micro-batch.
struct PrepareResult {
  Tensor x;                  // standard [M, H] or batched [L, max_rows, H]
  Tensor x_scale;            // see ExpertsInput
  Tensor expert_num_tokens;  // i32 [L]; optional
  // What has travelled with the rows.  Where one is undefined, the caller's own tensor holds.
  Tensor topk_ids;
  Tensor topk_weights;
  Tensor router_logits;
  Tensor lora_ids;
  // Each [M, ...], batched [L, max_rows, ...]; empty: the caller's own hold.
  std::vector<Tensor> extras = {};
  int64_t expected_rows = 0;  // see ExpertsInput
  // M of the rank that receives most rows; the same number on all ranks.
  std::optional<int64_t> most_rows = std::nullopt;
  // Where this is set, x, x_scale and expert_num_tokens may still be on their way.  The other
  // tensors are complete.
  RowArrivals arrivals = {};
};

struct FinalizeInput {
  Tensor output;         // [T, H], dtype of the hidden states; overwritten
  Tensor expert_output;  // what the experts wrote
  // With traits().takes_columns: the column of output at which expert_output [M, W] begins.  Parts
  // come in order of columns.
  int64_t first_column = 0;
  // With traits().takes_addend: shaped as output.  It is added to the rounded result, and the sum
  // is rounded again.  Optional.
  Tensor addend;
  Tensor topk_ids;  // as the experts saw them
  Tensor topk_weights;
  bool apply_router_weight_on_input = false;
  const WeightAndReduce* weight_and_reduce = nullptr;  // required
};

// What a PrepareFinalize is and what it can do.  The backend fills this in, and it never changes.
struct PrepareFinalizeTraits {
  std::string_view name;  // a literal
  ActivationFormat activation_format = ActivationFormat::kStandard;
  // The most tokens that one rank may bring to a call; nullopt: any number.  Batched backends have
  // such a limit.
  std::optional<int64_t> max_tokens_per_rank = std::nullopt;
  int num_dispatchers = 1;  // ranks that send rows here
  // Experts whose rows are final (kNoOp) may write to FinalizeInput::output themselves.
  bool takes_final_output = false;
  bool takes_columns = false;  // finalize may be called for some columns of final rows at a time
  bool takes_addend = false;   // finalize adds FinalizeInput::addend
  bool is_async = false;       // it has prepare_async and finalize_async
  bool is_monolithic = false;  // router logits travel, and rows are routed where they arrive
  // prepare hands over indices of local experts (-1: elsewhere or masked) instead of global ids, so
  // no expert_map applies to them.
  bool localizes_ids = false;
  // On a GPU: the SMs that its kernels hold while rows travel.  GEMMs that run at that time leave
  // these SMs free.  0: nothing is left free.
  int comm_sms = 0;
  int finalize_sms = 0;  // the same for finalize alone
  // On a GPU: whether a call may use streams beside its own.  false: so many ranks share the GPU
  // that kernels which wait for each other would come to share a hardware queue.
  bool has_streams_beside = true;
  // How many micro-batches may have begun prepare and not yet ended finalize at the same time.
  int max_in_flight = 7;
  // Where a placement of experts decides to which rank a row goes: i32 [E] on the CPU, this rank's
  // local index or -1.  A caller's expert_map must be equal to it.  Undefined elsewhere.
  Tensor placed_experts = {};
  // Whether PrepareInput::extras go with the rows; if not, why.
  Support carries_extras = Support::yes();
  // Whether a call on a GPU only enqueues work, so that a Graph can record it; if not, why.
  Support can_be_captured = Support::yes();
};

class PrepareFinalize {
 public:
  virtual ~PrepareFinalize() = default;

  const PrepareFinalizeTraits& traits() const { return traits_; }
  std::string_view name() const { return traits_.name; }

  // Whether prepare can hand over rows of this quantization while they are still on their way.
  virtual bool sends_in_waves(const QuantConfig& /*quant*/, bool /*defer_input_quant*/) const {
    return false;
  }
  // Throws InvalidArgument where prepare would find no room for the rows of these ids, which are on
  // the CPU.  A call with several micro-batches asks this first, before one of them writes output.
  virtual void expect_room(const Tensor& /*topk_ids*/, const Tensor& /*expert_map*/) const {}
  // Whether finalize can do what experts with this strategy leave to it.
  virtual Support accepts(WeightAndReduceKind kind) const = 0;
  // Whether rows can be handed over in this quantization, or unquantized where it is deferred.
  virtual Support accepts(const QuantConfig& quant, bool defer_input_quant) const = 0;

  // The smallest number of tokens that any rank brings to this call; num_tokens is what this rank
  // brings.  Collective where there are several ranks.  0 where a rank is excluded, since it cannot
  // be asked.
  virtual int64_t fewest_tokens(int64_t num_tokens) { return num_tokens; }
  // Drops what the prepare of this micro-batch has kept for its finalize, because that finalize
  // will not be called.
  virtual void forget(int /*microbatch*/) {}
  // Tells the other ranks that this one does not end its call, and why, so that they do not wait
  // for it.  No call can follow.  It does nothing where there are no others.
  virtual void give_up(std::string_view /*why*/) noexcept {}
  // On a GPU: throws CommError if a kernel of an earlier call has reported a failure by now.
  virtual void check() const {}

  // Excludes a rank, or takes it back; see LowLatency::set_dead.  Throws Unsupported where every
  // rank is needed.
  virtual void set_dead(int rank, bool dead);

  // Counts since construction; nullopt where nothing travels or nothing is counted.
  virtual std::optional<TransportStatistics> statistics() const { return std::nullopt; }

  // Collective where there are several ranks: every rank calls them, also with T == 0.
  // They throw InvalidArgument for inputs that do not fit or a finalize without its prepare, and
  // CommError where another rank fails or does not come in time.
  // A backend with asynchronous halves inherits both, which then wait for those halves.
  virtual PrepareResult prepare(const PrepareInput& input, const CallContext& context);
  virtual void finalize(const FinalizeInput& input, const CallContext& context);

  // The same without waiting for the transfer.  Throw Unsupported unless traits().is_async.  Inputs
  // must stay alive and unchanged until the result has been received.
  virtual Pending<PrepareResult> prepare_async(const PrepareInput& input,
                                               const CallContext& context);
  virtual Pending<void> finalize_async(const FinalizeInput& input, const CallContext& context);

 protected:
  explicit PrepareFinalize(PrepareFinalizeTraits traits) : traits_(std::move(traits)) {}

 private:
  PrepareFinalizeTraits traits_;
};

// Backends of one rank, where nothing is communicated.  The standard one quantizes the tokens and
// hands them over.  The batched one copies the rows of each expert together in token order, with
// room for max_num_tokens rows per expert, and quantizes expert by expert.
std::unique_ptr<PrepareFinalize> make_no_ep();
std::unique_ptr<PrepareFinalize> make_no_ep_batched(int64_t max_num_tokens,
                                                    int64_t num_local_experts);

}  // namespace moebius
