// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Low latency over several nodes: kernels that make and read messages.  The messages are those of
// the CPU (comm/low_latency/cpu/message_layout.h), and NCCL or copies carry them.  All pointers are
// device addresses.  Everything is enqueued, and nothing waits for a peer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/device/signals.h"
#include "comm/low_latency/cpu/message_layout.h"
#include "comm/low_latency/logfmt.h"
#include "core/ids.h"
#include "moebius/dtype.h"
#include "moebius/low_latency_rows.h"
#include "moebius/stream.h"

namespace moebius::comm {

// What kernels need of LowLatencyLayout.
struct Mailboxes {
  int num_ranks;
  int max_tokens;
  int topk;
  int hidden;
  int64_t mailbox_bytes;
  int64_t message_bytes;
  int64_t row_offset;
  LowLatencyRow row;  // of the messages of a dispatch
  int64_t row_bytes;  // in in_dtype

  // For calls with these rows and this room.
  Mailboxes(const LowLatencyLayout& layout, const LowLatencyRow& rows, int64_t room)
      : num_ranks(layout.num_ranks),
        max_tokens(static_cast<int>(room)),
        topk(static_cast<int>(layout.topk)),
        hidden(static_cast<int>(layout.hidden)),
        mailbox_bytes(layout.mailbox_bytes(rows, room)),
        message_bytes(layout.message_bytes(rows)),
        row_offset(layout.row_offset()),
        row(rows),
        row_bytes(layout.row_bytes()) {}

  MOEBIUS_HOST_DEVICE int64_t num_messages() const { return int64_t{num_ranks} * max_tokens; }
};

// How the rows of a combine return: in in_dtype, or coded.
struct ReturnedRows {
  bool is_coded;
  int64_t row_bytes;
  int64_t message_bytes;  // {token i32, slot i32, 8 bytes of padding, row}, a multiple of 16

  static constexpr int64_t kHeader = 16;

  ReturnedRows(const Mailboxes& boxes, LowLatencyCoding coding)
      : is_coded(coding == LowLatencyCoding::kLogFmt10),
        row_bytes(is_coded ? logfmt::row_bytes(boxes.hidden) : boxes.row_bytes),
        message_bytes(LowLatencyLayout::align(kHeader + row_bytes, 16)) {}
};

// Fills one mailbox for each rank from the tokens of this one.
struct SendMessagesArgs {
  Mailboxes boxes;
  DType dtype;
  LowLatencyCast cast;
  int num_tokens;
  const std::byte* x;        // [T, H]
  const std::byte* x_scale;  // [T, scale_bytes] where scales are given, else null
  Ids ids;                   // [T, K]
  const int32_t* tags;       // [T] or null
  const int32_t* index;      // [T, R]: place of the token's message for a rank, -1 = none
  const int32_t* copies;     // [R]
  std::byte* out;            // [R] mailboxes
};
void launch_send_messages(const SendMessagesArgs& args, const Stream& stream);

// Makes the rows of this rank's experts from the mailboxes of all ranks.
struct UnpackArgs {
  Mailboxes boxes;
  const std::byte* in;      // [R] mailboxes, by source
  const int32_t* rank_of;   // [E]
  const int32_t* local_of;  // [E]
  int num_experts;
  int rank;
  int num_local;
  // For each selection of a message, [R, max_tokens, K]; rows is -1 for one that is not here.
  int32_t* rows;          // its row in [L, max_tokens * R]
  int32_t* numbers;       // its place among the source's selections here
  int32_t* from_sources;  // [R]: how many selections of the source are here
  // These outputs go to the caller.
  LowLatencyScales scales;
  std::byte* out;        // rows of row.value_bytes
  std::byte* out_scale;  // see LowLatency::State::scale_spec
  int32_t* out_tags;
  int32_t* out_tokens;
  int32_t* out_count;    // [L]
  int64_t* out_ranges;   // [L, R]
  int32_t* received;     // [L] or null
  int64_t* expert_rows;  // [L]: rows received in all calls
};
void launch_unpack(const UnpackArgs& args, const Stream& stream);

// Makes the messages that bring the rows of each source's selections back to it.
struct ReturnRowsArgs {
  Mailboxes boxes;
  ReturnedRows returned;
  DType dtype;
  const std::byte* in;  // the mailboxes that were unpacked
  const int32_t* rows;
  const int32_t* numbers;
  const std::byte* x;               // [L, max_tokens * R, H]
  std::byte* block[kMaxCudaRanks];  // a message to each source
};
void launch_return_rows(const ReturnRowsArgs& args, const Stream& stream);

// Weights and sums each token's returned rows in order of their slots, in f32, and rounds once.
struct SumReturnedArgs {
  Mailboxes boxes;
  ReturnedRows returned;
  DType dtype;
  int num_tokens;
  const std::byte* block[kMaxCudaRanks];  // the message of each rank
  int64_t num_rows[kMaxCudaRanks];
  const std::byte** places;  // [T, K]: scratch
  const float* weights;      // [T, K]
  std::byte* out;            // [T, H]
};
void launch_sum_returned(const SumReturnedArgs& args, const Stream& stream);

void load_message_kernels(int device, DType dtype);

}  // namespace moebius::comm
