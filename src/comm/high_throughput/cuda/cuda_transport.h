// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// High-throughput dispatch and combine on the GPUs of one node: the host's side of the kernels.
//
// A call is one launch, and the host picks its receive bank.  When the kernels find a bank too
// small they say so with the counts; every rank then adds a bank, and the call is launched again.
// Calls of an object are ordered, whatever streams they are given.  A dispatch whose counts the
// host does not know yet is *unsettled*; it is settled before the next call is launched.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/high_throughput/bank.h"
#include "comm/high_throughput/cuda/transport_base.h"
#include "comm/routing/row_layout.h"
#include "core/cuda/host_memory.h"
#include "moebius/dispatch.h"

namespace moebius::comm {

// The copies that go from one rank to another, where counts is [R, R].
inline int64_t copies_between(std::span<const uint32_t> counts,
                              int num_ranks,
                              int source,
                              int destination) {
  return counts[static_cast<size_t>(int64_t{source} * num_ranks + destination)];
}

// All copies that a rank gets.
inline int64_t copies_to(std::span<const uint32_t> counts, int num_ranks, int destination) {
  int64_t rows = 0;
  for (int source = 0; source < num_ranks; ++source) {
    rows += copies_between(counts, num_ranks, source, destination);
  }
  return rows;
}

// The most copies of a token that go to other ranks; topk 0 stands for any number of experts.
inline int64_t most_copies(int64_t topk, int num_ranks) {
  return topk > 0 ? std::min<int64_t>(topk, num_ranks - 1) : num_ranks - 1;
}

struct CudaHandle final : DispatchHandle {
  int rank = 0;
  int num_ranks = 1;
  int64_t tokens = 0;
  int64_t topk = 0;
  int64_t rows = 0;            // M, or the capacity
  bool counts_on_host = true;  // false with a capacity
  int64_t capacity = 0;
  int64_t most_tokens = 0;       // with a capacity: tokens of the rank that has most
  std::vector<uint32_t> counts;  // [R, R], from row to column; if counts_on_host
  // With a capacity.  Nobody can wait for an event of a recorded call, so it is then left empty.
  Event dispatched;
  Tensor source_tokens;  // i32 [M]
  // These are on the device; the dispatch writes them.
  Tensor index;               // i32 [T, R]: row of the copy there, -1 = none
  Tensor copies;              // i32 [R, R], as counts
  Tensor expert_num_tokens;   // i32 [L]
  Tensor num_rows_on_device;  // i32 [1]
  Tensor prefix;              // i32 [R, R]

  int64_t num_tokens() const override { return tokens; }
  int64_t num_rows() const override { return rows; }
  int64_t most_rows() const override;
  Tensor source_rank() const override;
  Tensor source_token() const override { return source_tokens; }
  Tensor rank_prefix() const override { return prefix; }
};

// In mapped memory, after the FaultRecord: HostCounts.
inline constexpr int64_t kHostCountsOffset = 256;
static_assert(sizeof(FaultRecord) <= kHostCountsOffset);

class CudaHighThroughput final : public CudaHighThroughputBase {
 public:
  // Collective.
  CudaHighThroughput(Group& group,
                     ExpertPlacement placement,
                     const DispatchConfig& for_dispatch,
                     const DispatchConfig& for_combine);
  ~CudaHighThroughput() override;

  Pending<DispatchOutput> dispatch_async(const DispatchInput& input, const Stream& stream) override;
  Pending<DispatchOutput> dispatch_cached_async(const CachedDispatchInput& input,
                                                const DispatchHandle& handle,
                                                const Stream& stream) override;
  void expect_configs(const Configs& next) override;
  Pending<CombineOutput> combine_async(const Combine& call) override;
  bool takes_addend() const override { return true; }
  TransportStatistics statistics() const override;
  void check() override;
  void trim() override { arena_.trim(last_stream_); }
  int64_t bytes() const override;

