// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Begins a dispatch and hands out its result: the place of its result, the arguments of its
// kernels, and tensors that keep the place for as long as they live.
#include <algorithm>

#include "comm/low_latency/cuda/cuda_transport.h"
#include "core/deferred_release.h"

namespace moebius {

CudaLowLatency::Dispatch CudaLowLatency::begin_dispatch(const LowLatencyDispatchInput& input,
                                                        const Stream& stream) {
  expect_dispatch(input);
  expect_here(stream);
  resume(stream);
  const int64_t number = calls_ + 1;
  const int place_index = static_cast<int>(number % 2);
  Place& place = places_[static_cast<size_t>(place_index)];
  if (!place.result.expired()) {
    // Nobody may have it any more but a stream, which this call then follows.
    release_in_order(place.result, stream);
    if (!place.result.expired()) {
      throw_third_result(number);
    }
  }
  const bool is_cast = input.cast != LowLatencyCast::kNone;
  const LowLatencyRow row = row_of(input);
  const LowLatencyInto& into = input.into;
  const int64_t most = num_local() * max_rows();
  Tensor& rows = is_cast ? place.cast_rows : place.rows;
  if (!into.x) {
    at_least(rows, most * row.value_bytes);
  }
  Tensor& scales = is_cast ? place.cast_scales : place.given_scales;
  if (!into.x_scale && row.scale_bytes > 0) {
    const TensorKind spec = scale_spec(input, max_rows());
    at_least(scales, row_bytes(spec.dtype, spec.shape.numel()));
  }
  calls_ = number;
  stream.wait(input.previous);

  Dispatch dispatch;
  dispatch.handle = std::make_shared<CudaLowLatencyHandle>();
  dispatch.handle->owner = this;
  dispatch.records_event = input.records_event;
  dispatch.operands = input;
  dispatch.handle->place = place_index;
  dispatch.handle->num_tokens = input.topk_ids.dim(0);
  dispatch.handle->num_rows = room_of(input) * group.size();
  place.result = dispatch.handle;
  comm::LowLatencyDispatchCall& call = dispatch.call;
  call = {};
  call.call = make_call(place_index);
  call.dtype = options.in_dtype;
  if (!is_cast && (input.x.dtype() != options.in_dtype)) {
    // Rows of other types travel as elements of two bytes; a message has the same place.
    call.dtype = DType::kBF16;
    call.call.layout = layout_.with_rows(row.value_bytes / 2, 2);
    call.call.parts = comm::Divisor::of(call.call.layout.num_parts);
  }
  call.cast = input.cast;
  call.shared = dispatch_shared_;
  call.max_tokens = static_cast<int>(room_of(input));
  call.kind = {static_cast<uint32_t>(row.value_bytes),
               static_cast<uint32_t>(std::min<int64_t>(row.scale_bytes, 0xffff)),
               static_cast<uint32_t>(room_of(input))};
  call.kind_tag = comm::kind_tag(call.kind);
  call.scale_at = row.scale_offset();
  call.scale_bytes = is_cast ? 0 : static_cast<int>(row.scale_bytes);
  call.x = input.x.bytes();
  call.x_scale = input.x_scale ? input.x_scale.bytes() : nullptr;
  call.ids = Ids::of(input.topk_ids);
  call.tags = input.row_tags ? input.row_tags.data<int32_t>() : nullptr;
  call.num_tokens = static_cast<int>(input.topk_ids.dim(0));
  call.scales = input.scales;
  const auto choose = [](const Tensor& given, const Tensor& own) -> const Tensor& {
    return given ? given : own;
  };
  call.out = choose(into.x, rows).bytes();
  call.out_scale = row.scale_bytes > 0 ? choose(into.x_scale, scales).bytes() : nullptr;
  auto* words = place.row_words.data<int32_t>();
  call.out_tags = into.row_tags ? into.row_tags.data<int32_t>() : words;
  call.out_tokens = into.source_token ? into.source_token.data<int32_t>() : words + most;
  call.out_count = choose(into.expert_num_tokens, place.counts).data<int32_t>();
  call.out_ranges = choose(into.source_ranges, place.ranges).data<int64_t>();
  call.received = input.received ? input.received.data<int32_t>() : nullptr;
  call.wait_us = input.wait_us ? input.wait_us.data<int64_t>() : nullptr;
  call.expert_rows = expert_rows_.data<int64_t>();
  return dispatch;
}

LowLatencyDispatchOutput CudaLowLatency::output_of(const Dispatch& dispatch) {
  const Place& place = places_[static_cast<size_t>(dispatch.handle->place)];
  const std::shared_ptr<CudaLowLatencyHandle> keep = dispatch.handle;
  // The tensors of a result keep the handle alive, and so its place and its memory.
  auto memory = keep->memory.begin();
  const auto share = [&](const Tensor& given, const Tensor& own, const TensorKind& spec,
                         int64_t offset = 0) {
    if (given) {
      return given;
    }
    *memory++ = own;
    return Tensor::share(keep, own.bytes() + offset, spec.shape, spec.dtype, device_);
  };
  const LowLatencyDispatchInput& input = dispatch.operands;
  const LowLatencyInto& into = input.into;
  LowLatencyDispatchOutput output;
  const bool is_cast = input.cast != LowLatencyCast::kNone;
  const int64_t rows = keep->num_rows;
  const TensorKind words{{num_local(), rows}, DType::kI32};
  output.x = share(into.x, is_cast ? place.cast_rows : place.rows, rows_spec(input, rows));
  if (row_of(input).scale_bytes > 0) {
    output.x_scale = share(into.x_scale, is_cast ? place.cast_scales : place.given_scales,
                           scale_spec(input, rows));
  }
  output.expert_num_tokens =
      share(into.expert_num_tokens, place.counts, {place.counts.shape(), DType::kI32});
  output.row_tags = share(into.row_tags, place.row_words, words);
  output.source_token =
      share(into.source_token, place.row_words, words, place.row_words.nbytes() / 2);
  output.source_ranges =
      share(into.source_ranges, place.ranges, {place.ranges.shape(), DType::kI64});
  output.handle = dispatch.handle;
  output.event = dispatch.event;
  return output;
}

}  // namespace moebius
