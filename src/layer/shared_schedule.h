// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// SharedSchedule: when the shared experts of one micro-batch run, and on which stream.
//
// The plan says whether they run during prepare or during finalize, and whether in line or beside
// the call.  In line, the host computes them while rows travel.  Beside, they run on a stream of
// their own, and work that other ranks wait for is launched first.
// Beside prepare they begin when the transfer begins, if prepare says when that is, and otherwise
// after all work that prepare has enqueued.  If they began sooner, their GEMMs would leave no SM to
// the transfer.
#pragma once

#include <functional>

#include "layer/call_plan.h"
#include "layer/side_stream.h"
#include "moebius/prepare_finalize.h"
#include "moebius/shared_experts.h"

namespace moebius {

class SharedSchedule {
 public:
  // What the shared experts compute on.  All of it outlives the schedule.
  struct Work {
    const SharedExperts* experts = nullptr;     // null: there are none
    const QuantConfig* routed_quant = nullptr;  // by which prepare quantizes rows
    Tensor hidden;
    Tensor output;
    SideStream* beside = nullptr;
    int64_t chunk_tokens = 0;  // see SharedExpertsInput
  };

  SharedSchedule(Work work, const CallPlan& plan, int microbatch, const CallContext& context);

  // Where prepare reports its own rows; null where there are no shared experts to read them.
  OwnRows* own_rows() { return work_.experts != nullptr ? &own_rows_ : nullptr; }

  // The micro-batch calls these in this order: after it has sent rows, before it sends complete
  // results, and after it has sent results.
  void prepare_sent();
  void results_computed();
  void finalize_sent();
  // What the host computes while rows travel, and while results travel; may be empty.
  std::function<void()> during_prepare() { return is_early_ ? in_line() : nullptr; }
  std::function<void()> during_finalize() { return is_early_ ? nullptr : in_line(); }

  // Whether the shared result is enqueued before results are sent, so finalize can wait for it.
  bool is_done_before_finalize() const { return is_beside_ && is_early_; }
  // Makes `stream` wait for a shared result that was computed beside it.
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
  Event begin_;  // shared experts beside the call start after this; early ones get theirs later
  Event done_;
};

}  // namespace moebius
