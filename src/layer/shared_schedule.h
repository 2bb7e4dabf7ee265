// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// SharedSchedule: when the shared experts of one micro-batch run, and where.
//
// They run during prepare or during finalize, as the plan says.  In line, the host computes them
// while rows travel; beside, they have a stream of their own, and what other ranks wait for is
// launched first.  Beside prepare they begin when the transfer does, where prepare tells that, and
// otherwise after all that it has enqueued: sooner, their GEMMs would leave no SM to the transfer.
#pragma once

#include <functional>

#include "layer/call_plan.h"
#include "layer/side_stream.h"
#include "moebius/prepare_finalize.h"
#include "moebius/shared_experts.h"

namespace moebius {

class SharedSchedule {
 public:
  // What the micro-batch's shared experts compute, and with what.  All of it outlives the schedule.
  struct Work {
    const SharedExperts* experts = nullptr;     // null: there are none
    const QuantConfig* routed_quant = nullptr;  // of the routed experts, as prepare quantizes rows
    Tensor hidden;
    Tensor output;
    SideStream* beside = nullptr;
  };

  SharedSchedule(Work work, const CallPlan& plan, int microbatch, const CallContext& context);

  // Where prepare tells how it made the rows travel; null where nobody would read it.
  OwnRows* own_rows() { return work_.experts != nullptr ? &own_rows_ : nullptr; }

  // The micro-batch calls these in this order: after it has sent rows, before it sends results that
  // are complete, and after it has sent results.
  void prepare_sent();
  void results_computed();
  void finalize_sent();
  // What the host computes while rows, or results, travel; may be empty.
  std::function<void()> during_prepare() { return is_early_ ? in_line() : nullptr; }
  std::function<void()> during_finalize() { return is_early_ ? nullptr : in_line(); }

  // Whether the result is enqueued before results are sent, so that finalize can wait for it.
  bool is_done_before_finalize() const { return is_beside_ && is_early_; }
  // The stream waits for a result that was computed beside it.
  void join(const Stream& stream) const { stream.wait(done_); }

 private:
  std::function<void()> in_line();
  void run(const CallContext& context) const;
  void run_beside(int max_sms);

  Work work_;
  const CallPlan& plan_;
  const CallContext& context_;
  bool is_early_;
  bool is_beside_;
  OwnRows own_rows_;
  Event begin_;  // what is computed beside starts after this
  Event done_;
};

}  // namespace moebius
