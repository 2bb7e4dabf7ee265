// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "comm/cuda/high_throughput_cuda.h"
#include "core/cuda/check.h"

namespace moebius::comm {

namespace {

SumType sum_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return SumType::kF32;
    case DType::kF16:
      return SumType::kF16;
    case DType::kBF16:
      return SumType::kBF16;
    default:
      throw InvalidArgument(fmt::format("x dtype is {}, expected f32, f16 or bf16", name(dtype)));
  }
}

bool is_word_aligned(const Tensor& t) {
  return !t || reinterpret_cast<uintptr_t>(t.raw()) % 16 == 0;
}

}  // namespace

Pending<HighThroughput::CombineOutput> CudaHighThroughput::combine_async(
    const HighThroughput::CombineInput& input,
    const DispatchHandle& handle,
    const Stream& stream,
    const Tensor& out_x) {
  settle();
  check();
  auto output = combine(input, own_cuda_handle(handle), stream, out_x);
  return {nullptr, [output] { return output; }};
}

HighThroughput::CombineOutput CudaHighThroughput::combine(const HighThroughput::CombineInput& input,
                                                          const CudaHandle& handle,
                                                          const Stream& stream,
                                                          const Tensor& out_x) {
  const Tensor& x = input.x;
  expect_defined(x, "x");
  CombineArgs args{};
  args.type = sum_type(x.dtype());
  expect_eq(x.num_dims(), 2, "dimensions of x");
  expect_eq(x.dim(0), handle.rows, "rows of x");
  const Shape shape = {handle.tokens, x.dim(1)};
  const auto expect_like_x = [&](const Tensor& t, const Shape& expected, const char* what) {
    if (t) {
      expect_shape(t, expected, what);
      expect_dtype(t, x.dtype(), what);
      expect_here(t, what);
    }
  };
  expect_like_x(x, x.shape(), "x");
  expect_like_x(input.bias[0], shape, "bias");
  expect_like_x(input.bias[1], shape, "bias");
  expect_like_x(out_x, shape, "out_x");
  if (input.topk_weights) {
    expect_shape(input.topk_weights, {handle.rows, handle.topk}, "topk_weights");
    expect_dtype(input.topk_weights, DType::kF32, "topk_weights");
    expect_here(input.topk_weights, "topk_weights");
  }
  expect_here(stream);

  const int num_ranks = group.size();
  const int64_t bytes_of_row = row_bytes(x.dtype(), x.dim(1));
  args.row_bytes = static_cast<uint32_t>(bytes_of_row);
  args.rows_per_chunk = chunk_rows(bytes_of_row);
  int64_t slots = handle.most_tokens * std::min<int64_t>(handle.topk, num_ranks - 1);
  if (handle.counts_on_host) {
    slots = 0;
    for (int r = 0; r < num_ranks; ++r) {
      slots = std::max<int64_t>(slots, combine_slots(handle.counts.data(), num_ranks, r));
    }
  }
  const int64_t weight_bytes =
      input.topk_weights ? slots * handle.topk * static_cast<int64_t>(sizeof(float)) : 0;
  reserve_slots(combine_weights_offset(static_cast<uint32_t>(slots), bytes_of_row) + weight_bytes,
                slots / args.rows_per_chunk + num_ranks);

  HighThroughput::CombineOutput output;
  output.x = out_x ? out_x : arena_.take(shape, x.dtype());
  if (input.topk_weights) {
    output.topk_weights = arena_.take({handle.tokens, handle.topk}, DType::kF32);
  }
  args.signals = signals_;
  args.control_layout = control_layout_;
  for (int r = 0; r < num_ranks; ++r) {
    args.control[r] = control_->peer(r);
    args.slots[r] = slots_->peer(r);
    args.flags[r] = reinterpret_cast<uint64_t*>(flags_->peer(r));
  }
  args.state = static_cast<CallState*>(state_.raw());
  args.copies = reinterpret_cast<const uint32_t*>(handle.copies.raw());
  args.index = handle.index.data<int32_t>();
  args.num_tokens = handle.tokens;
  args.topk = static_cast<int>(handle.topk);
  args.x = x.bytes();
  args.out = output.x.bytes();
  bool is_aligned = bytes_of_row % 16 == 0 && is_word_aligned(x) && is_word_aligned(output.x);
  for (size_t b = 0; b < input.bias.size(); ++b) {
    args.bias[b] = input.bias[b] ? input.bias[b].bytes() : nullptr;
    is_aligned = is_aligned && is_word_aligned(input.bias[b]);
  }
  args.is_aligned = is_aligned;
  args.in_bulk = bytes_of_row % 16 == 0 && is_word_aligned(x);
  if (input.topk_weights) {
    args.weights = input.topk_weights.data<float>();
    args.out_weights = output.topk_weights.data<float>();
  }
  args.shared.num_ranks = num_ranks;
  args.shared.push_warps = combine_config_.num_warps > 0 ? combine_config_.num_warps : kPushWarps;
  expect_le(args.shared.push_warps, kMaxPushWarps, "warps that push rows");
  args.shared.stages = 0;
  const int64_t room = shared_bytes_ - args.shared.bytes() - kMaxPushWarps * kMaxStages * 8;
  const int64_t most_stages = room / kPushStageBytes / args.shared.push_warps;
  args.shared.stages =
      static_cast<int>(combine_config_.num_stages > 0 ? combine_config_.num_stages
                                                      : std::min<int64_t>(most_stages, kMaxStages));
  expect_ge(args.shared.stages, 2, "stages of each warp that pushes rows");
  expect_le(args.shared.stages, most_stages, "stages of each warp that pushes rows");

  order_after_last(stream);
  stream.wait(input.previous);
  const cuda::DeviceGuard guard(device_.index);
  cuda::check_cuda(
      launch_combine(args, combine_config_.num_sms, cuda::as_stream(stream.native_handle())),
      "combine kernel");
  last_event_ = stream.record();
  output.event = last_event_;
  if (handle.counts_on_host) {
    const int64_t bytes =
        bytes_of_row + (input.topk_weights ? row_bytes(DType::kF32, handle.topk) : 0);
    for (int owner = 0; owner < num_ranks; ++owner) {
      group.count_traffic(owner,
                          copies_between(handle.counts, num_ranks, owner, handle.rank) * bytes);
    }
  }
  return output;
}

void CudaHighThroughput::reserve_slots(int64_t bytes, int64_t num_flags) {
  const auto grow = [&](std::unique_ptr<Window>& window, int64_t wanted) {
    if (window == nullptr || window->bytes() < wanted) {
      if (last_stream_) {
        last_stream_->synchronize();  // nobody may be storing to the old one any more
      }
      window = group.make_window("combine slots", wanted + wanted / 4);
    }
  };
  grow(slots_, bytes);
  grow(flags_, num_flags * static_cast<int64_t>(sizeof(uint64_t)));
}

}  // namespace moebius::comm
