// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Dispatch and combine for low latency: few tokens and a fixed capacity, so no counts are exchanged
// before rows.
// Place: inside prepare and finalize.
// Letters: T tokens of this rank, K top-k, R ranks, E experts, L local experts, H hidden.
//
// Rows arrive in the batched format [L, max_tokens * R, H].  Those of an expert stand at its front,
// in order of (source rank, source token); rows past the count are garbage.  Each send half uses
// one of two banks in turn, so two results may be alive; a third is refused with InvalidArgument.
// Results may outlive the object; on GPUs, once their streams are done.
// Thread-safety: one thread at a time may use an object.  Dispatch and combine are collective among
// the ranks that are not excluded (set_dead).
//
// On the GPUs of one node no host waits, and all calls may be captured in a CUDA graph, unless more
// than 4 ranks share a GPU (docs/protocol.md).  Over several nodes hosts wait for counts.  An
// object's calls go to one stream, or the caller orders its streams by `previous` and `event`.  On
// the GPUs of one node the bytes are not in the traffic of the group; see statistics().
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "moebius/api.h"
#include "moebius/dispatch.h"
#include "moebius/group.h"
#include "moebius/low_latency_rows.h"

namespace moebius MOEBIUS_API {

struct LowLatencyOptions {
  int64_t max_tokens = 128;  // per rank and call
  int64_t hidden = 0;        // H > 0, elements
  int64_t topk = 1;
  DType in_dtype = DType::kBF16;  // bf16, f16 or f32
  int num_sms = 0;  // GPUs: the most blocks a call may use, one per SM; 0: as many as there are SMs
  LowLatencySum sum = LowLatencySum::kSelections;
  // Ranks of one node: a call that misses a rank, because it has left or its deadline has passed,
  // excludes it, as set_dead() does, and goes on without it instead of throwing the CommError.  So
  // does every survivor, in this call or in the next; dead_ranks() tells.  The rank itself gets the
  // CommError.  On GPUs kernels do so while the host goes on, also in a graph that is replayed, and
  // each call launches one kernel more.  The same on all ranks.
  bool excludes_missing = false;
  bool operator==(const LowLatencyOptions&) const = default;
};

// What a dispatch did.  It is needed to combine.
class LowLatencyHandle {
 public:
  virtual ~LowLatencyHandle() = default;
};

// Memory of the caller's that a dispatch writes its result to, in the shapes and dtypes of
// LowLatencyDispatchOutput, which follow from the rows, the cast and the room of the call.  What is
// not given is the library's.  The rows go there directly.  On GPUs the addresses of x and x_scale
// are multiples of 16.
struct LowLatencyInto {
  Tensor x = {};
  Tensor x_scale = {};
  Tensor expert_num_tokens = {};
  Tensor row_tags = {};
  Tensor source_token = {};
  Tensor source_ranges = {};
};

struct LowLatencyDispatchInput {
  // [T, H] in_dtype, T <= max_tokens.  Without a cast also rows that were quantized before, of any
  // dtype whose rows have no more bytes, and an even number of them.
  Tensor x = {};
  // i32 or i64 [T, K] global, -1 = masked.  A token that names an expert several times gets a row
  // for each time.  All tokens of a rank may name an expert max_tokens times.
  Tensor topk_ids = {};
  LowLatencyCast cast = LowLatencyCast::kNone;
  // i32 [T]: a word of the caller's that travels with the token; each rank may give some or none.
  Tensor row_tags = {};
  Event previous = {};  // the stream waits for it before anything is read
  // The output has an event.  Recording one takes the host some microseconds on a GPU, which a step
  // of decode pays only where somebody waits for the event.
  bool records_event = false;
  // [T, G] of any dtype: scales of rows that were quantized before; optional.  They travel beside
  // the rows, and the two have no more bytes than a row of in_dtype, or of the cast.
  Tensor x_scale = {};
  LowLatencyScales scales = LowLatencyScales::kRows;  // of a cast
  // The room of this call, at most that of the options and the same on all ranks: outputs have
  // max_tokens * R rows per expert.  0: that of the options.
  int64_t max_tokens = 0;
  // Statistics of the caller; optional.  The call adds to them.
  Tensor received = {};  // i32 [L]: rows received per local expert
  // i64 [R]: microseconds from the begin of the receive half (of the call, where both halves are
  // one kernel) until a rank was heard of: all its rows are here, or on a GPU their number.  On
  // GPUs of several nodes nothing is added; ranks of other nodes are not measured.
  Tensor wait_us = {};
  // These tensors may not overlap the inputs.  The handle of the output still takes one of the two
  // results, but does not keep these tensors.
  LowLatencyInto into = {};
};

struct LowLatencyDispatchOutput {
  // rows = max_tokens * R, with the room of the call.
  Tensor x;                  // [L, rows, H] in_dtype, f8e4m3, or the dtype that was given
  Tensor x_scale;            // with a cast see LowLatencyScales; [L, rows, G] as they were given
  Tensor expert_num_tokens;  // i32 [L]
  Tensor row_tags;           // i32 [L, rows]: tags of the rows' tokens, -1 without one
  Tensor source_token;       // i32 [L, rows]: the token's index on its rank
  // i64 [L, R]: the rows of a local expert that come from a rank, as begin << 32 | count.
  Tensor source_ranges;
  std::shared_ptr<const LowLatencyHandle> handle;  // keeps the bank
  Event event = {};  // with records_event: the outputs are complete when it is
};

struct LowLatencyCombineInput {
  Tensor x;                    // [L, rows, H] in_dtype, rows in dispatch's order
  Tensor topk_ids;             // i32 or i64 [T, K], as given to dispatch
  Tensor topk_weights;         // f32 [T, K]
  Event previous = {};         // the stream waits for it before anything is read
  bool records_event = false;  // as for dispatch
  Tensor wait_us = {};         // i64 [R], optional: as for dispatch, until all rows are back
  // The same on all ranks.  kLogFmt10 needs hidden to be a multiple of 128, and x at an address
  // that is a multiple of 16 on GPUs.  It is Unsupported for sums per rank and on GPUs of several
  // nodes.
  LowLatencyCoding coding = LowLatencyCoding::kNone;
};
struct LowLatencyCombineOutput {
  // [T, H] in_dtype, summed as LowLatencySum says; masked selections and excluded ranks add nothing
  Tensor x;
  Event event = {};  // with records_event: x is complete when it is
};

class LowLatency {
 public:
  // The group must outlive the object.  The call is collective.  Throws InvalidArgument:
  // max_tokens, hidden or topk < 1, sizes that no machine has room for, in_dtype other than bf16,
  // f16 and f32, an expert on a rank that the group does not have, and, on all ranks, options or
  // placements that differ; Unsupported: sums per rank or excludes_missing over several nodes, more
  // than a GPU's kernels have room for.
  LowLatency(Group& group, ExpertPlacement placement, const LowLatencyOptions& options);
  ~LowLatency();

