// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Dispatch and combine for high throughput: rows go to the ranks that own their experts, and come
// back summed.
// Place: inside prepare and finalize.
// Letters: T tokens of this rank, M copies received, H hidden, K top-k, R ranks, E experts, L local
// experts.
//
// A token goes to a rank once, however many of its experts live there; this is a *copy*.  Received
// rows are ordered by (source rank, source token).  This order is a contract: every group and every
// backend gives the same rows.  When ranks span nodes, one copy per (token, node) crosses to the
// rank of that node with this rank's local index (modulo the size of the node), which passes it on
// within the node.  Combine sums within a node first.
// Thread-safety: one thread at a time may use an object.  Making it, dispatch and combine are
// collective, with a known route too; the other calls are local.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "moebius/api.h"
#include "moebius/group.h"
#include "moebius/pending.h"
#include "moebius/row_arrivals.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius MOEBIUS_API {

// Where each expert lives.  A linear placement gives neighbours to a rank; the first E % R ranks
// own one more.
class ExpertPlacement {
 public:
  static ExpertPlacement linear(int64_t num_experts, int num_ranks);
  // Takes rank_of[e] for every expert; local indices follow the order of the global ids.  Both
  // throw InvalidArgument: no expert, no rank, a rank outside [0, num_ranks).
  static ExpertPlacement from_ranks(std::vector<int> rank_of, int num_ranks);

  // REQUIRES for the following: an expert in [0, num_experts()), a rank in [0, num_ranks()).
  int64_t num_experts() const { return static_cast<int64_t>(rank_of_.size()); }
  int num_ranks() const { return static_cast<int>(num_local_.size()); }
  int rank_of(int64_t expert) const { return rank_of_[static_cast<size_t>(expert)]; }
  int64_t local_index(int64_t expert) const { return local_[static_cast<size_t>(expert)]; }
  int64_t num_local(int rank) const { return num_local_[static_cast<size_t>(rank)]; }
  Tensor expert_map(int rank) const;  // i32 [E], local index or -1
  bool operator==(const ExpertPlacement&) const = default;

 private:
  std::vector<int> rank_of_;
  std::vector<int64_t> local_;
  std::vector<int64_t> num_local_;
};

// What a rank has sent, to itself too.
struct TransportStatistics {
  int64_t selections = 0;   // without the masked ones
  int64_t copies = 0;       // rows sent to ranks, one per (token, rank)
  int64_t node_copies = 0;  // rows that crossed to another node
};

// What the kernels of one direction may use.  CPUs ignore it.
struct DispatchConfig {
  int num_sms = 20;
  // CUDA: the warps of a block and the shared-memory stages of each warp; 0 stands for as many as
  // fit.
  int num_warps = 0, num_stages = 0;
  // These give the num_sms that was measured to be best on such a device.  They throw
  // InvalidArgument for less than one rank.
  static DispatchConfig for_dispatch(int num_ranks, Device device = {});
  static DispatchConfig for_combine(int num_ranks, Device device = {});
  void validate() const;  // throws InvalidArgument unless num_sms is even and at least 2
  bool operator==(const DispatchConfig&) const = default;
};

// Where tokens go, as a rank counts it from its own ids.
struct DispatchLayout {
  Tensor tokens_per_rank;    // i32 [R]: copies that this rank sends
  Tensor tokens_per_node;    // i32 [num_nodes]: tokens with an expert there
  Tensor tokens_per_expert;  // i32 [E]: selections
  Tensor is_token_in_rank;   // bool [T, R]
};

// What a dispatch did.  It is needed to combine, and to send other payloads along the same route.
class DispatchHandle {
 public:
  virtual ~DispatchHandle() = default;
  virtual int64_t num_tokens() const = 0;  // T
  virtual int64_t num_rows() const = 0;    // M, or the capacity of the call
  virtual int64_t most_rows() const = 0;   // num_rows() of the rank that has most
  virtual Tensor source_rank() const = 0;  // i32 [M]; on CUDA the host waits if there is a capacity
  virtual Tensor source_token() const = 0;  // i32 [M]
  // i32 [R, R]: the copies to rank `column` from the ranks 0 to `row`.  So source s has the rows
  // [prefix[s - 1][r], prefix[s][r]) of rank r, and prefix[R - 1] has the rows of all ranks.  On
  // CUDA it is complete when the dispatch is.
  virtual Tensor rank_prefix() const = 0;
};

