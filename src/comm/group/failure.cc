// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/failure.h"

#include <fmt/format.h>

#include <utility>

namespace moebius::comm {

Failure make_failure(int author, const Call& call, int guilty, std::string reason) {
  return {author, guilty, call.epoch, std::string(call.op), "", std::move(reason)};
}

Failure make_mismatch(int author, const Call& call, int guilty, std::string_view guilty_op) {
  Failure failure = make_failure(author, call, guilty,
                                 fmt::format("rank {} is in \"{}\" at epoch {}, expected \"{}\"",
                                             guilty, guilty_op, call.epoch, call.op));
  failure.guilty_op = guilty_op;
  return failure;
}

FailureRecord FailureRecord::of(const Failure& failure) {
  FailureRecord record{failure.author, failure.guilty, failure.epoch};
  failure.op.copy(record.op.data(), record.op.size() - 1);
  failure.guilty_op.copy(record.guilty_op.data(), record.guilty_op.size() - 1);
  failure.reason.copy(record.reason.data(), record.reason.size() - 1);
  return record;
}

}  // namespace moebius::comm
