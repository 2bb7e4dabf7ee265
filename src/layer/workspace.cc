// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/workspace.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <iterator>
#include <vector>

#include "core/device_traits.h"
#include "moebius/error.h"

namespace moebius {

namespace {

constexpr int64_t kAlignment = 256;

uint64_t next_generation() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

int64_t bytes_of(const TensorSpec& spec) {
  return spec.shape.numel() * bits(spec.dtype) / 8;
}

int64_t aligned(int64_t nbytes) {
  return (nbytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

struct WorkspacePool::State {
  struct Slot {
    Tensor buffer;
    Stream stream;  // the stream of the last get() or used_on()
    std::weak_ptr<void> holder;
  };
  using Slots = std::array<Slot, kNumWorkspaceSlots>;
  std::vector<Slots> microbatches;  // grows to the largest index asked for
  uint64_t generation = next_generation();

  Slot& slot(int microbatch, WorkspaceSlot which) {
    expect_ge(microbatch, 0, "microbatch");
    const auto index = static_cast<size_t>(microbatch);
    if (index >= microbatches.size()) {
      microbatches.resize(index + 1);
    }
    return microbatches[index][static_cast<size_t>(which)];
  }
};

WorkspacePool::WorkspacePool() : state_(std::make_unique<State>()) {}

WorkspacePool::~WorkspacePool() {
  try {
    trim();
  } catch (const std::exception&) {
    // The process is ending, or the device has failed for good.
  }
}

void WorkspacePool::get(int microbatch,
                        WorkspaceSlot slot,
                        std::span<const TensorSpec> specs,
                        std::span<Tensor> tensors,
                        const Stream& stream) {
  expect_eq(std::ssize(tensors), std::ssize(specs), "workspace tensors (specs)");
  const Device device = stream.device();
  int64_t total = 0;
  for (const TensorSpec& spec : specs) {
    total += aligned(bytes_of(spec));
  }
  auto& [buffer, last_stream, holder] = state_->slot(microbatch, slot);
  if (total > 0 && (buffer.nbytes() < total || buffer.device() != device)) {
    last_stream.synchronize();
    stream.synchronize();
    state_->generation = next_generation();
    buffer = Tensor();  // Why: the old block is freed before the new one is allocated
    buffer = Tensor::empty({total}, DType::kU8, device);
  }
  if (total > 0) {
    last_stream = stream;
  }
  int64_t begin = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    const TensorSpec& spec = specs[i];
    const int64_t nbytes = bytes_of(spec);
    tensors[i] = nbytes == 0
                     ? Tensor::borrow(nullptr, spec.shape, spec.dtype, device)
                     : buffer.slice(begin, begin + nbytes).reinterpret(spec.dtype, spec.shape);
    begin += aligned(nbytes);
  }
}

Tensor WorkspacePool::get(
    int microbatch, WorkspaceSlot slot, const Shape& shape, DType dtype, const Stream& stream) {
  const TensorSpec spec{shape, dtype};
  Tensor tensor;
  get(microbatch, slot, {&spec, 1}, {&tensor, 1}, stream);
  return tensor;
}

void WorkspacePool::trim() {
  state_->generation = next_generation();
  for (State::Slots& slots : state_->microbatches) {
    for (State::Slot& slot : slots) {
      if (slot.buffer) {
        give_back_after(slot.stream);
        slot.buffer = Tensor();
      }
    }
  }
}

std::shared_ptr<void> WorkspacePool::hold(int microbatch, WorkspaceSlot slot) {
  std::weak_ptr<void>& holder = state_->slot(microbatch, slot).holder;
  expect(holder.expired(), [&] {
    return fmt::format(
        "workspaces of micro-batch {} belong to a call that is under way: another call takes "
        "another CallContext::microbatch or another pool",
        microbatch);
  });
  auto mark = std::make_shared<char>();
  holder = mark;
  return mark;
}

uint64_t WorkspacePool::generation() const {
  return state_->generation;
}

void WorkspacePool::used_on(int microbatch, WorkspaceSlot slot, const Stream& stream) {
  State::Slot& used = state_->slot(microbatch, slot);
  if (used.buffer) {
    used.stream = stream;
  }
}

int64_t WorkspacePool::bytes() const {
  int64_t total = 0;
  for (const State::Slots& slots : state_->microbatches) {
    for (const State::Slot& slot : slots) {
      total += slot.buffer.nbytes();
    }
  }
  return total;
}

}  // namespace moebius
