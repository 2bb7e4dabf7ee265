// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The window of LowLatency on the GPUs of one node, byte by byte, for host and device, and the
// values of its words.
//
//   bank b       mailboxes     [R sources, max_tokens slots] messages: the row, then its scales
//                headers       u64 [R, max_tokens, K + 2]: a word per selection, tag, token
//                row flags     u64 [R, max_tokens, parts]
//                counts        u64 [max_local, R]: a source's selections of each local expert
//                num messages  u64 [R]: the pair of kind_tag() and their number
//                kinds         u64 [R, 2]: a source's bytes of a row, and the pair of its room and
//                              its bytes of scales
//                returned      [max_tokens, K] rows in in_dtype
//                return flags  u64 [max_tokens, K, parts]
//                weights       u64 [R, max_tokens, K]: f32, for sums per rank
//   unpacked     u64 [2 banks, R]
//   resumed      u64 [R]
//   abort        u64 [R]
//   beats        u64 [R]: when each rank last told that it waits (signals.cuh)
//
// Every u64 is a signal {epoch | value} (signals.h).  The bank is the parity of the epoch.  Words
// whose value says all (headers, counts, num messages, weights) are stored without order; a flag is
// stored with release, after what it speaks for.  A row travels in parts of kPartElements, each
// with a flag of its own, so that the warps that move it need not meet.
#pragma once

#include <cstdint>

#include "comm/device/signals.h"

namespace moebius::comm {

// The elements that one warp moves at a time.  It is a multiple of 4 groups of 128, since each lane
// casts 16 elements.
inline constexpr int kPartElements = 1024;
inline constexpr int kCastGroup = 128;
inline constexpr int kMaxLowLatencyTopk = 32;

// A header has a word for each selection of its token: the pair (signals.h) of the local expert and
// of the row's index among the rows that this source sends to that expert, or kNotHere.
inline constexpr uint32_t kNotHere = 0xffffffffu;  // masked, or the expert is on another rank
inline constexpr int64_t kMaxLocalIndex = 0xfffe;  // of either half, so that no pair is kNotHere

struct CudaLowLatencyLayout {
  // These are given.
  int32_t max_tokens = 0;
  int32_t topk = 0;
  int32_t hidden = 0;
  int32_t element_bytes = 0;  // of in_dtype
  int32_t num_ranks = 0;
  int32_t max_local = 0;  // local experts of the rank that has most
  // These are derived.
  int32_t num_parts = 0;
  int64_t message_bytes = 0;
  int64_t returned_bytes = 0;  // bytes of one returned row
  // Offsets in a bank, in this order; the mailboxes are at 0.
  int64_t headers = 0, row_flags = 0, counts = 0, num_messages = 0, kinds = 0;
  int64_t returned = 0, return_flags = 0, weights = 0;
  int64_t bank_bytes = 0;

