// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/device/signals.h"

#include <fmt/format.h>

#include <string>

#include "moebius/error.h"

namespace moebius::comm {

const char* name(SignalOp op) {
  switch (op) {
    case SignalOp::kNone:
      return "start";
    case SignalOp::kDispatchCounts:
      return "dispatch counts";
    case SignalOp::kDispatch:
      return "dispatch";
    case SignalOp::kCachedDispatch:
      return "cached dispatch";
    case SignalOp::kCombine:
      return "combine";
    case SignalOp::kLowLatencyDispatch:
      return "low latency dispatch";
    case SignalOp::kLowLatencyCombine:
      return "low latency combine";
    case SignalOp::kLowLatencyResume:
      return "low latency without ranks given up";
    case SignalOp::kMeeting:
      return "exchange";
  }
  return "unknown operation";
}

namespace {

std::string reason(const Fault& fault, bool is_author, uint64_t seen, int64_t timeout_ms) {
  switch (fault.reason) {
    case FaultReason::kExpired: {
      std::string text = fmt::format("rank {} did not come within {} ms, expected at call {}",
                                     fault.guilty, timeout_ms, fault.epoch);
      if (is_author) {
        text += signal_epoch(seen) == 0 ? std::string("; it has not come yet")
                                        : fmt::format("; it is at call {}", signal_epoch(seen));
      }
      return text;
    }
    case FaultReason::kStopped:
      return fmt::format("rank {} failed", fault.guilty);
    case FaultReason::kOverflow:
      return fmt::format("rank {} has no room for all its rows{}", fault.guilty,
                         is_author ? fmt::format(": {}, expected at most {}", signal_epoch(seen),
                                                 signal_value(seen))
                                   : "");
    case FaultReason::kMismatch:
      return fmt::format("rank {} moves rows of another size{}", fault.guilty,
                         is_author ? fmt::format(": {} bytes, rank {} of {}", signal_epoch(seen),
                                                 fault.author, signal_value(seen))
                                   : "");
    case FaultReason::kScalesMismatch:
      return fmt::format("rows of rank {} have scales of another size{}", fault.guilty,
                         is_author
                             ? fmt::format(": {} bytes, those of rank {} {}", signal_epoch(seen),
                                           fault.author, signal_value(seen))
                             : "");
    case FaultReason::kRoomMismatch:
      return fmt::format("rank {} has another room{}", fault.guilty,
                         is_author ? fmt::format(": {} tokens, rank {} {}", signal_epoch(seen),
                                                 fault.author, signal_value(seen))
                                   : "");
    case FaultReason::kBadId:
      return fmt::format(
          "rank {} has an expert id that is none{}", fault.guilty,
          is_author ? fmt::format(": {} of token {}", static_cast<int32_t>(signal_value(seen)),
                                  signal_epoch(seen))
                    : "");
    case FaultReason::kNoRoom:
      return is_author ? fmt::format(
                             "tokens of rank {} name expert {} {} times, expected at most {} "
                             "(max_tokens)",
                             fault.guilty, signal_epoch(seen), pair_first(signal_value(seen)),
                             pair_second(signal_value(seen)))
                       : fmt::format("tokens of rank {} name an expert too often", fault.guilty);
    case FaultReason::kExcluded:
      return fmt::format("rank {} did not come to rank {} within {} ms, and is excluded",
                         fault.guilty, fault.author, timeout_ms);
    case FaultReason::kCombinedTwice:
      return fmt::format("rank {} combines a dispatch again, expected a dispatch for each combine",
                         fault.guilty);
    case FaultReason::kNone:
      break;
  }
  return fmt::format("rank {} failed for an unknown reason {}", fault.guilty,
                     static_cast<int>(fault.reason));
}

}  // namespace

CommError make_comm_error(int rank, uint64_t fault_word, uint64_t seen, int64_t timeout_ms) {
  const Fault fault = unpack_fault(fault_word);
  const bool is_author = fault.author == rank;
  std::string text = fmt::format("rank {}: {}, call {}: {}", rank, name(fault.op), fault.epoch,
                                 reason(fault, is_author, seen, timeout_ms));
  if (!is_author && fault.author != fault.guilty && fault.reason != FaultReason::kExcluded) {
    text += fmt::format(" (found by rank {})", fault.author);
  }
  return {text, rank, fault.guilty};
}

}  // namespace moebius::comm
