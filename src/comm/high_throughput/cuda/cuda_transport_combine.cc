// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "comm/high_throughput/cuda/cuda_transport.h"
#include "core/cuda/check.h"

namespace moebius::comm {

Pending<CombineOutput> CudaHighThroughput::combine_async(const Combine& call) {
  const auto& [input, any_handle, stream, out_x] = call;
  settle();
  const CudaHandle& handle = own_cuda_handle(any_handle);
  if (handle.counts_on_host) {
    check();
  }
  const Tensor& x = input.x;
  const int64_t topk =
      expect_combine(input, handle.rows, handle.tokens, handle.topk, stream, out_x);
  CombineArgs args{};
  args.dtype = x.dtype();
  const Shape shape = {handle.tokens, x.dim(1)};
  const int num_ranks = group.size();
  const int64_t bytes_of_row = row_bytes(x.dtype(), x.dim(1));
  args.row_bytes = static_cast<uint32_t>(bytes_of_row);
  args.out_step = out_x ? row_bytes(x.dtype(), out_x.dim(1)) : bytes_of_row;
  args.rows_per_chunk = chunk_rows(bytes_of_row);
  int64_t slots = handle.most_tokens * most_copies(handle.topk, num_ranks);
  if (handle.counts_on_host) {
    slots = 0;
    for (int r = 0; r < num_ranks; ++r) {
      slots = std::max<int64_t>(slots, combine_slots(handle.counts.data(), num_ranks, r));
    }
  }
  reserve_slots(slots, bytes_of_row, row_bytes(DType::kF32, topk),
                /*may_be_recorded=*/!handle.counts_on_host);

  CombineOutput output;
  const Launch launched = launch_on(stream);
  output.x = out_x ? out_x : arena_.take(shape, x.dtype(), launched);
  if (input.topk_weights) {
    output.topk_weights = input.topk_weights_into
                              ? input.topk_weights_into
                              : arena_.take({handle.tokens, topk}, DType::kF32, launched);
  }
  args.signals = signals_;
  args.control_layout = control_layout_;
  args.slots = slots_->device_peers();
  args.flags = flags_->device_peers();
  args.state = static_cast<CallState*>(state_.raw());
  args.copies = reinterpret_cast<const uint32_t*>(handle.copies.raw());
  args.index = handle.index.data<int32_t>();
  args.num_tokens = handle.tokens;
  args.topk = static_cast<int>(topk);
  args.x = x.bytes();
  const int64_t first_byte = row_bytes(x.dtype(), input.first_column);
  args.out = output.x.bytes() + first_byte;
  args.in_bulk = has_whole_words(x, bytes_of_row);
  args.is_aligned =
      args.in_bulk && has_whole_words(output.x, args.out_step) && first_byte % 16 == 0;
  for (size_t b = 0; b < input.bias.size(); ++b) {
    args.bias[b] = input.bias[b] ? input.bias[b].bytes() : nullptr;
    args.is_aligned = args.is_aligned && has_whole_words(input.bias[b], bytes_of_row);
  }
  if (input.addend) {
    args.addend = input.addend.bytes() + first_byte;
    args.is_aligned = args.is_aligned && has_whole_words(input.addend, args.out_step);
  }
  if (input.topk_weights) {
    args.weights = input.topk_weights.data<float>();
    args.out_weights = output.topk_weights.data<float>();
  }
  args.shared.num_ranks = num_ranks;
  args.shared.push_warps = configs.combine.num_warps > 0 ? configs.combine.num_warps : kPushWarps;
  expect_le(args.shared.push_warps, kMaxPushWarps, "warps that push rows");
  args.shared.stages = 0;
  const int64_t room = shared_bytes_ - args.shared.bytes() - kMaxPushWarps * kMaxStages * 8;
  const int64_t most_stages = room / kPushStageBytes / args.shared.push_warps;
  args.shared.stages =
      static_cast<int>(configs.combine.num_stages > 0 ? configs.combine.num_stages
                                                      : std::min<int64_t>(most_stages, kMaxStages));
  expect_ge(args.shared.stages, 2, "stages of each warp that pushes rows");
  expect_le(args.shared.stages, most_stages, "stages of each warp that pushes rows");

  order_after_last(stream);
  stream.wait(input.previous);
  const cuda::DeviceGuard guard(device_.index);
  cuda::check_cuda(launch_combine(args, configs.combine.num_sms, cuda::as_stream(stream)),
                   "combine kernel");
  output.event = record(stream);
  if (handle.counts_on_host) {
    const int64_t bytes = bytes_of_row + (row_bytes(DType::kF32, topk));
    for (int owner = 0; owner < num_ranks; ++owner) {
      group.count_traffic(owner,
                          copies_between(handle.counts, num_ranks, owner, handle.rank) * bytes);
    }
  }
  return {nullptr, [output] { return output; }};
}

void CudaHighThroughput::reserve_slots(int64_t slots,
                                       int64_t bytes_of_row,
                                       int64_t bytes_of_weights,
                                       bool may_be_recorded) {
  const CombineRoom room = combine_room(slots, bytes_of_row, bytes_of_weights, group.size());
  keeps_windows_ = keeps_windows_ || may_be_recorded;
  const auto grow = [&](std::unique_ptr<Window>& window, int64_t wanted) {
    if (window == nullptr || window->bytes() < wanted) {
      // No kernel may still be storing to the old window, unless it is kept.  While a stream is
      // captured, nobody could wait for it.
      if (window != nullptr && !keeps_windows_ && last_stream_) {
        last_stream_->synchronize();
      }
      if (window != nullptr && keeps_windows_) {
        outgrown_.push_back(std::move(window));
      }
      window = group.make_window("combine slots", BankPool::roomy(wanted));
    }
  };
  grow(slots_, room.slots);
  grow(flags_, room.flags);
}

}  // namespace moebius::comm
