// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Dispatch and combine, low latency: few tokens, fixed capacity, no exchange of counts before rows.
// Letters: T tokens of this rank, K top-k, R ranks, E experts, L local experts, H hidden.
//
// Rows arrive in the batched format [L, max_tokens * R, H], those of an expert at its front in
// order of (source rank, source token); rows past the count are garbage.  Two results may be alive
// (each send half uses one of two banks in turn); a third is an InvalidArgument, not corruption.
// They may outlive the object; on GPUs, once their streams are done.
// Thread-safety: one thread at a time per object.  Collective, but for ranks in the mask.
//
// On GPUs no host waits and all calls may be captured in a CUDA graph, where no more than 5 ranks
// share a GPU (docs/protocol.md); on one node: over several, hosts wait for counts.  An object's
// calls go to one stream, or the caller orders its streams by events.  On one node their bytes are
// not in the traffic of the group, see statistics().
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "moebius/dispatch.h"
#include "moebius/group.h"

namespace moebius {

// What combine sends back and how it sums; f32, in order, from 0.
enum class LowLatencySum : uint8_t {
  kSelections,  // every selection's row; weighted and summed in order of slots, rounded once
  // Weighted and summed in order of slots by the rank of the experts, rounded; these in order of
  // rank by the token's, rounded.  One row per copy crosses instead of one per selection; the
  // send half waits for the weights of the live ranks.  One node, else Unsupported.
  kRanks,
};

struct LowLatencyOptions {
  int64_t max_tokens = 128;  // per rank and call
  int64_t hidden = 0;
  int64_t topk = 1;
  DType in_dtype = DType::kBF16;
  int num_sms = 0;  // GPUs: the most blocks a call may use, one per SM; 0: as many as there are SMs
  LowLatencySum sum = LowLatencySum::kSelections;
};

enum class LowLatencyCast : uint8_t {
  kNone,      // rows travel in in_dtype
  kFp8,       // e4m3 with f32 scales per 1x128: amax floored at 1e-4, q = x * (448 / amax)
  kFp8Ue8m0,  // scales rounded up to powers of two
  // With either, a group with an infinity has an infinite scale, and so reads as NaN.
};

// What a dispatch did; needed to combine.
class LowLatencyHandle {
 public:
  virtual ~LowLatencyHandle() = default;
};

struct LowLatencyDispatchInput {
  Tensor x;  // [T, H] in_dtype, T <= max_tokens
  // i32 [T, K] global, -1 = masked.  A token may name an expert more than once, a row for each
  // time; a rank has room for max_tokens rows of each expert.
  Tensor topk_ids;
  LowLatencyCast cast = LowLatencyCast::kNone;
  // i32 [T], optional on each rank by itself: a word of the caller's that travels with the token.
  Tensor row_tags = {};
  Event previous = {};  // the stream waits for it before anything is read
};

struct LowLatencyDispatchOutput {
  Tensor x;                  // [L, max_tokens * R, H] in_dtype or f8e4m3
  Tensor x_scale;            // f32 [L, max_tokens * R, H / 128] with a cast
  Tensor expert_num_tokens;  // i32 [L]
  Tensor row_tags;           // i32 [L, max_tokens * R]: the tags of the rows' tokens, -1 without
  std::shared_ptr<const LowLatencyHandle> handle;  // keeps the bank
  Event event = {};  // the outputs are complete when it is; see DispatchOutput::event
};

struct LowLatencyCombineInput {
  Tensor x;             // [L, max_tokens * R, H] in_dtype, rows in dispatch's order
  Tensor topk_ids;      // i32 [T, K], as given to dispatch
  Tensor topk_weights;  // f32 [T, K]
  Event previous = {};  // the stream waits for it before anything is read
};
struct LowLatencyCombineOutput {
  Tensor x;  // [T, H] in_dtype, summed as LowLatencySum says; -1 and masked ranks add nothing
  Event event = {};  // x is complete when it is
};

class LowLatency {
 public:
  // The group must outlive the object.  Collective.  Throws InvalidArgument: max_tokens, hidden or
  // topk < 1, in_dtype other than bf16, f16 and f32, an expert on a rank that the group does not
  // have; Unsupported: sums per rank over several nodes, more than a GPU's kernels have room for.
  LowLatency(Group& group, ExpertPlacement placement, const LowLatencyOptions& options);
  ~LowLatency();

  // Bytes of window memory per rank for these options; rank count and experts (evenly placed) as
  // given; any GPU stands for all.
  static int64_t size_hint(const LowLatencyOptions& options,
                           int num_ranks,
                           int64_t num_experts,
                           Device device = {});

  // The send half runs in the call; hook waits for the rows and counts; receive unpacks.
  // Throws InvalidArgument: shape, dtype, device, T > max_tokens (both values), an expert named
  // more often than that (the same; on a GPU see check()), hidden not a multiple of 128 with a
  // cast, a third live result; CommError: a rank was lost, on a GPU in a call before.
  LowLatencyDispatchOutput dispatch(const LowLatencyDispatchInput& input, const Stream& stream);
  Pending<LowLatencyDispatchOutput> dispatch_async(const LowLatencyDispatchInput& input,
                                                   const Stream& stream);

  // out_x: optional [T, H] in_dtype, to write into.  Throws InvalidArgument: shape, dtype, device,
  // a handle that is not of this object's dispatch; CommError as dispatch.
  LowLatencyCombineOutput combine(const LowLatencyCombineInput& input,
                                  const LowLatencyHandle& handle,
                                  const Stream& stream,
                                  const Tensor& out_x = {});
  Pending<LowLatencyCombineOutput> combine_async(const LowLatencyCombineInput& input,
                                                 const LowLatencyHandle& handle,
                                                 const Stream& stream,
                                                 const Tensor& out_x = {});

  // On a GPU calls return before their work is done, so a failure is found later: by the next call,
  // or by this one, which says what has become known until now.  Throws CommError, also for ids
  // outside [-1, E) and experts named too often, where a call on the CPU, or over several nodes,
  // throws InvalidArgument.
  void check() const;

  // Ranks given up: nothing is sent to them or awaited from them, here and in the group.  Every
  // live rank sets the same mask before its next call.  Works among ranks of one node: messages
  // between nodes are collective.  Throws InvalidArgument: a rank outside the group, or the own
  // one.
  void set_dead(int rank, bool dead);
  std::vector<bool> dead_ranks() const;

  // Since construction or reset.  On a GPU: of the calls whose work is done.
  TransportStatistics statistics() const;
  Tensor expert_statistics() const;  // i64 [L]: rows received per local expert
  void reset_statistics();

  struct State;  // internal

 private:
  std::unique_ptr<State> state_;
};

}  // namespace moebius