// Memory of the caller's that a dispatch writes its result to.  A tensor that is not given is made
// by the library, which spares a copy: rows arrive in memory that ranks share.
struct DispatchInto {
  // As many as there are payloads, or none: [room, ...], each with its payload's dtype and rows.
  std::vector<Tensor> payloads;
  Tensor topk_ids;      // [room, K], of the dtype of the ids
  Tensor topk_weights;  // f32 [room, K]
};

struct DispatchInput {
  // Each is [T, ...] of any dtype with rows of a fixed size: hidden states, scales, LoRA ids, ...
  std::vector<Tensor> payloads;
  Tensor topk_ids = {};      // i32 or i64 [T, K] global, -1 = masked; all ranks give the same type
  Tensor topk_weights = {};  // f32 [T, K]; optional
  // The counts in expert_num_tokens are rounded up to a multiple of it; 1 to 65536.
  int64_t expert_alignment = 1;
  Event previous = {};  // the stream waits for it before anything is read
  // CUDA: the rows that outputs have room for, the same on every rank; 0 stands for as many as
  // arrive.  With a capacity no host waits, and the call may be captured in a CUDA graph.  It is
  // Unsupported over several nodes and on CPUs.  The expert ids of rows beyond M are -1, and what
  // else these rows hold is undefined.  More rows than the capacity are a CommError.
  int64_t capacity = 0;
  // CUDA with a capacity: the bytes of a row of combine's x.  The memory that combine needs is then
  // made by the dispatch, before kernels may fail.  With 0 the first combine makes it, and hosts
  // wait for each other there.
  int64_t combine_row_bytes = 0;
  // CUDA on one node, without a capacity, the same on every rank: rows come in waves when the rank
  // with most rows gets at least early_rows and at most most_early_rows of them; see
  // DispatchOutput::arrivals.  It then takes longer until all rows are here.
  int64_t early_rows = 0;       // 0: never in waves
  int64_t most_early_rows = 0;  // 0: any number
  // The outputs are then the first M rows of these tensors, which may not overlap the inputs.  They
  // have one room, the same on every rank and at least the capacity, if there is one; where the
  // rank with most rows gets more than that, all ranks throw InvalidArgument.  They cannot be
  // combined with early_rows.
  DispatchInto into = {};
  // What layout() has found for these ids, so that nothing is counted again; optional, and given by
  // all ranks or by none.  Then topk_ids (and with them topk_weights) may be left out: tokens go
  // where is_token_in_rank says, and the output has no ids.  Only is_token_in_rank and
  // tokens_per_expert are read, and they may come from elsewhere.
  // REQUIRES: where topk_ids are given, the layout is that of these ids.
  DispatchLayout layout = {};
  // CUDA: the host waits for the counts, too, and the output lists them.  CPUs always list them.
  bool lists_counts = false;
};

struct DispatchOutput {
  std::vector<Tensor> payloads;  // each [M, ...], or [capacity, ...]
  // [M, K] local index, -1 where the expert is elsewhere or masked; of the type that was given
  Tensor topk_ids;
  Tensor topk_weights;       // f32 [M, K]; if given
  Tensor expert_num_tokens;  // i32 [L], rounded up to a multiple of expert_alignment
  // The same [L] on the host; empty with a capacity, and on CUDA without lists_counts.
  std::vector<int64_t> expert_counts;
  Tensor num_rows;  // i32 [1] on the device: M; only with a capacity
  std::shared_ptr<const DispatchHandle> handle;
  Event event;  // the outputs are complete when it is
  // When rows come in waves, this says what may be read before `event`.  A stream that awaits wave
  // 0 finds topk_ids and topk_weights complete; expert_num_tokens are complete with `event` only.
  RowArrivals arrivals;
};

