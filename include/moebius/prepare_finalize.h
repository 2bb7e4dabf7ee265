// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// PrepareFinalize: the two ends of an MoE layer around the experts.
//   prepare   quantizes and dispatches a rank's tokens; the result is what its experts compute on.
//   finalize  weights, reduces and combines expert outputs into the rank's own tokens.
// One class, since both ends share the transport and its state.
// Letters: T tokens of this rank, M rows received, K top-k, H hidden, L local, E global experts.
// Thread-safety: one thread at a time per object (a rank has its own).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "moebius/dispatch.h"
#include "moebius/experts.h"
#include "moebius/pending.h"
#include "moebius/profile.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"
#include "moebius/weight_and_reduce.h"
#include "moebius/workspace.h"

namespace moebius {

// What a call runs with; the caller owns all of it.
struct CallContext {
  Stream stream = {};
  WorkspacePool* workspaces = nullptr;  // required
  int microbatch = 0;                   // selects workspaces and transport handles
  Profile* profile = nullptr;           // optional
  // GPUs: where rows travel, beside `stream`, which computes; empty: on `stream`.  A ModularKernel
  // has a stream of its own for micro-batches, rows in waves and results in parts.
  std::optional<Stream> transfers = std::nullopt;
  int max_sms = 0;  // GPUs: see ExpertsInput; fewer where a transport has some of them

  WorkspacePool& pool() const;  // throws InvalidArgument when there is none
  // Of the pool, on this micro-batch and stream.
  Tensor get(WorkspaceSlot slot, const Shape& shape, DType dtype) const;
  // Several side by side, in the order given, to be named: auto [ids, weights] = get(...).
  template <size_t kCount>
  std::array<Tensor, kCount> get(WorkspaceSlot slot, const TensorSpec (&specs)[kCount]) const {
    std::array<Tensor, kCount> tensors;
    pool().get(microbatch, slot, specs, tensors, stream);
    return tensors;
  }
};

// A call's own tokens as prepare makes them travel, for others that compute on the same beside the
// transfer.
struct OwnRows {
  std::optional<Event> transfer_begin;  // x is complete then; unset: prepare does not tell
  // [T, H] as quant->a1 quantizes rows, and scales as in ExpertsInput; undefined where tokens are
  // not quantized before they travel.  Valid until the next prepare of this micro-batch.
  Tensor x;
  Tensor x_scale;
};

struct PrepareInput {
  Tensor hidden;            // [T, H] f32/bf16/f16; not modified
  Tensor topk_ids;          // i32 [T, K] global ids, -1 = masked (modular)
  Tensor topk_weights;      // f32 [T, K] (modular)
  Tensor router_logits;     // f32 [T, E] (monolithic only)
  int64_t num_experts = 0;  // E
  Tensor expert_map;        // i32 [E] of this rank; undefined = all experts are local
  bool apply_router_weight_on_input = false;  // K must be 1
  const QuantConfig* quant = nullptr;         // required
  bool defer_input_quant = false;             // hand over unquantized rows; the experts quantize
  Tensor lora_ids;                            // i32 [T], -1 = none; optional
  OwnRows* own_rows = nullptr;                // optional: written by prepare
  // sends_in_waves(): see DispatchInput.  REQUIRES, where not 0: the call has a stream for
  // transfers.
  int64_t early_rows = 0;
  int64_t most_early_rows = 0;
};

// Valid until the next prepare of the same micro-batch.
struct PrepareResult {
  Tensor x;                  // standard [M, H] or batched [L, max_rows, H]
  Tensor x_scale;            // see ExpertsInput
  Tensor expert_num_tokens;  // i32 [L]; optional
  // What travelled with the rows; undefined = the caller's own are to be used.
  Tensor topk_ids;
  Tensor topk_weights;
  Tensor router_logits;
  Tensor lora_ids;
  int64_t expected_rows = 0;  // see ExpertsInput
  // M of the rank with most, told alike on all ranks.
  std::optional<int64_t> most_rows = std::nullopt;
  // x, x_scale and expert_num_tokens may still be on their way, the rest is there.
  RowArrivals arrivals = {};
};

struct FinalizeInput {
  Tensor output;         // [T, H], dtype of the hidden states; overwritten
  Tensor expert_output;  // what the experts wrote
  // takes_columns: of output, where expert_output [M, W] goes.  Parts come in order of columns.
  int64_t first_column = 0;
  // takes_addend: as output, added to what is rounded for it, and rounded again; optional.
  Tensor addend;
  Tensor topk_ids;  // as the experts saw them
  Tensor topk_weights;
  bool apply_router_weight_on_input = false;
  const WeightAndReduce* weight_and_reduce = nullptr;  // required
};

// What a PrepareFinalize can do, and what it is.  Its maker fills this in, and it never changes.
struct PrepareFinalizeTraits {
  std::string_view name;  // a literal
  ActivationFormat activation_format = ActivationFormat::kStandard;
  // Rows taken from one rank per call; nullopt = any number.  Batched backends have a limit.
  std::optional<int64_t> max_tokens_per_rank = std::nullopt;
  int num_dispatchers = 1;  // ranks that send rows here
  // The experts may write FinalizeInput::output themselves, where what they write is final (kNoOp).
  bool takes_final_output = false;
  bool takes_columns = false;  // finalize may be called for some columns of final rows at a time
  bool takes_addend = false;   // finalize adds FinalizeInput::addend
  bool is_async = false;       // it has prepare_async and finalize_async
  bool is_monolithic = false;  // router logits travel, and rows are routed where they arrive
  // prepare hands over indices of local experts (-1 = elsewhere or masked), to which no expert_map
  // applies any more, instead of global ids.
  bool localizes_ids = false;
  // On a GPU: SMs that its kernels hold while rows travel, which micro-batches and shared experts
  // leave to them; 0: no number of them.
  int comm_sms = 0;
  int finalize_sms = 0;  // those of finalize alone
  // Micro-batches that may be between the begin of prepare and the end of finalize at a time.
  int max_in_flight = 7;
  // Where rows go by a placement of experts: i32 [E] on the CPU, this rank's local index or -1, as
  // any expert_map must have it; undefined otherwise.
  Tensor placed_experts = {};
  // Whether calls on a GPU only enqueue, so that a Graph can record them; else why not.
  Support can_be_captured = Support::yes();
};

class PrepareFinalize {
 public:
  virtual ~PrepareFinalize() = default;