  Group& group() const;
  const ExpertPlacement& placement() const;
  const LowLatencyOptions& options() const;
  // The bytes of windows and buffers that this rank holds for the object now.  Rows of results are
  // made by the first calls that need them and kept.
  int64_t bytes() const;
  // The bytes of window memory that each rank needs for these options, with `num_experts` placed
  // evenly.  Any GPU stands for all of them.  Throws InvalidArgument as the constructor does, also
  // for num_ranks or num_experts < 1.
  static int64_t size_hint(const LowLatencyOptions& options,
                           int num_ranks,
                           int64_t num_experts,
                           Device device = {});

  // The send half of dispatch_async runs in the call.  On CPUs its hook waits for the rows and
  // counts, and receive unpacks them; on GPUs the hook enqueues both.
  // Throws InvalidArgument: a wrong shape, dtype or device; T > max_tokens; an expert that is named
  // more often than max_tokens (on the GPUs of one node see check()); a hidden that is no multiple
  // of 128 with a cast; a third live result.  The message has both values.
  // Throws CommError: a rank was lost; on a GPU it may have been in a call before.
  LowLatencyDispatchOutput dispatch(const LowLatencyDispatchInput& input, const Stream& stream);
  Pending<LowLatencyDispatchOutput> dispatch_async(const LowLatencyDispatchInput& input,
                                                   const Stream& stream);

  // The sums are written into out_x, if it is given; it is [T, H] in_dtype.  Each dispatch is
  // combined once: its flags cannot tell two combines apart.  Throws InvalidArgument: a wrong
  // shape, dtype or device, a handle that is not of this object's dispatch or was combined before;
  // CommError as dispatch does.  A graph that combines a dispatch of before a second time ends with
  // a CommError, which names this rank.
  LowLatencyCombineOutput combine(const LowLatencyCombineInput& input,
                                  const LowLatencyHandle& handle,
                                  const Stream& stream,
                                  const Tensor& out_x = {});
  Pending<LowLatencyCombineOutput> combine_async(const LowLatencyCombineInput& input,
                                                 const LowLatencyHandle& handle,
                                                 const Stream& stream,
                                                 const Tensor& out_x = {});

  // [L, rows, H] in_dtype: memory for the x of the combine of this dispatch.  A combine sends any x
  // from where it is, without a copy on this rank; this one need not be allocated by the caller.
  // It is the same for every other dispatch, and lives as long as the tensor or the handle.
  Tensor combine_buffer(const LowLatencyHandle& handle);

  // On a GPU calls return before their work is done, so a failure is found later: by the next call,
  // or by this one, which throws what has become known until now.  It is a CommError for ids
  // outside [-1, E) and for experts that are named too often, too.  On the CPU and over several
  // nodes the call itself throws InvalidArgument for these two.
  void check() const;

  // Excludes a rank, or takes it back: nothing is sent to an excluded rank or awaited from it, here
  // and in the group.  Every live rank must set the same ones before its next call.  This works
  // among the ranks of one node only, since messages between nodes are collective.  Throws
  // InvalidArgument: a rank outside the group, or the own one.
  void set_dead(int rank, bool dead);
  // With excludes_missing on GPUs: as of the calls whose work is done.
  std::vector<bool> dead_ranks() const;

  // Counts since construction or reset; on a GPU, of the calls whose work is done.
  TransportStatistics statistics() const;
  Tensor expert_statistics() const;  // i64 [L]: rows received per local expert
  void reset_statistics();

  struct State;  // internal

 private:
  friend class Transports;
  explicit LowLatency(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace moebius