// Payloads that go along the route of an earlier dispatch.
struct CachedDispatchInput {
  std::vector<Tensor> payloads;  // as in DispatchInput
  Event previous = {};           // the stream waits for it before anything is read
  // Memory of the caller's for the result, as DispatchInto::payloads; outputs are the first M rows.
  // The tensors may not overlap the payloads, and have one room, the same on every rank.  Where
  // that is less than the handle's most_rows(), all ranks throw InvalidArgument, and nothing is
  // sent.
  std::vector<Tensor> into = {};
};

// Rows in which every selection has one, grouped by local expert: those of expert l are
// [expert_offsets[l], expert_offsets[l+1]), in order of (source rank, source token).  The rows that
// fill a group up to the alignment are zero.
struct ExpertOrder {
  std::vector<Tensor> payloads;  // each [rows, ...]
  Tensor expert_offsets;         // i32 [L + 1]
  Tensor copy_row;               // i32 [rows]: row in DispatchOutput order, -1 = padding
  Tensor slot;                   // i32 [rows]: k of the selection
};

struct CombineInput {
  Tensor x;  // [M, H] f32, bf16 or f16: what each copy contributes
  // f32 [M, K]; optional, summed beside x.  After a dispatch without ids any K will do, the same on
  // all ranks.
  Tensor topk_weights;
  std::array<Tensor, 2> bias;  // [T, H] of x's dtype; optional, added once
  Event previous;              // the stream waits for it before anything is read
  // x and bias are columns [first_column, first_column + H) of an out_x that is wider, so that
  // some columns can be on their way while others are computed.  On CUDA over several nodes it must
  // be 0.
  int64_t first_column = 0;
  // Has the shape and dtype of out_x; optional.  It is added to the sum after that has been
  // rounded, so the bits are those of an addition afterwards.  It may not overlap out_x.  CUDA on
  // one node only.
  Tensor addend = {};
  // f32 [T, K]; optional: where the sums of topk_weights go.  It may not overlap these.
  Tensor topk_weights_into = {};
};
struct CombineOutput {
  Tensor x;             // [T, H]: the sum over copies in order of rank, accumulated in f32 and
                        // rounded once per level (node, then total)
  Tensor topk_weights;  // f32 [T, K]; if given
  Event event;          // the outputs are complete when it is
};

// What calls need at most, for HighThroughput::size_hint().
struct HighThroughputNeeds {
  std::vector<int64_t> payload_row_bytes;  // the bytes of a row of each payload
  int64_t topk = 1;
  DType ids_dtype = DType::kI32;  // of topk_ids
  bool has_weights = true;        // dispatch sends topk_weights
  int64_t rows = 0;               // M of the rank that receives most in a call
  int64_t num_results = 1;        // results of dispatch that are alive at the same time
  int64_t combine_row_bytes = 0;  // the bytes of a row of combine's x; 0: nothing is combined
  int64_t combine_copies = 0;     // copies that the rank which sends most sends to other ranks
};

class HighThroughput {
 public:
  // Configs that are not given are those of DispatchConfig::for_dispatch and for_combine.  The
  // group must outlive the object.  The call is collective.  Throws InvalidArgument: a config that
  // validate() refuses, an expert on a rank that the group does not have, more ranks or SMs than
  // GPUs allow, and, on all ranks, placements that differ; Unsupported: a GPU that cannot be used.
  HighThroughput(Group& group,
                 ExpertPlacement placement,
                 std::optional<DispatchConfig> dispatch_config = std::nullopt,
                 std::optional<DispatchConfig> combine_config = std::nullopt);
  ~HighThroughput();

  Group& group() const;
  const ExpertPlacement& placement() const;
  // These say what the next calls use: what set_configs() has set last, or the constructor's.
  const DispatchConfig& dispatch_config() const;
  const DispatchConfig& combine_config() const;
  // The bytes of windows and buffers that this rank holds for the object now.  Memory is made by
  // the first call that needs it and kept; banks that live results have are among it.
  int64_t bytes() const;
  // The bytes of windows that each rank holds after such calls, among the ranks of one node.  CPUs:
  // where ranks do not share an address space, results are shown in windows, too; `shares_memory`
  // says whether they do (Group::shares_address_space).  Any GPU stands for all of them.
  static int64_t size_hint(const HighThroughputNeeds& needs,
                           const ExpertPlacement& placement,
                           Device device = {},
                           bool shares_memory = true);