  const PrepareFinalizeTraits& traits() const { return traits_; }
  std::string_view name() const { return traits_.name; }

  // Whether prepare can hand over rows, quantized so, that are still on their way.
  virtual bool sends_in_waves(const QuantConfig& /*quant*/, bool /*defer_input_quant*/) const {
    return false;
  }
  // Throws InvalidArgument where prepare would, by these ids on the CPU alone: before the first of
  // several micro-batches writes what the call returns.
  virtual void expect_room(const Tensor& /*topk_ids*/, const Tensor& /*expert_map*/) const {}
  // Whether finalize can work with what the experts leave to it.
  virtual Support accepts(WeightAndReduceKind kind) const = 0;
  // Whether this quantization (and deferring it) can be served.
  virtual Support accepts(const QuantConfig& quant, bool defer_input_quant) const = 0;

  // Fewest tokens that a rank brings to this call: num_tokens is what this one brings.  Collective
  // where ranks are involved; 0 where ranks were given up, which cannot be asked.
  virtual int64_t fewest_tokens(int64_t num_tokens) { return num_tokens; }
  // Drops what the prepare of this micro-batch has left for its finalize, which will not come.
  virtual void forget(int /*microbatch*/) {}
  // On a GPU: throws the CommError that a kernel of an earlier call has reported until now, if any.
  virtual void check() const {}

  // Gives a rank up, see LowLatency::set_dead.  Throws Unsupported where every rank is needed.
  virtual void set_dead(int rank, bool dead);

  // Since construction; nullopt where nothing travels or nothing is counted.
  virtual std::optional<TransportStatistics> statistics() const { return std::nullopt; }

  // Collective where ranks are involved: every rank calls, also with T == 0.  Throw InvalidArgument
  // (inputs that do not fit; a finalize without its prepare) and, where another rank fails or does
  // not come in time, CommError.  The defaults wait for prepare_async() and finalize_async().
  virtual PrepareResult prepare(const PrepareInput& input, const CallContext& context);
  virtual void finalize(const FinalizeInput& input, const CallContext& context);

  // REQUIRES: traits().is_async, else Unsupported.  Inputs stay alive and unchanged until received.
  virtual Pending<PrepareResult> prepare_async(const PrepareInput& input,
                                               const CallContext& context);
  virtual Pending<void> finalize_async(const FinalizeInput& input, const CallContext& context);

 protected:
  explicit PrepareFinalize(PrepareFinalizeTraits traits) : traits_(std::move(traits)) {}

 private:
  PrepareFinalizeTraits traits_;
};

// One rank, no communication.  Standard: quantizes in place of dispatch.  Batched: gathers rows per
// expert (room for max_num_tokens each, token order kept), quantizes per expert.
std::unique_ptr<PrepareFinalize> make_no_ep();
std::unique_ptr<PrepareFinalize> make_no_ep_batched(int64_t max_num_tokens,
                                                    int64_t num_local_experts);

}  // namespace moebius
