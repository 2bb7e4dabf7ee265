// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// LowLatency on the GPUs of one node: the host's side of the kernels.  It gives out places,
// launches kernels, and looks for faults.  It waits for the GPU only in the first dispatch after
// ranks were excluded.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/low_latency/cuda/kernels.h"
#include "comm/low_latency/cuda/make_transport.h"
#include "core/cuda/host_memory.h"

namespace moebius {

class CudaLowLatency;

struct CudaLowLatencyHandle final : LowLatencyCallHandle,
                                    std::enable_shared_from_this<CudaLowLatencyHandle> {
  const CudaLowLatency* owner = nullptr;
  int place = 0;
  std::array<Tensor, 6> memory;  // the memory of the result, which may outlive the owner
};

class CudaLowLatency final : public LowLatency::State {
 public:
  CudaLowLatency(Group& g,
                 ExpertPlacement p,
                 const LowLatencyOptions& o,
                 std::unique_ptr<Window> given);
  ~CudaLowLatency() override;

  Pending<LowLatencyDispatchOutput> dispatch_async(const LowLatencyDispatchInput& input,
                                                   const Stream& stream) override;
  LowLatencyDispatchOutput dispatch(const LowLatencyDispatchInput& input,
                                    const Stream& stream) override;
  Pending<LowLatencyCombineOutput> combine_async(const Combine& call) override;
  LowLatencyCombineOutput combine(const Combine& call) override;
  Tensor combine_buffer(const LowLatencyHandle& handle) override;
  void check() const override;
  void set_dead(int rank, bool is_dead_now) override;
  TransportStatistics statistics() const override;
  Tensor expert_statistics() const override;
  void reset_statistics() override;
  int64_t bytes() const override;
  void learn_dead() override;

 private:
  // The device tensors of one of the two results that may be alive.
  struct Place {
    // Memory for the largest calls; what a call does not need is not made.
    Tensor rows;           // of rows that are not cast
    Tensor cast_rows;      // of rows in f8e4m3
    Tensor cast_scales;    // of their scales
    Tensor given_scales;   // of scales that came with the rows
    Tensor row_words;      // i32 [2, L, max_tokens * R]: tags, then tokens
    Tensor counts;         // i32 [L], handed to the caller
    Tensor ranges;         // i64 [L, R], likewise
    Tensor expert_output;  // see combine_buffer()
    Tensor num_messages;   // i32 [R]
    Tensor message_rows;   // i32 [max_tokens, R, K + 1]
    std::weak_ptr<CudaLowLatencyHandle> result;
  };

  struct Dispatch {
    comm::LowLatencyDispatchCall call;
    std::shared_ptr<CudaLowLatencyHandle> handle;
    bool records_event = false;
    Event event;                            // after the receive half
    LowLatencyDispatchInput operands = {};  // kept until the last launch
  };
  struct Return {
    comm::LowLatencyCombineCall call;
    std::shared_ptr<const CudaLowLatencyHandle> handle;
    LowLatencyCombineInput operands;  // kept until the last launch
    Tensor out;
    bool records_event = false;
    Event event;  // after the receive half
  };

  comm::LowLatencyCall make_call(int place) const;
  comm::RankMask dead_mask() const;
  Dispatch begin_dispatch(const LowLatencyDispatchInput& input, const Stream& stream);
  LowLatencyDispatchOutput output_of(const Dispatch& dispatch);
  LowLatencyCombineOutput output_of(const Return& rows) { return {rows.out, rows.event}; }
  Return begin_combine(const Combine& call);
  // The call as the launch that settles it needs it: what is noted once is left out.
  static auto to_settle(auto call);
  void launch_kernel(const comm::LowLatencyDispatchCall& call, const Stream& stream);
  void launch_kernel(const comm::LowLatencyCombineCall& call, const Stream& stream);
  // `started` is a Dispatch or a Return, which `begin` makes.
  void launch(auto& started, int phases, const Stream& stream);
  auto launch_at_once(auto started, const Stream& stream);
  auto launch_in_halves(const auto& begin, const Stream& stream);
  void expect_here(const Stream& stream) const;
  // Call it before a dispatch: after ranks were excluded, the others meet and go on.
  void resume(const Stream& stream);
  const Tensor& at_least(Tensor& own, int64_t bytes);
  const CudaLowLatencyHandle& own_handle(const LowLatencyHandle& handle) const;
  Tensor on_device(Shape shape, DType dtype) const { return Tensor::empty(shape, dtype, device_); }

  Device device_;
  comm::CudaLowLatencyLayout layout_;
  bool is_reserved_ = false;  // the window was made before
  std::unique_ptr<Window> window_;
  cuda::MappedMemory record_;
  Tensor device_state_;
  Tensor placement_words_;
  Tensor expert_rows_;  // i64 [L]
  std::array<Place, 2> places_;
  std::vector<Tensor> outgrown_;
  int64_t calls_ = 0;
  std::vector<bool> given_up_;        // the ranks that were excluded by set_dead
  uint32_t num_given_up_ = 0;         // how often a rank was
  uint32_t num_given_up_agreed_ = 0;  // the same number when ranks last met
  int num_blocks_ = 0;
  comm::DispatchSharedMap dispatch_shared_{};
  int64_t combine_shared_ = 0;
  int stage_parts_ = 1;  // of combine
  CombineTuning tuning_ = combine_tuning;
  std::optional<Stream> last_stream_;  // the stream of the latest kernel
};

}  // namespace moebius
