// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// ModularKernel::State: the parts of a kernel, what it knows of its current call, and the steps of
// a call.  kernel.cc makes it and cuts calls into micro-batches; kernel_microbatch.cc computes one.
#pragma once

#include <memory>

#include "layer/call_plan.h"
#include "layer/call_state.h"
#include "layer/load_counter.h"
#include "layer/run_experts.h"
#include "layer/shared_schedule.h"
#include "layer/side_stream.h"
#include "layer/turns.h"
#include "moebius/modular_kernel.h"

namespace moebius {

struct ModularKernel::State {
  std::unique_ptr<PrepareFinalize> prepare_finalize;
  std::unique_ptr<Experts> experts;
  std::shared_ptr<const SharedExperts> shared_experts;
  std::shared_ptr<const Router> router;
  std::unique_ptr<WeightAndReduce> weight_and_reduce;
  KernelOptions options;  // with chunk_tokens > 0
  LoadCounter loads;
  OneCall one_call;
  // These three describe the current call, or the last one.
  CallPlan plan;
  int combine_parts = 1;
  bool rows_came_in_waves = false;
  SideStream beside{SideStream::Use::kBeside, true};        // for shared experts and counting loads
  SideStream transfers{SideStream::Use::kTransfers, true};  // for micro-batches, waves and parts

  SlotOrder room_for_order(const KernelInput& input, const CallContext& context);
  void expect_call(const KernelInput& input,
                   const Tensor& output,
                   const Tensor& shared_output,
                   const CallContext& context) const;
  // What a call was given.
  struct Call {
    KernelInput input;
    Tensor output;
    Tensor shared_output;
    CallContext context;
    bool in_steps = false;
  };
  // One micro-batch's share of a call.
  struct Microbatch {
    int index = 0;
    KernelInput input;
    Tensor output;
    Tensor shared_output;
    CallContext context;
  };
  // A call that ends early, because it fails or is dropped: forgets what was kept for its other
  // half, and makes the call's stream wait for the others.
  struct Tidy {
    State& state;
    const CallContext& context;
    int count = 0;  // micro-batches
    mutable bool is_whole = false;
    ~Tidy();
  };
  Task run(Call call);
  CallPlan plan_of(const Call& call) const;
  Microbatch microbatch(int index, const Call& call);
  KernelOptions options_of(const KernelInput& input) const;
  int slot(const CallContext& context, int index) const {
    return context.microbatch * options.microbatches + index;
  }
  Task run_microbatch(Microbatch microbatch, Turns& turns);
  Pending<PrepareResult> start_prepare(const KernelInput& input,
                                       OwnRows* own_rows,
                                       const CallContext& there);
  PrepareResult finish_prepare(const KernelInput& input,
                               const Pending<PrepareResult>& pending,
                               const CallContext& there);
  Tensor lora_ids_to_send(const KernelInput& input, const CallContext& context) const;
  void route(const KernelInput& input, PrepareResult& prepared, const CallContext& context);
  Tensor map_of(const KernelInput& input) const {
    return prepare_finalize->traits().localizes_ids ? Tensor() : input.expert_map;
  }
  // Whether the experts write the load of a micro-batch themselves, which costs no kernel.
  bool experts_count_rows(const PrepareResult& prepared) const {
    return experts->traits().counts_rows &&
           runs_once(*experts, prepared.x.dim(0), plan.options.chunk_tokens);
  }
  Tensor compute(const Microbatch& microbatch,
                 const PrepareResult& prepared,
                 const Tensor& output,
                 const ColumnParts& parts);
  Pending<void> compute_in_parts(const Microbatch& microbatch,
                                 const PrepareResult& prepared,
                                 const FinalizeInput& done,
                                 const SharedSchedule& shared,
                                 const CallContext& back);
  Pending<void> start_finalize(const FinalizeInput& done,
                               const SharedSchedule& shared,
                               const CallContext& back);
  void join_streams(const CallContext& context) const noexcept;
};

}  // namespace moebius
