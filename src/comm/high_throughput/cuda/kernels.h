// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The arguments and launchers of the high-throughput kernels.  All pointers are device addresses.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "comm/device/signals.h"
#include "comm/high_throughput/cuda/kernel_plan.h"
#include "core/ids.h"
#include "moebius/dtype.h"

namespace moebius::comm {

// The state of an object on a rank, in device memory, zero at first.  Only kernels advance it, so a
// CUDA graph may replay them.
struct CallState {
  uint32_t epoch;     // calls so far
  uint32_t combines;  // those of them that were combines
  uint32_t refresh;   // the epoch in which `arrived` was last refreshed
  // How many blocks of the launch have come to each point; the last one puts it back to 0.
  uint64_t counted;
  uint64_t dispatched;
  uint64_t combined;
  uint64_t waves_sent[kWaves];
  // For TransportStatistics; call_selections is of the dispatch under way.
  uint64_t call_selections;
  uint64_t selections;
  uint64_t copies;
  // The tokens that warps of a combine have taken, by parity of `combines`; a combine clears the
  // counter of the next one.
  unsigned long long taken[2];
};

struct DispatchArgs {
  SignalContext signals;  // its windows are the control windows
  ControlLayout control_layout;
  std::byte* const* banks;  // [kMaxBanks, R]: every rank's address of each bank
  CallState* state;

  int64_t num_tokens;
  int num_experts;
  bool is_cached;           // along a known route
  int topk;                 // 0: no ids
  Ids ids;                  // [T, K]
  const float* weights;     // [T, K] or null
  const int32_t* rank_of;   // [E]
  const int32_t* local_of;  // [E]
  // What the caller has counted, or null.
  const bool* is_in;             // [T, R]: the token goes to the rank
  const int32_t* selections_of;  // [E]; with is_in
  int num_local;                 // experts of this rank
  int expert_alignment;

  // Fields are as in RowLayout; only payloads have a source.
  int num_payloads;
  int num_fields;
  uint32_t field_bytes[kMaxFields];
  const std::byte* source[kMaxFields];
  uint32_t in_bulk;  // bit per payload
  int num_items;
  StageItem items[kMaxItems];
  Segment segments[kMaxSegments];
  DispatchShared shared;

  // Rows come in waves when early_rows is not 0, the rank with most rows gets from early_rows to
  // most_early_rows of them, and all ranks have the same two numbers.
  uint32_t early_rows;
  uint32_t most_early_rows;
  int experts_per_wave;
  uint32_t* waves_of;  // scratch, [T]: a bit for each wave with copies of the token
  uint8_t* wave_of;    // scratch, [T, R]: the wave of the copy there, if there is one

  uint32_t bank;           // this rank's bank of this call
  uint32_t bank_units;     // its size in units of 256 bytes
  uint32_t capacity_rows;  // 0: as many as arrive
  uint32_t row_bytes;      // of all fields

  // The tables of the handle.  A dispatch writes them; along a known route they are read.
  int32_t* index;              // [T, R]: row of the copy there, -1 = none
  uint32_t* copies;            // [R, R], from row to column
  int32_t* expert_num_tokens;  // [num_local]
  int32_t* num_rows;           // [1]
  int32_t* rank_prefix;        // [R, R], see DispatchHandle

  uint32_t* block_counts;  // scratch, [blocks, R + E]
  HostCounts* host;        // mapped; null: nobody waits for it
  uint32_t* host_experts;  // mapped, [num_local]: as expert_num_tokens; null: nobody asks
  uint32_t host_tag;
};

struct CombineArgs {
  SignalContext signals;  // its windows are the control windows
  ControlLayout control_layout;
  std::byte* const* slots;  // [R]: every rank's window of pushed rows
  std::byte* const* flags;  // [R]: every rank's window of chunk flags
  CallState* state;

  // The tables of the handle.
  const uint32_t* copies;  // [R, R]
  const int32_t* index;    // [T, R]
  int64_t num_tokens;
  int topk;  // of the weights; 0: there are none

  DType dtype;  // f32, f16 or bf16
  uint32_t row_bytes;
  uint32_t rows_per_chunk;
  bool in_bulk;              // x goes by bulk copies
  bool is_aligned;           // rows of x, bias, addend and out are whole 16-byte words
  const std::byte* x;        // [M, H]
  const float* weights;      // [M, K]; null where there are none, or no rows
  const std::byte* bias[2];  // [T, H] or null
  const std::byte* addend;   // as out, or null
  std::byte* out;            // [T, H], rows out_step bytes apart
  int64_t out_step;
  float* out_weights;  // [T, K] or null
  CombineShared shared;
};

// Make the kernels resident on the current device and let them have their shared memory.  Call
// these before any rank of this process may have a kernel that waits, since loading may
// synchronise.
cudaError_t load_dispatch_kernels(int num_ranks, int64_t shared_bytes);
cudaError_t load_combine_kernels(int num_ranks, int64_t shared_bytes);
void load_stop_kernel(int device);

cudaError_t launch_dispatch(const DispatchArgs& args, int num_blocks, cudaStream_t stream);
cudaError_t launch_combine(const CombineArgs& args, int num_blocks, cudaStream_t stream);

// Tells all ranks that the host of this rank has given up, unless a fault was raised before.  Why:
// it launches no kernel from then on, so the kernels of others would wait for it, and then blame
// it.
cudaError_t launch_stop(const SignalContext& signals, const CallState* state, cudaStream_t stream);

}  // namespace moebius::comm
