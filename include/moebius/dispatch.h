// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Dispatch and combine, high throughput: rows go to the ranks that own their experts, and come back
// summed.
// Place: inside prepare and finalize.
// Letters: T tokens of this rank, M copies received, K top-k, R ranks, E experts, L local experts.
//
// A token goes to a rank once, however many of its experts live there (one *copy*).  Received rows
// are ordered by (source rank, source token): this is a contract, every group and backend gives the
// same rows.  When ranks span nodes, one copy per (token, node) crosses to the rank of that node
// with this rank's local index (modulo its size), which fans it out; combine reduces inside the
// node first.  Thread-safety: one thread at a time per object.  Dispatch and combine, along
// a handle too, are collective; the other calls are local.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "moebius/group.h"
#include "moebius/pending.h"
#include "moebius/row_arrivals.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius {

// Where each expert lives.  The default is linear; the first E % R ranks own one more.
class ExpertPlacement {
 public:
  static ExpertPlacement linear(int64_t num_experts, int num_ranks);
  // rank_of[e] for every expert; local indices follow the order of the global ids.
  static ExpertPlacement from_ranks(std::vector<int> rank_of, int num_ranks);

  int64_t num_experts() const { return static_cast<int64_t>(rank_of_.size()); }
  int rank_of(int64_t expert) const { return rank_of_[static_cast<size_t>(expert)]; }
  int64_t local_index(int64_t expert) const { return local_[static_cast<size_t>(expert)]; }
  int64_t num_local(int rank) const { return num_local_[static_cast<size_t>(rank)]; }
  Tensor expert_map(int rank) const;  // i32 [E], local index or -1

 private:
  std::vector<int> rank_of_;
  std::vector<int64_t> local_;
  std::vector<int64_t> num_local_;
};

// What a rank has sent, own rank included: a token with several experts on a rank goes there once.
struct TransportStatistics {
  int64_t selections = 0;   // masked ones left out
  int64_t copies = 0;       // rows to ranks
  int64_t node_copies = 0;  // rows that crossed to another node
};

// What the kernels of one direction may use; CPUs need none of it.
struct DispatchConfig {
  int num_sms = 20;
  // CUDA: warps of a block and shared-memory stages of each; 0: as many as fit.
  int num_warps = 0, num_stages = 0;
  // num_sms is what has been measured best on such a device.  Throws InvalidArgument for less than
  // one rank.
  static DispatchConfig for_dispatch(int num_ranks, Device device = {});
  static DispatchConfig for_combine(int num_ranks, Device device = {});
  void validate() const;  // throws InvalidArgument unless num_sms is even and at least 2
  bool operator==(const DispatchConfig&) const = default;
};

struct DispatchLayout {
  Tensor tokens_per_rank;    // i32 [R]: copies this rank sends
  Tensor tokens_per_node;    // i32 [num_nodes]
  Tensor tokens_per_expert;  // i32 [E]: selections
  Tensor is_token_in_rank;   // bool [T, R]
};

// What a dispatch did; needed to combine, and to send other payloads along the same way.
class DispatchHandle {
 public:
  virtual ~DispatchHandle() = default;
  virtual int64_t num_tokens() const = 0;   // T
  virtual int64_t num_rows() const = 0;     // M, or the capacity of the call
  virtual int64_t most_rows() const = 0;    // of any rank, so the same on every rank
  virtual Tensor source_rank() const = 0;   // i32 [M]; CUDA: with a capacity the host waits
  virtual Tensor source_token() const = 0;  // i32 [M]
};

struct DispatchInput {
  // Each [T, ...] of any dtype with rows of a fixed size: hidden states, scales, LoRA ids, ...
  std::vector<Tensor> payloads;
  Tensor topk_ids;      // i32 [T, K] global, -1 = masked
  Tensor topk_weights;  // f32 [T, K]; optional
  // 1 to 65536, here and in expert_order: expert_num_tokens are rounded up to a multiple of it.
  int64_t expert_alignment = 1;
  Event previous;  // the stream waits for it before anything is read
  // CUDA: rows to have room for, the same on every rank; 0: as many as arrive.  With it no host
  // waits, and the call may be captured in a CUDA graph; Unsupported over several nodes, and on
  // CPUs.  Expert ids of rows beyond M are -1, what else they hold is undefined; more rows are a
  // CommError.
  int64_t capacity = 0;
  // CUDA, with a capacity: bytes of a row of combine's x.  What combine needs is then made before
  // kernels may fail; else (0) by the first combine, where hosts wait for each other.
  int64_t combine_row_bytes = 0;
  // CUDA on one node, without a capacity, the same on every rank: where the rank with most gets at
  // least so many rows, they come in waves, see DispatchOutput::arrivals.  0: never.  It takes
  // longer until all rows are here.
  int64_t early_rows = 0;
  int64_t most_early_rows = 0;  // in waves, likewise; 0: any number
};

