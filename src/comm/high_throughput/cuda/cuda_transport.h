// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// High-throughput dispatch and combine on GPUs of one node: the host's side of the kernels.
//
// A call is one launch.  Its receive bank is picked by the host; what the kernels of all ranks find
// out about banks that are too small comes back with the counts, every rank adds one, and the call
// is launched again.  Calls of an object are ordered, whatever streams they are given: one whose
// counts the host does not know yet is *unsettled*, and settled before the next is launched.
#pragma once

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

// Copies from one rank to another, of counts [R, R].
inline int64_t copies_between(std::span<const uint32_t> counts,
                              int num_ranks,
                              int source,
                              int destination) {
  return counts[static_cast<size_t>(int64_t{source} * num_ranks + destination)];
}

// All that a rank gets.
inline int64_t copies_to(std::span<const uint32_t> counts, int num_ranks, int destination) {
  int64_t rows = 0;
  for (int source = 0; source < num_ranks; ++source) {
    rows += copies_between(counts, num_ranks, source, destination);
  }
  return rows;
}

struct CudaHandle final : DispatchHandle {
  int rank = 0;
  int num_ranks = 1;
  int64_t tokens = 0;
  int64_t topk = 0;
  int64_t rows = 0;            // M, or the capacity
  bool counts_on_host = true;  // else there is a capacity
  int64_t capacity = 0;
  int64_t most_tokens = 0;       // of any rank; where there is a capacity
  std::vector<uint32_t> counts;  // [R, R], from row to column; where counts_on_host
  Event dispatched;      // else; that of a recorded call nobody can wait for, so it is left out
  Tensor source_tokens;  // i32 [M]
  // On the device, written by the dispatch.
  Tensor index;               // i32 [T, R]: row of the copy there, -1 = none
  Tensor copies;              // i32 [R, R], as counts
  Tensor expert_num_tokens;   // i32 [L]
  Tensor num_rows_on_device;  // i32 [1]

  int64_t num_tokens() const override { return tokens; }
  int64_t num_rows() const override { return rows; }
  int64_t most_rows() const override;
  Tensor source_rank() const override;
  Tensor source_token() const override { return source_tokens; }
};

class CudaHighThroughput final : public CudaHighThroughputBase {
 public:
  // Collective.
  CudaHighThroughput(Group& group,
                     ExpertPlacement placement,
                     const DispatchConfig& dispatch_config,
                     const DispatchConfig& combine_config);
  ~CudaHighThroughput() override;

  Pending<DispatchOutput> dispatch_async(const DispatchInput& input, const Stream& stream) override;
  DispatchOutput dispatch_cached(std::span<const Tensor> payloads,
                                 const DispatchHandle& handle,
                                 const Stream& stream) override;
  Pending<CombineOutput> combine_async(const Combine& call) override;
  bool takes_addend() const override { return true; }
  TransportStatistics statistics() const override;
  void check() override;

 private:
  // A dispatch: what it moves, and where to.
  struct Transfer {
    std::vector<Tensor> payloads;
    RowLayout layout;
    Stream stream;
    int64_t capacity = 0;
    int64_t combine_row_bytes = 0;
    DispatchArgs args{};
    std::vector<uint32_t> counts = {};      // as the handle's; known when settled
    std::shared_ptr<CudaHandle> made = {};  // null along a known route
    int64_t bank = BankPool::kNone;
    std::shared_ptr<void> lease = nullptr;
    Event event = {};
    Tensor waves_of = {};  // i32 [T], see DispatchArgs
    Tensor wave_of = {};   // u8 [T, R], likewise
    bool is_settled = false;
    bool is_in_waves = false;  // known when settled, as the number of the call
    uint32_t epoch = 0;
  };

  void load_kernels();
  // Why a rank whose host has given up did so.
  std::optional<CommError> told_by_hosts() const;
  void order_after_last(const Stream& stream);
  // Of what the stream has been given until now, for the next call.
  Event record(const Stream& stream);
  // Fills in what all launches have in common.
  void set_payloads(Transfer& transfer, int64_t num_tokens, bool may_go_in_waves) const;
  void set_waves(Transfer& transfer, const DispatchInput& input);
  void pick_bank(Transfer& transfer);
  void add_bank(int64_t bytes);
  // Picks a bank and launches.
  void launch(Transfer& transfer);
  // Launches; unsettled, unless counts stay on the device.
  void start(const std::shared_ptr<Transfer>& transfer, int64_t num_tokens);
  // Waits until the counts of the unsettled dispatch are known, if there is one; adds banks and
  // launches it again where needed.
  void settle();
  // The same for one that may have been settled by another call.
  void settle(const Transfer& transfer);
  HostCounts::Status await_counts(uint32_t tag);
  void read_counts(Transfer& transfer) const;
  RowArrivals arrivals_of(const Transfer& transfer) const;
  void count_copies(const Transfer& transfer) const;
  DispatchOutput receive(const Transfer& transfer) const;
  std::vector<Tensor> payload_fields(const Transfer& transfer, int64_t rows) const;
  // Makes room for a dispatch with a capacity, and for its combine, or throws what a rank has found
  // wrong before; on all ranks alike.  Returns the most tokens of any rank.
  int64_t agree_on_room(const Transfer& transfer, int64_t num_tokens);
  // What kernels have reported to this host: a packed Fault, or 0.
  uint64_t reported_fault() const;
  // Slots of combine on every rank, [slots] rows with weights of so many bytes beside them, and
  // their flags; collective where they grow.
  void reserve_slots(int64_t slots,
                     int64_t bytes_of_row,
                     int64_t bytes_of_weights,
                     bool may_be_recorded);
  Tensor field(const Transfer& transfer,
               int index,
               DType dtype,
               const Shape& shape,
               int64_t layout_rows) const;

  DispatchConfig dispatch_config_;
  DispatchConfig combine_config_;
  int64_t shared_bytes_ = 0;  // that a block may have
  ControlLayout control_layout_;
  std::shared_ptr<Window> control_;
  BankPool banks_;
  int64_t num_banks_ = 0;
  std::unique_ptr<Window> slots_;  // rows pushed by combine
  std::unique_ptr<Window> flags_;
  // Former ones, where graphs may have recorded them: once there was a call with a capacity.
  bool keeps_windows_ = false;
  std::vector<std::unique_ptr<Window>> outgrown_;
  Tensor bank_table_;          // u64 [kMaxBanks, R]
  Tensor block_counts_;        // i32 [blocks, R + E]
  Tensor state_;               // CallState
  cuda::MappedMemory mapped_;  // FaultRecord, then HostCounts
  SignalContext signals_;
  uint32_t tag_ = 0;
  std::shared_ptr<Transfer> unsettled_;
  std::optional<Stream> last_stream_;
  struct LastCall {
    void* stream = nullptr;
    Event event;
    uint64_t capture = 0;  // that it was recorded in
  };
  LastCall last_call_;
  LastCall last_recorded_;
  std::optional<CommError> broken_;
};

// The handle, if one of these objects has made it.
const CudaHandle& own_cuda_handle(const DispatchHandle& handle);

inline constexpr int64_t kHostCountsOffset = 256;  // in mapped memory, after the FaultRecord

}  // namespace moebius::comm
