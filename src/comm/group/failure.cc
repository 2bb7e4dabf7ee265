// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/failure.h"

namespace moebius::comm {

void format_cut(std::span<char> out, fmt::string_view format, fmt::format_args args) {
  fmt::vformat_to_n(out.data(), out.size(), format, args);
}

Failure make_failure(int author, const Call& call, int guilty, const Failure::Reason& reason) {
  Failure failure;
  failure.author = author;
  failure.guilty = guilty;
  failure.epoch = call.epoch;
  failure.op = call.op;
  failure.reason = reason;
  return failure;
}

Failure make_mismatch(int author, const Call& call, int guilty, std::string_view guilty_op) {
  Failure failure =
      make_failure(author, call, guilty,
                   Failure::Reason::format("rank {} is in \"{}\" at epoch {}, expected \"{}\"",
                                           guilty, guilty_op, call.epoch, call.op));
  failure.guilty_op = guilty_op;
  return failure;
}

}  // namespace moebius::comm
