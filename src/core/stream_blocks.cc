// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/stream_blocks.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <utility>
#include <vector>

#include "core/allocate.h"
#include "core/cuda/runtime.h"

namespace moebius {

struct StreamBlocks::State {
  struct Block {
    std::shared_ptr<void> memory;
    int64_t bytes = 0;
    bool is_taken = false;
  };
  // Invariant: the stream outlives its blocks, which are freed in its order.
  std::shared_ptr<void> stream;
  Device device;
  std::mutex mutex;         // guards blocks
  std::list<Block> blocks;  // addresses stay

  void trim() {
    std::vector<std::shared_ptr<void>> unused;  // freed without the lock
    const std::lock_guard lock(mutex);
    for (auto block = blocks.begin(); block != blocks.end();) {
      if (block->is_taken) {
        ++block;
      } else {
        unused.push_back(std::move(block->memory));
        block = blocks.erase(block);
      }
    }
  }
};

namespace {

// The blocks of all streams.
struct Streams {
  std::mutex mutex;
  std::vector<std::pair<Device, std::weak_ptr<void>>> all;  // each of a StreamBlocks::State
};

Streams& streams() {
  static auto& instance = *new Streams;  // leaked, like the pools of GPUs
  return instance;
}

}  // namespace

StreamBlocks::StreamBlocks(Device device, std::shared_ptr<void> stream)
    : state_(std::make_shared<State>()) {
  state_->stream = std::move(stream);
  state_->device = device;
  Streams& known = streams();
  const std::lock_guard lock(known.mutex);
  std::erase_if(known.all, [](const auto& entry) { return entry.second.expired(); });
  known.all.emplace_back(device, state_);
}

std::shared_ptr<void> StreamBlocks::take(int64_t bytes) const {
  constexpr int64_t kSmallest = int64_t{4} << 10;
  State& state = *state_;
  State::Block* best = nullptr;
  {
    const std::lock_guard lock(state.mutex);
    for (State::Block& block : state.blocks) {
      // A block of more than four times the size is kept for calls that need it.
      if (!block.is_taken && block.bytes >= bytes &&
          block.bytes <= std::max(4 * bytes, 4 * kSmallest) &&
          (best == nullptr || block.bytes < best->bytes)) {
        best = &block;
      }
    }
    if (best != nullptr) {
      best->is_taken = true;
    }
  }
  if (best == nullptr) {
    // A quarter more, so that batches of slightly different sizes settle on the same blocks.
    const int64_t size = std::max(bytes + bytes / 4, kSmallest);
    State::Block made{nullptr, size, true};
    cuda::on_device(state.device.index, [&] {
      made.memory = detail::take_memory(size, state.device, state.stream.get());
    });
    const std::lock_guard lock(state.mutex);
    best = &state.blocks.emplace_back(std::move(made));
  }
  return {best->memory.get(), [state = state_, best](void*) {
            const std::lock_guard lock(state->mutex);
            best->is_taken = false;
          }};
}

void StreamBlocks::trim_all(Device device) {
  std::vector<std::shared_ptr<void>> found;
  {
    Streams& known = streams();
    const std::lock_guard lock(known.mutex);
    for (const auto& [of, state] : known.all) {
      if (of == device) {
        found.push_back(state.lock());
      }
    }
  }
  for (const std::shared_ptr<void>& state : found) {
    if (state) {
      static_cast<State*>(state.get())->trim();
    }
  }
}

}  // namespace moebius