struct DispatchOutput {
  std::vector<Tensor> payloads;  // each [M, ...], or [capacity, ...]
  Tensor topk_ids;           // i32 [M, K] local index, -1 where the expert is elsewhere or masked
  Tensor topk_weights;       // f32 [M, K]; if given
  Tensor expert_num_tokens;  // i32 [L], rounded up to expert_alignment
  Tensor num_rows;           // i32 [1] on the device: M; only with a capacity
  std::shared_ptr<const DispatchHandle> handle;
  Event event;  // the outputs are complete when it is
  // Where rows come in waves: what may be read before, by whom.  A stream that awaits wave 0 finds
  // topk_ids and topk_weights complete; expert_num_tokens are complete with `event` only.
  RowArrivals arrivals;
};

// Rows once per selection, grouped by local expert: rows [expert_offsets[l], expert_offsets[l+1]),
// each in order of (source rank, source token).  Alignment rows are zero.
struct ExpertOrder {
  std::vector<Tensor> payloads;  // each [rows, ...]
  Tensor expert_offsets;         // i32 [L + 1]
  Tensor copy_row;               // i32 [rows]: row in DispatchOutput order, -1 = padding
  Tensor slot;                   // i32 [rows]: k of the selection
};

struct CombineInput {
  Tensor x;                    // [M, H] f32, bf16 or f16: what each copy contributes
  Tensor topk_weights;         // f32 [M, K]; optional, summed beside x
  std::array<Tensor, 2> bias;  // [T, H] of x's dtype; optional, added once
  Event previous;
  // x and bias are columns [first_column, first_column + H) of an out_x that is wider, so that
  // some columns can be on their way while others are computed.  CUDA over several nodes: 0.
  int64_t first_column = 0;
  // Shape and dtype of out_x; optional, added to the sum as it has been rounded, so that the bits
  // are those of an addition afterwards.  It may not overlap out_x.  CUDA, one node.
  Tensor addend = {};
};
struct CombineOutput {
  Tensor x;             // [T, H]: sum over copies in order of rank, f32 accumulation, rounded once
                        // per level (node, then total)
  Tensor topk_weights;  // f32 [T, K]; if given
  Event event;
};

class HighThroughput {
 public:
  // The group must outlive the object.  Collective where it has GPUs.  Throws InvalidArgument: a
  // config that validate() refuses, an expert on a rank that the group does not have, more ranks or
  // SMs than GPUs allow; Unsupported: a GPU that cannot be used.
  HighThroughput(Group& group,
                 ExpertPlacement placement,
                 DispatchConfig dispatch_config,
                 DispatchConfig combine_config);
  ~HighThroughput();

  // Local; throws InvalidArgument for ids outside [-1, E), naming token and slot: on CUDA the host
  // waits for the stream.
  DispatchLayout layout(const Tensor& topk_ids, const Stream& stream) const;

  // Outputs own their memory (or share a window bank that is not reused while they live), so any
  // number of results and handles may be alive; on the GPUs of one node 64 on the rank that has
  // most (then InvalidArgument on all), and a handle takes its result's place until it goes.  A
  // launch of a Graph writes where its recording did, though, whoever has the bank, the tables of
  // the handle or combine's sums since the recorded outputs and handle went: keep them as long as
  // the Graph is launched.
  //
  // CUDA: a call is enqueued; outputs are complete when their event is, and a host waits for no
  // more than the counts of rows.  With dispatch_async the hook does that, or the next call of this
  // object.  Traffic of the group is counted where the host learns the counts: without a capacity.
  //
  // These, dispatch_cached and combine throw InvalidArgument (shape, dtype, device, a handle of
  // another kind; on all ranks, where rows of one are of another size than rank 0's; ids outside
  // [-1, E); the last two are a CommError on the GPUs of one node), Unsupported (what only one node
  // or only GPUs have), CommError (a rank that was lost, or more rows than the capacity; on a GPU
  // of the calls before, see check()), CudaError.
  DispatchOutput dispatch(const DispatchInput& input, const Stream& stream);
  Pending<DispatchOutput> dispatch_async(const DispatchInput& input, const Stream& stream);
  // Same routing as `handle`: payloads only, no ids, weights, counts or new handle.
  DispatchOutput dispatch_cached(std::span<const Tensor> payloads,
                                 const DispatchHandle& handle,
                                 const Stream& stream);
  // On CUDA the host waits for the number of rows.
  ExpertOrder expert_order(const DispatchOutput& output,
                           int64_t expert_alignment,
                           const Stream& stream) const;

  // out_x: optional [T, H], or wider, to write into.
  CombineOutput combine(const CombineInput& input,
                        const DispatchHandle& handle,
                        const Stream& stream,
                        const Tensor& out_x = {});
  Pending<CombineOutput> combine_async(const CombineInput& input,
                                       const DispatchHandle& handle,
                                       const Stream& stream,
                                       const Tensor& out_x = {});

  // Since construction; calls along a known route are not counted.  On CUDA the host waits for the
  // calls so far.
  TransportStatistics statistics() const;
  // CUDA: throws the CommError a kernel has reported, if any; every call does so first.  With a
  // capacity a dispatch does on all ranks together, and a combine leaves it to the next dispatch or
  // to this: some hosts may know already, others not yet.
  void check() const;

  struct State;  // internal

 private:
  std::unique_ptr<State> state_;
};

}  // namespace moebius
