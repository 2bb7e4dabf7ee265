// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What HighThroughput on GPUs does without its peers, on one node and on several: it checks what
// callers give, computes the layout before a dispatch, and the order by expert after it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/device/device_arena.h"
#include "comm/high_throughput/cuda/kernels.h"
#include "comm/high_throughput/transport.h"
#include "core/cuda/host_memory.h"
#include "moebius/dispatch.h"

namespace moebius::comm {

class CudaHighThroughputBase : public HighThroughput::State {
 public:
  DispatchLayout layout(const Tensor& topk_ids,
                        const Stream& stream,
                        const DispatchLayout& into) override;
  ExpertOrder expert_order(const DispatchOutput& output,
                           int64_t expert_alignment,
                           const Stream& stream) const override;
  // Throws what layouts have found, on one node and on several.
  void check() override { expect_good_layouts(); }

 protected:
  // The memory of what this class keeps.
  int64_t base_bytes() const {
    return rank_of_.nbytes() + local_of_.nbytes() + node_of_.nbytes() + arena_.bytes() +
           bad_id_.bytes();
  }
  // Throws InvalidArgument for experts on ranks beyond what kernels can do.
  CudaHighThroughputBase(Group& group, ExpertPlacement placement);

  // These throw InvalidArgument.  Kernels check the values of ids.
  void expect_ids_tensor(const Tensor& topk_ids) const;
  void expect_dispatch(const DispatchInput& input, const Stream& stream) const;
  // Throws the InvalidArgument for an id that a layout has found wrong by now, once.
  void expect_good_layouts();
  // Returns the K of the weights to sum.
  int64_t expect_combine(const CombineInput& input,
                         int64_t num_rows,
                         int64_t num_tokens,
                         int64_t topk,
                         const Stream& stream,
                         const Tensor& out_x) const;

  const Device device_;
  const int num_experts_;
  const int num_local_;
  const Tensor rank_of_;   // i32 [E]
  const Tensor local_of_;  // i32 [E]
  const Tensor node_of_;   // i32 [E]
  DeviceArena arena_;

 private:
  cuda::MappedMemory bad_id_;   // u64, see LayoutArgs
  int64_t topk_of_layout_ = 1;  // of the last one
};

// Whether the rows of a tensor, `row_bytes` each, are whole words of 16 bytes; true for none at
// all.
bool has_whole_words(const Tensor& t, int64_t row_bytes);

}  // namespace moebius::comm
