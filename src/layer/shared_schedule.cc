// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "layer/shared_schedule.h"

#include <utility>

#include "layer/prepare_finalize/prepare_rows.h"

namespace moebius {

SharedSchedule::SharedSchedule(Work work,
                               const CallPlan& plan,
                               int microbatch,
                               const CallContext& context)
    : work_(std::move(work)),
      plan_(plan),
      context_(context),
      is_early_(plan.shares_early(microbatch)),
      is_beside_(work_.experts != nullptr && plan.shared_beside),
      begin_(is_beside_ && !is_early_ ? context.stream.record() : Event()) {}

void SharedSchedule::prepare_sent() {
  if (own_rows_.transfer_begin) {
    begin_ = *own_rows_.transfer_begin;
  }
  if (!is_done_before_finalize()) {
    return;
  }
  if (own_rows_.transfer_begin) {
    run_beside(plan_.sms_beside_prepare);
  } else {
    begin_ = context_.stream.record();
    run_beside(plan_.gemm_sms);
  }
}

void SharedSchedule::results_computed() {
  if (is_beside_ && !is_early_) {
    begin_ = context_.stream.record();
  }
}

void SharedSchedule::finalize_sent() {
  if (is_beside_ && !is_early_) {
    run_beside(plan_.sms_beside_finalize);
  }
}

std::function<void()> SharedSchedule::in_line() {
  if (work_.experts == nullptr || is_beside_) {
    return nullptr;
  }
  return [this] { run(context_); };
}

void SharedSchedule::run_beside(int max_sms) {
  CallContext own = context_;
  own.stream = work_.beside->of(own.stream);
  own.max_sms = max_sms;
  own.stream.wait(begin_);
  run(own);
  done_ = own.stream.record();
}

void SharedSchedule::run(const CallContext& context) const {
  const Profile::Span span(context.profile, "shared", context.stream, context.microbatch,
                           Profile::Track::kShared);
  // Equal specs are enough: rows that prepare hands over have no static scales.
  const auto& spec = work_.experts->quant_spec();
  const bool has_rows = own_rows_.x && spec && spec == activation_spec(work_.routed_quant->a1);
  SharedExpertsInput input{.hidden = work_.hidden, .chunk_tokens = work_.chunk_tokens};
  if (has_rows) {
    input.x = own_rows_.x;
    input.x_scale = own_rows_.x_scale;
  }
  work_.experts->forward(input, work_.output, context);
}

}  // namespace moebius
