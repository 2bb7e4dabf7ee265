// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ModularKernel: PrepareFinalize x Experts x WeightAndReduce, with workspaces, chunking and shared
// experts.  It names no backend: whatever fits the interfaces composes, and what does not is
// refused by the constructor with the reason. Thread-safety: one thread at a time per object.
// On a GPU a call is enqueued, and the host waits for no more than prepare/finalize says; shared
// experts have a stream of their own beside the call's, which waits for them at the end, or, where
// their results are added in combine, before that.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "moebius/experts.h"
#include "moebius/prepare_finalize.h"
#include "moebius/router.h"
#include "moebius/shared_experts.h"

namespace moebius {

struct KernelInput {
  Tensor hidden;              // [T, H] f32/bf16/f16
  Tensor topk_ids = {};       // i32 [T, K] (modular)
  Tensor topk_weights = {};   // f32 [T, K] (modular)
  Tensor router_logits = {};  // f32 [T, E] (monolithic)
  int64_t num_experts = -1;   // E; -1: all experts are local
  // i32 [E], local index or -1.  Without one all experts are local, or prepare_finalize knows where
  // they are (PrepareFinalizeTraits::placed_experts), which any map must agree with.
  Tensor expert_map = {};
  bool apply_router_weight_on_input = false;
  // i32 [T]: adapter of each token, -1 = none.  Optional on each rank by itself; whether the
  // experts have adapters, and how many, must be the same on all ranks.
  Tensor lora_ids = {};
  // With shared experts: output becomes the routed experts' sum, rounded, plus shared_output,
  // rounded again.
  bool add_shared = false;
  // i32 [E], optional, written: selections of topk_ids per expert.
  Tensor own_load = {};
};

struct KernelOptions {
  // Rows per pass through the experts; 0: setting MOEBIUS_CHUNK_TOKENS (default 32768).  Chunking
  // is used when the experts support it and there is more than one chunk.  The same on every rank
  // where results may return in parts: those of more rows return whole.
  int64_t chunk_tokens = 0;
  // Micro-batches that a call is cut into: while the rows of one travel, another computes.  Fewer
  // are taken, down to one, where a rank would have less than min_microbatch_tokens in one of them;
  // ranks agree on that first.  With 0 none is too small, and nobody is asked.  Unset: as
  // default_min_microbatch_tokens() says.
  int microbatches = 1;
  std::optional<int64_t> min_microbatch_tokens = std::nullopt;
  // Parts by columns in which results go back, each while the experts' second GEMM makes the next,
  // the same on every rank: of a single micro-batch, where experts give and prepare/finalize takes
  // them.  Asked for, see num_combine_parts().
  int combine_parts = 0;
  // The experts' first GEMM begins with the rows that are here, where the rank with most gets at
  // least so many; the same on every rank; 0: never.  Of a single micro-batch on GPUs, where
  // prepare/finalize sends in waves and experts take arriving rows.  Unset: 16384, and 0 where
  // shared experts are computed meanwhile.
  std::optional<int64_t> early_rows = std::nullopt;
};

// Every micro-batch reads the weights of the experts once more, and small products are slow ones.
// 32 on the CPU; on GPUs so many that an expert has 512 rows, if they spread evenly: with less,
// cutting a call costs more than it hides.
int64_t default_min_microbatch_tokens(int64_t num_experts,
                                      int64_t topk,
                                      int num_ranks,
                                      Device device);

// Of results [rows, hidden], as many as the rank with most gets: `asked`, or, with 0, as many as
// are best, 4 at most.  Fewer where a part would not have whole blocks of 128 columns.
int num_combine_parts(int asked, int64_t rows, int64_t hidden, DType dtype, int num_ranks);

class ModularKernel {
 public:
  // shared_experts and router may be null; a router is required by monolithic prepare/finalize.
  // Throws InvalidArgument, naming both sides, for: activation formats that differ, a batched
  // format without a row limit or a standard one with it, monolithic without router, a
  // weight-and-reduce or a quantization that prepare/finalize does not accept.
  ModularKernel(std::unique_ptr<PrepareFinalize> prepare_finalize,
                std::unique_ptr<Experts> experts,
                std::shared_ptr<const SharedExperts> shared_experts = nullptr,
                std::shared_ptr<const Router> router = nullptr,
                KernelOptions options = {});
  ~ModularKernel();

  // output [T, H] dtype of hidden, overwritten with the routed experts' sum (but see add_shared);
  // it may be hidden itself only without shared experts.  shared_output [T, H]: the shared experts'
  // result; required when there are shared experts, undefined otherwise. Collective where
  // prepare/finalize is. Throws InvalidArgument (shapes, dtypes, weight on input with K > 1, too
  // many tokens for a batched format) before anything is enqueued, CommError where another rank
  // fails or does not come in time, and whatever experts throw; the kernel can be called again.
  void forward(const KernelInput& input,
               const Tensor& output,
               const Tensor& shared_output,
               const CallContext& context);

  // Every live rank does the same before its next call; see PrepareFinalize.
  void set_dead(int rank, bool dead);

  const PrepareFinalize& prepare_finalize() const;
  const Experts& experts() const;
  // Rows the experts computed in the last call, per local expert (i32 [L], host).  On a GPU it
  // waits for the stream of that call.
  Tensor last_expert_load() const;
  // The same where the call ran, a row per micro-batch (i32 [N, L]), complete in the order of its
  // stream; until the next call.
  Tensor expert_load_on_device() const;
  int last_microbatches() const;   // that the last call was cut into
  int last_combine_parts() const;  // in which its results went back
  bool last_rows_came_in_waves() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moebius
