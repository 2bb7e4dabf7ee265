// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What LowLatency must be on every device: the calls of its header, and what they check.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/low_latency/cpu/message_layout.h"
#include "comm/transfer.h"
#include "moebius/low_latency.h"

namespace moebius {

struct TensorKind {
  Shape shape;
  DType dtype = DType::kF32;
};

// The handles of all transports know this of their dispatch.
struct LowLatencyCallHandle : LowLatencyHandle {
  int64_t num_tokens = 0;
  int64_t num_rows = 0;  // of an expert in the outputs
  mutable bool is_combined = false;
};

struct LowLatency::State {
  State(Group& g, ExpertPlacement p, const LowLatencyOptions& o);
  virtual ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  virtual Pending<LowLatencyDispatchOutput> dispatch_async(const LowLatencyDispatchInput& input,
                                                           const Stream& stream) = 0;
  using Combine = CombineCall<LowLatencyCombineInput, LowLatencyHandle>;
  virtual Pending<LowLatencyCombineOutput> combine_async(const Combine& call) = 0;
  // Run both halves at once.
  virtual LowLatencyDispatchOutput dispatch(const LowLatencyDispatchInput& input,
                                            const Stream& stream) {
    return dispatch_async(input, stream).finish();
  }
  virtual LowLatencyCombineOutput combine(const Combine& call) {
    return combine_async(call).finish();
  }
  // Makes memory for the result of a combine whose caller gives none.
  Tensor make_out(const LowLatencyCombineInput& input) const;
  virtual Tensor combine_buffer(const LowLatencyHandle& handle) = 0;
  virtual void check() const {}
  virtual void set_dead(int rank, bool is_dead) = 0;
  virtual TransportStatistics statistics() const = 0;
  virtual Tensor expert_statistics() const = 0;
  virtual void reset_statistics() = 0;
  virtual int64_t bytes() const = 0;

  Group& group;
  ExpertPlacement placement;
  LowLatencyOptions options;
  std::vector<bool> dead;

  int64_t num_local() const { return placement.num_local(group.rank()); }
  int64_t max_rows() const { return options.max_tokens * group.size(); }
  // The tokens per rank for which a call has room.
  int64_t room_of(const LowLatencyDispatchInput& input) const {
    return input.max_tokens > 0 ? input.max_tokens : options.max_tokens;
  }
  // How the rows of a call travel, in bytes.
  LowLatencyRow row_of(const LowLatencyDispatchInput& input) const;
  // The x and the x_scale of a call whose outputs have so many rows per expert.  Without scales the
  // latter is a TensorKind without dimensions.
  TensorKind rows_spec(const LowLatencyDispatchInput& input, int64_t rows) const;
  TensorKind scale_spec(const LowLatencyDispatchInput& input, int64_t rows) const;
  bool is_dead(int rank) const { return dead[static_cast<size_t>(rank)]; }
  // Brings `dead` up to date, where a device excludes ranks.
  virtual void learn_dead() {}

 protected:
  // These throw InvalidArgument.  They do not check the values of ids, which may be on a GPU.
  void expect_dispatch(const LowLatencyDispatchInput& input) const;
  void expect_combine(const LowLatencyCombineInput& input,
                      int64_t num_tokens,
                      int64_t num_rows,
                      const Tensor& out) const;
  // Notes the combine of a dispatch; a second one is refused.
  static void expect_combined_once(bool& is_combined);
  // Checks how often this rank's tokens name an expert: more often than there are tokens, if some
  // name it twice.
  void expect_room(int64_t expert, int64_t num_selections, int64_t room) const;

 private:
  // The tensor must be of this kind, and on the group's device unless it is empty.
  void expect_here(const Tensor& tensor,
                   const Shape& shape,
                   DType dtype,
                   std::string_view what) const;
  void expect_into(const LowLatencyDispatchInput& input) const;
  void expect_ids_here(const Tensor& topk_ids, const Shape& shape) const;
  void expect_rows(const LowLatencyDispatchInput& input, int64_t num_tokens) const;
};

// Throws InvalidArgument unless num_ranks, max_tokens, hidden and topk are positive and in_dtype is
// bf16, f16 or f32.  What it accepts fits into an int64_t wherever bytes or rows are counted.
void expect_valid(const LowLatencyOptions& options, int num_ranks);
// The bytes of the window that an object with these arguments takes.  Throws what the constructor
// of LowLatency does.
int64_t low_latency_window_bytes(const Group& group,
                                 const ExpertPlacement& placement,
                                 const LowLatencyOptions& options);
// `window` has so many zero bytes, and is that of a group on one node; null: the call makes it, and
// is collective.
std::unique_ptr<LowLatency::State> make_low_latency(Group& group,
                                                    ExpertPlacement placement,
                                                    const LowLatencyOptions& options,
                                                    std::unique_ptr<Window> window);

// The error of call `call`, whose bank the result of the call before last still holds.
[[noreturn]] void throw_third_result(int64_t call);

// `window` has LowLatencyLayout::bytes() zero bytes; null: the call makes it, and is collective.
std::unique_ptr<LowLatency::State> make_cpu_low_latency(Group& group,
                                                        ExpertPlacement placement,
                                                        const LowLatencyOptions& options,
                                                        std::unique_ptr<Window> window);

}  // namespace moebius
