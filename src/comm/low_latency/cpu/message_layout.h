// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The window of LowLatency on CPUs, byte by byte: two banks, then signals.
//
//   bank b      First comes a mailbox for every source rank: {MailboxHeader, padding to 64 bytes,
//               max_tokens messages}.  Then come the returned rows of own tokens, [max_tokens, K,
//               H] in in_dtype; a sum stands at the place of its rank's first slot.  With sums per
//               rank the weights of every source come last, f32 [R, max_tokens, K].
//   signals     i64 [kNumSignals, 2 banks, R].  The peer whose rank is the last index writes the
//               number of the call that it speaks for; calls count from 1, so 0 is none yet.  For
//               kResumed, which uses bank 0, see agree_on_calls().
//   message     {token i32, tag i32, K expert ids i32, padding to 16, row, padding to 16, scales,
//               padding to 16}.  The tag is the caller's, or -1, so messages have the same size
//               with and without tags.  A mailbox has room for the largest rows; messages follow
//               each other as large as the rows of the call are, and so they travel.
#pragma once

#include <cstdint>

#include "core/cuda/signal_word.h"
#include "moebius/low_latency.h"

namespace moebius {

enum class Signal : int { kRows, kUnpacked, kReturned, kResumed, kWeights };
inline constexpr int kNumSignals = 5;
// kReturned holds this many times its call, plus the LowLatencyCoding of the rows.
inline constexpr int64_t kReturnedUnit = 2;

// The rows of a call.
struct LowLatencyRow {
  int64_t value_bytes = 0;
  int64_t scale_bytes = 0;  // 0: no scales

  MOEBIUS_HOST_DEVICE constexpr int64_t scale_offset() const {
    return (value_bytes + 15) / 16 * 16;
  }
  int64_t bytes() const { return scale_bytes > 0 ? scale_offset() + scale_bytes : value_bytes; }
};

// What a mailbox begins with.  All but the number of messages is the same on every rank.
struct MailboxHeader {
  int64_t count = 0;
  int64_t value_bytes = 0, scale_bytes = 0;
  int64_t max_tokens = 0;  // the room of the call
};

struct LowLatencyLayout {
  int64_t max_tokens = 0, topk = 0, hidden = 0;
  int64_t element_bytes = 0;  // of in_dtype
  int num_ranks = 0;
  bool sums_ranks = false;

  static constexpr int64_t kHeaderBytes = 64;
  static constexpr int64_t kScaleGroup = 128;

  static LowLatencyLayout make(const LowLatencyOptions& options, int num_ranks) {
    return {options.max_tokens,         options.topk, options.hidden,
            bits(options.in_dtype) / 8, num_ranks,    options.sum == LowLatencySum::kRanks};
  }

  static int64_t align(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

  int64_t row_bytes() const { return hidden * element_bytes; }
  static constexpr int64_t kTagWord = 1;
  static constexpr int64_t kFirstIdWord = 2;
  int64_t row_offset() const { return align(4 * (kFirstIdWord + topk), 16); }
  // There is room for either form: the row as it is, or one byte per element and the scales.
  int64_t max_row_bytes() const {
    const int64_t cast = hidden + 4 * (hidden / kScaleGroup);
    return align(cast > row_bytes() ? cast : row_bytes(), 16);
  }
  int64_t message_bytes() const { return row_offset() + max_row_bytes(); }
  int64_t message_bytes(const LowLatencyRow& row) const {
    return row_offset() + align(row.bytes(), 16);
  }
  // What crosses to another node.
  int64_t mailbox_bytes(const LowLatencyRow& row, int64_t room) const {
    return kHeaderBytes + room * message_bytes(row);
  }
  int64_t mailbox_bytes() const { return align(kHeaderBytes + max_tokens * message_bytes(), 64); }
  int64_t mailbox(int bank, int source) const {
    return bank * bank_bytes() + source * mailbox_bytes();
  }
  int64_t returned(int bank, int64_t token, int64_t slot) const {
    return bank * bank_bytes() + num_ranks * mailbox_bytes() + (token * topk + slot) * row_bytes();
  }
  int64_t weights(int bank, int source) const {
    return bank * bank_bytes() + weights_in_bank() + source * weights_bytes();
  }
  // The bytes of the weights of one source.
  int64_t weights_bytes() const { return align(4 * max_tokens * topk, 64); }
  int64_t bank_bytes() const {
    return align(weights_in_bank() + (sums_ranks ? num_ranks * weights_bytes() : 0), 256);
  }
  int64_t weights_in_bank() const {
    return align(num_ranks * mailbox_bytes() + max_tokens * topk * row_bytes(), 64);
  }
  int64_t signal(Signal kind, int bank, int peer) const {
    return 2 * bank_bytes() + 8 * ((static_cast<int64_t>(kind) * 2 + bank) * num_ranks + peer);
  }
  int64_t bytes() const { return 2 * bank_bytes() + 8 * kNumSignals * 2 * num_ranks; }
};

}  // namespace moebius