 private:
  // A dispatch: what it moves, and where to.
  struct Transfer {
    std::vector<Tensor> payloads;
    RowLayout layout;
    Stream stream;
    Launch launched = Launch::kNow;
    int64_t capacity = 0;
    int64_t combine_row_bytes = 0;
    DType id_dtype = DType::kI32;
    DispatchArgs args{};
    std::vector<uint32_t> counts = {};        // as in the handle; known when settled
    std::vector<int64_t> expert_counts = {};  // likewise, where they are asked for
    std::shared_ptr<CudaHandle> made = {};    // null along a known route
    int64_t bank = BankPool::kNone;
    std::shared_ptr<void> lease = nullptr;
    Event event = {};
    Tensor waves_of = {};  // i32 [T], see DispatchArgs
    Tensor wave_of = {};   // u8 [T, R], likewise
    bool is_settled = false;
    // These two are known when settled.
    bool is_in_waves = false;
    uint32_t epoch = 0;  // the number of the call
  };

  void load_kernels();
  void expect_sms(const DispatchConfig& config) const;
  // Why the host of a rank has given up; nothing when no news comes.
  std::optional<CommError> told_by_hosts() const;
  void order_after_last(const Stream& stream);
  // Records an event after what the stream has been given until now, for the next call.
  Event record(const Stream& stream);
  // Fills in the arguments that all launches have in common.
  void set_payloads(Transfer& transfer, int64_t num_tokens, bool may_go_in_waves) const;
  void set_waves(Transfer& transfer, const DispatchInput& input);
  void pick_bank(Transfer& transfer);
  void add_bank(int64_t bytes);
  // Picks a bank and launches.
  void launch(Transfer& transfer);
  // Launches.  The transfer is then unsettled, unless counts stay on the device.
  void start(const std::shared_ptr<Transfer>& transfer, int64_t num_tokens);
  // Waits for the counts of the unsettled dispatch, if there is one.  Adds banks and launches it
  // again where needed.
  void settle();
  // The same for a transfer that another call may have settled.
  void settle(const Transfer& transfer);
  HostCounts::Status await_counts(uint32_t tag, const Stream& stream);
  // In mapped memory, after the HostCounts: the rows of each expert.
  int64_t host_experts_offset() const {
    return kHostCountsOffset + HostCounts::bytes(group.size());
  }
  void read_counts(Transfer& transfer) const;
  RowArrivals arrivals_of(const Transfer& transfer) const;
  void count_copies(const Transfer& transfer) const;
  DispatchOutput receive(const Transfer& transfer) const;
  std::vector<Tensor> payload_fields(const Transfer& transfer, int64_t rows) const;
  // Makes room for a dispatch with a capacity and for its combine, or throws what a rank has found
  // wrong before.  All ranks do the same.  Returns the tokens of the rank that has most.
  int64_t agree_on_room(const Transfer& transfer, int64_t num_tokens);
  // The packed Fault that kernels have reported to this host, or 0.
  uint64_t reported_fault() const;
  // Makes sure that every rank has the slots of a combine: `slots` rows, with weights of so many
  // bytes beside them, and their flags.  The call is collective where they grow.
  void reserve_slots(int64_t slots,
                     int64_t bytes_of_row,
                     int64_t bytes_of_weights,
                     bool may_be_recorded);
  Tensor field(const Transfer& transfer,
               int index,
               DType dtype,
               const Shape& shape,
               int64_t layout_rows) const;

  int64_t shared_bytes_ = 0;  // the most that a block may have
  ControlLayout control_layout_;
  std::shared_ptr<Window> control_;
  BankPool banks_;
  int64_t num_banks_ = 0;
  std::unique_ptr<Window> slots_;  // rows pushed by combine
  std::unique_ptr<Window> flags_;
  // Once there was a call with a capacity, graphs may have recorded the windows of a combine; those
  // that are outgrown are then kept.
  bool keeps_windows_ = false;
  std::vector<std::unique_ptr<Window>> outgrown_;
  Tensor bank_table_;          // u64 [kMaxBanks, R]
  Tensor block_counts_;        // i32 [blocks, R + E]
  Tensor state_;               // CallState
  cuda::MappedMemory mapped_;  // see kHostCountsOffset
  SignalContext signals_;
  uint32_t tag_ = 0;
  std::shared_ptr<Transfer> unsettled_;
  std::optional<Stream> last_stream_;
  struct LastCall {
    void* stream = nullptr;
    Event event;
    uint64_t capture = 0;  // the capture in which it was recorded, or 0
  };
  LastCall last_call_;
  LastCall last_recorded_;
  std::optional<CommError> broken_;
};

// The handle of an object of this class.  Throws InvalidArgument for another kind.
const CudaHandle& own_cuda_handle(const DispatchHandle& handle);

}  // namespace moebius::comm