  // Throws InvalidArgument for ids outside [-1, E), naming token and slot.  On CUDA no host waits:
  // they count nowhere, and a later call, or check(), throws.  The tensors of `into` are memory of
  // the caller's for those of the layout; what is not given is made by the library.
  DispatchLayout layout(const Tensor& topk_ids,
                        const Stream& stream,
                        const DispatchLayout& into = {}) const;

  // Outputs own their memory, or share a bank of a window that is not reused while they live.  So
  // any number of results and handles may be alive.  On the GPUs of one node there are 64 banks:
  // when the rank with most live results needs another one, all ranks throw InvalidArgument; a
  // handle keeps the bank of its result until it goes.  A launch of a Graph writes where its
  // recording did.  That memory goes to recorded calls only, which share it when outputs and
  // handles are gone: keep the recorded outputs that are read after a launch.
  //
  // On CUDA a call is enqueued, and its outputs are complete when their event is.  A host waits for
  // the counts of rows only: in dispatch, in the hook of dispatch_async, or in the next call of the
  // object.  The traffic of the group is counted where the host learns the counts, that is without
  // a capacity.
  //
  // dispatch, dispatch_cached, combine and their asynchronous forms throw
  //   InvalidArgument  a wrong shape, dtype or device; a handle of another kind; on all ranks, when
  //                    the rows of one have another size than those of rank 0; ids outside [-1, E).
  //                    On the GPUs of one node the last two are a CommError.
  //   Unsupported      what only one node or only GPUs can do
  //   CommError        a rank was lost, or rows exceeded the capacity; on a GPU it may be an error
  //                    of the calls before, see check()
  //   CudaError        an error of the runtime
  DispatchOutput dispatch(const DispatchInput& input, const Stream& stream);
  Pending<DispatchOutput> dispatch_async(const DispatchInput& input, const Stream& stream);
  // Sends payloads along the route of `handle`.  The output has payloads and an event, and no ids,
  // weights, counts or handle.
  DispatchOutput dispatch_cached(const CachedDispatchInput& input,
                                 const DispatchHandle& handle,
                                 const Stream& stream);
  Pending<DispatchOutput> dispatch_cached_async(const CachedDispatchInput& input,
                                                const DispatchHandle& handle,
                                                const Stream& stream);
  // `expert_alignment` is 1 to 65536.  On CUDA the host waits for the number of rows.
  ExpertOrder expert_order(const DispatchOutput& output,
                           int64_t expert_alignment,
                           const Stream& stream) const;

  // The sums are written into out_x, if it is given; it is [T, H], or wider, and may not overlap x,
  // nor a bias unless it is that.
  CombineOutput combine(const CombineInput& input,
                        const DispatchHandle& handle,
                        const Stream& stream,
                        const Tensor& out_x = {});
  Pending<CombineOutput> combine_async(const CombineInput& input,
                                       const DispatchHandle& handle,
                                       const Stream& stream,
                                       const Tensor& out_x = {});

  // Gives back the memory of results and handles that are gone, which is otherwise kept for the
  // next calls; windows stay.  On a GPU it is reused only after the calls so far, and the host does
  // not wait.  REQUIRES: no Graph that was recorded with this object is launched again.  Throws
  // CudaError.
  void trim();
  // Changes what the next calls use; calls under way keep what they have, and so do launches of a
  // Graph.  It is local, and ranks may differ.  Throws InvalidArgument as the constructor does.
  void set_configs(const DispatchConfig& dispatch_config, const DispatchConfig& combine_config);

  // Counts since construction; calls along a known route are left out.  On CUDA the host waits for
  // the calls so far.
  TransportStatistics statistics() const;
  // CUDA: throws the CommError that a kernel has reported, if any.  Every call without a capacity
  // does so first.  With a capacity some hosts may know of an error while others do not, so a
  // dispatch throws on all ranks together, and a combine leaves it to the next dispatch or to this.
  void check() const;

  struct State;  // internal

 private:
  std::unique_ptr<State> state_;
};

}  // namespace moebius
