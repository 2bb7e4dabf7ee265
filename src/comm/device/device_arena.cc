// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/device/device_arena.h"

#include <algorithm>

#include "core/cuda/runtime.h"
#include "core/deferred_release.h"
#include "core/device_traits.h"
#include "core/is_captured.h"

namespace moebius::comm {

Launch launch_on(const Stream& stream) {
  return is_captured(stream) ? Launch::kCaptured : Launch::kNow;
}

Tensor DeviceArena::take(int64_t bytes, Launch launch) {
  constexpr int64_t kSmallest = int64_t{64} << 10;
  release_finished();
  Block* best = nullptr;
  const auto is_better = [&](const Block& block) {
    if (best == nullptr || block.is_of_graphs != best->is_of_graphs) {
      return best == nullptr || block.is_of_graphs;
    }
    return block.memory.nbytes() < best->memory.nbytes();
  };
  for (Block& block : blocks_) {
    // A block of more than four times the size is kept for calls that need it.
    if (block.lease.expired() && (launch == Launch::kCaptured || !block.is_of_graphs) &&
        block.memory.nbytes() >= bytes && block.memory.nbytes() <= std::max(4 * bytes, kSmallest) &&
        is_better(block)) {
      best = &block;
    }
  }
  if (best == nullptr) {
    // The new block is a quarter larger, so that batches of slightly different size settle on the
    // same blocks.
    const int64_t size = std::max(bytes + bytes / 4, kSmallest);
    best = &blocks_.emplace_back(Block{Tensor::empty({size}, DType::kU8, device_), {}});
  }
  best->is_of_graphs |= launch == Launch::kCaptured;
  // The deleter's copy of the tensor keeps the memory.
  std::shared_ptr<void> lease(best->memory.raw(), [memory = best->memory](void*) {});
  best->lease = lease;
  return Tensor::share(lease, best->memory.raw(), {bytes}, DType::kU8, device_);
}

Tensor DeviceArena::take(const Shape& shape, DType dtype, Launch launch) {
  return take(row_bytes(dtype, shape.numel()), launch).reinterpret(dtype, shape);
}

void DeviceArena::trim(const std::optional<Stream>& last_stream) {
  release_finished();
  if (last_stream) {
    give_back_after(*last_stream);
  }
  std::erase_if(blocks_, [](const Block& block) { return block.lease.expired(); });
}

int64_t DeviceArena::bytes() const {
  int64_t total = 0;
  for (const Block& block : blocks_) {
    total += block.memory.nbytes();
  }
  return total;
}

Tensor upload(std::span<const int32_t> values, Device device) {
  const Tensor t = Tensor::empty({static_cast<int64_t>(values.size())}, DType::kI32, device);
  cuda::copy_now(t.raw(), values.data(), t.nbytes(), device.index);
  return t;
}

}  // namespace moebius::comm
