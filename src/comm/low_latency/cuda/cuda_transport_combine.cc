// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Begins a combine: its handle, its checks, and the arguments of its kernels.
#include <algorithm>

#include "comm/low_latency/cuda/cuda_transport.h"

namespace moebius {

Tensor CudaLowLatency::combine_buffer(const LowLatencyHandle& handle) {
  const CudaLowLatencyHandle& own = own_handle(handle);
  const Tensor& memory =
      at_least(places_[static_cast<size_t>(own.place)].expert_output,
               num_local() * max_rows() * row_bytes(options.in_dtype, options.hidden));
  return Tensor::share(std::make_shared<Tensor>(memory), memory.raw(),
                       {num_local(), own.num_rows, options.hidden}, options.in_dtype, device_);
}

const CudaLowLatencyHandle& CudaLowLatency::own_handle(const LowLatencyHandle& handle) const {
  const auto* own = dynamic_cast<const CudaLowLatencyHandle*>(&handle);
  expect(own != nullptr && own->owner == this,
         "the handle does not come from a dispatch of this object");
  return *own;
}

CudaLowLatency::Return CudaLowLatency::begin_combine(const Combine& given) {
  const auto& [input, handle, stream, out] = given;
  const CudaLowLatencyHandle* own = &own_handle(handle);
  expect_combine(input, own->num_tokens, own->num_rows, out);
  expect_here(stream);
  learn_dead();
  check();
  expect_combined_once(own->is_combined);
  stream.wait(input.previous);
  Return rows{{}, own->shared_from_this(), input, out, input.records_event, {}};
  comm::LowLatencyCombineCall& call = rows.call;
  call.call = make_call(own->place);
  call.dtype = options.in_dtype;
  call.x = input.x.bytes();
  call.ids = Ids::of(input.topk_ids);
  call.weights = input.topk_weights.data<float>();
  call.out = out.bytes();
  call.wait_us = input.wait_us ? input.wait_us.data<int64_t>() : nullptr;
  call.num_tokens = static_cast<int>(own->num_tokens);
  call.sum = options.sum;
  call.coding = input.coding;
  call.in_bulk = tuning_.in_bulk;
  call.unit_parts = std::min(tuning_.unit_parts, comm::max_unit_parts(stage_parts_));
  call.stage_parts = stage_parts_;
  return rows;
}

}  // namespace moebius