  static constexpr int64_t kAlignment = 128;
  MOEBIUS_HOST_DEVICE static constexpr int64_t align(int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  static constexpr CudaLowLatencyLayout make(int64_t max_tokens,
                                             int64_t topk,
                                             int64_t hidden,
                                             int64_t element_bytes,
                                             int num_ranks,
                                             int64_t max_local) {
    CudaLowLatencyLayout l;
    l.max_tokens = static_cast<int32_t>(max_tokens);
    l.topk = static_cast<int32_t>(topk);
    l.hidden = static_cast<int32_t>(hidden);
    l.element_bytes = static_cast<int32_t>(element_bytes);
    l.num_ranks = num_ranks;
    l.max_local = static_cast<int32_t>(max_local);
    l.num_parts = static_cast<int32_t>((hidden + kPartElements - 1) / kPartElements);
    const int64_t row_bytes = hidden * element_bytes;
    const int64_t cast_bytes = hidden + 4 * (hidden / kCastGroup);
    l.message_bytes = align(row_bytes > cast_bytes ? row_bytes : cast_bytes);
    l.returned_bytes = align(row_bytes);
    const int64_t messages = num_ranks * max_tokens;
    l.headers = messages * l.message_bytes;
    l.row_flags = l.headers + align(8 * messages * (topk + 2));
    l.counts = l.row_flags + align(8 * messages * l.num_parts);
    l.num_messages = l.counts + align(8 * max_local * num_ranks);
    l.kinds = l.num_messages + align(8 * num_ranks);
    l.returned = l.kinds + align(16 * num_ranks);
    l.return_flags = l.returned + max_tokens * topk * l.returned_bytes;
    l.weights = l.return_flags + align(8 * max_tokens * topk * l.num_parts);
    l.bank_bytes = l.weights + align(8 * messages * topk);
    return l;
  }

  // The same for a call whose rows have fewer bytes.  Messages keep their places.  The flags of
  // their parts are fewer and move together, which is right since a flag only grows from call to
  // call, and its writer waits until the call before has been received.
  constexpr CudaLowLatencyLayout with_rows(int64_t elements, int64_t bytes_of_element) const {
    CudaLowLatencyLayout l = *this;
    l.hidden = static_cast<int32_t>(elements);
    l.element_bytes = static_cast<int32_t>(bytes_of_element);
    l.num_parts = static_cast<int32_t>((elements + kPartElements - 1) / kPartElements);
    return l;
  }

  MOEBIUS_HOST_DEVICE constexpr int64_t slot(int source, int64_t index) const {
    return static_cast<int64_t>(source) * max_tokens + index;
  }
  MOEBIUS_HOST_DEVICE constexpr int64_t message_at(int bank, int source, int64_t index) const {
    return bank * bank_bytes + slot(source, index) * message_bytes;
  }
  // Words 0 to K - 1 are those of the selections, word K is the tag, word K + 1 the token.
  MOEBIUS_HOST_DEVICE constexpr int64_t header_at(int bank,
                                                  int source,
                                                  int64_t index,
                                                  int word) const {
    return bank * bank_bytes + headers + 8 * (slot(source, index) * (topk + 2) + word);
  }
  MOEBIUS_HOST_DEVICE constexpr int64_t row_flag_at(int bank,
                                                    int source,
                                                    int64_t index,
                                                    int part) const {
    return bank * bank_bytes + row_flags + 8 * (slot(source, index) * num_parts + part);
  }
  MOEBIUS_HOST_DEVICE constexpr int64_t count_at(int bank, int64_t local, int source) const {
    return bank * bank_bytes + counts + 8 * (local * num_ranks + source);
  }
  MOEBIUS_HOST_DEVICE constexpr int64_t num_messages_at(int bank, int source) const {
    return bank * bank_bytes + num_messages + 8 * source;
  }
  MOEBIUS_HOST_DEVICE constexpr int64_t kind_at(int bank, int source, int word) const {
    return bank * bank_bytes + kinds + 8 * (2 * source + word);
  }
  // `selection` is token * K + slot of top-k.
  MOEBIUS_HOST_DEVICE constexpr int64_t returned_at(int bank, int64_t selection) const {
    return bank * bank_bytes + returned + selection * returned_bytes;
  }
  MOEBIUS_HOST_DEVICE constexpr int64_t return_flag_at(int bank,
                                                       int64_t selection,
                                                       int part) const {
    return bank * bank_bytes + return_flags + 8 * (selection * num_parts + part);
  }
  MOEBIUS_HOST_DEVICE constexpr int64_t weight_at(int bank, int source, int64_t selection) const {
    return bank * bank_bytes + weights +
           8 * (static_cast<int64_t>(source) * max_tokens * topk + selection);
  }
  MOEBIUS_HOST_DEVICE constexpr int64_t unpacked_at(int bank, int peer) const {
    return 2 * bank_bytes + 8 * (bank * num_ranks + peer);
  }
  MOEBIUS_HOST_DEVICE constexpr int64_t resumed_at(int peer) const {
    return 2 * bank_bytes + 8 * (2 * num_ranks + peer);
  }
  MOEBIUS_HOST_DEVICE constexpr int64_t abort_at(int author) const {
    return 2 * bank_bytes + 8 * (3 * num_ranks + author);
  }
  MOEBIUS_HOST_DEVICE constexpr int64_t beat_at(int author) const {
    return 2 * bank_bytes + 8 * (4 * num_ranks + author);
  }
  MOEBIUS_HOST_DEVICE constexpr int64_t bytes() const { return align(beat_at(num_ranks)); }
};

// These sizes say what a source sends in a call.  All ranks must send the same, or they would
// misread each other.
struct LowLatencyKind {
  uint32_t row_bytes;    // without scales
  uint32_t scale_bytes;  // of a row; 65535 stands for more, too
  uint32_t room;         // the tokens of a rank at most
};

// A number below 65536 that travels with every call.  Kinds that differ in one field have different
// tags, since odd factors lose nothing modulo 65536; a test tries those that differ by a cast, too.
MOEBIUS_HOST_DEVICE constexpr uint32_t kind_tag(const LowLatencyKind& kind) {
  return (kind.room ^ kind.row_bytes / 2 * 0x6b2fu ^ kind.scale_bytes * 0xd3a5u) & 0xffffu;
}

// The shared memory of a block of dispatch, as byte offsets.
struct DispatchSharedMap {
  int32_t placement;     // u32 [E]; the RankMaskOf<rank_mask_words(R)> [max_tokens] come first
  int32_t ids;           // i32 [max_tokens * K], then 3 words that match no id
  int32_t counts;        // i32 [E]
  int32_t bases;         // i32 [L, R]
  int32_t num_messages;  // i32 [R]
  int64_t bytes;         // more than a block can have, if they do not fit into 31 bits

  static constexpr DispatchSharedMap make(const CudaLowLatencyLayout& layout,
                                          int64_t num_experts,
                                          int64_t num_local) {
    DispatchSharedMap m{};
    const auto add = [&](int64_t bytes) {
      m.bytes += (bytes + 15) / 16 * 16;
      return static_cast<int32_t>(m.bytes);
    };
    m.placement = add(8 * int64_t{layout.max_tokens} * rank_mask_words(layout.num_ranks));
    m.ids = add(4 * num_experts);
    m.counts = add(4 * (int64_t{layout.max_tokens} * layout.topk + 3));
    m.bases = add(4 * num_experts);
    m.num_messages = add(4 * num_local * layout.num_ranks);
    add(4 * int64_t{layout.num_ranks});
    return m;
  }
};

MOEBIUS_HOST_DEVICE constexpr int bank_of(uint32_t epoch) {
  return static_cast<int>(epoch & 1);
}

}  // namespace moebius::comm
