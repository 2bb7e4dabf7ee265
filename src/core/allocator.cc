// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/allocator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "core/allocate.h"
#include "core/cuda/runtime.h"
#include "core/deferred_release.h"
#include "core/host_allocator.h"
#include "core/stream_blocks.h"
#include "moebius/error.h"

namespace moebius {

namespace {

constexpr int64_t kAlignment = 256;

struct Counts {
  std::atomic<int64_t> bytes{0};
  std::atomic<int64_t> peak_bytes{0};
  std::atomic<int64_t> num_blocks{0};
  std::atomic<int64_t> num_allocations{0};

  void add(int64_t n) {
    num_allocations.fetch_add(1, std::memory_order_relaxed);
    num_blocks.fetch_add(1, std::memory_order_relaxed);
    const int64_t now = bytes.fetch_add(n, std::memory_order_relaxed) + n;
    int64_t peak = peak_bytes.load(std::memory_order_relaxed);
    while (now > peak && !peak_bytes.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
  }
  void remove(int64_t n) {
    num_blocks.fetch_sub(1, std::memory_order_relaxed);
    bytes.fetch_sub(n, std::memory_order_relaxed);
  }
};

Counts& counts_of(Device device) {
  constexpr int kMostGpus = 64;  // any further ones are counted together
  static constinit std::array<Counts, kMostGpus + 1> counts{};
  const int index = device.is_cpu() ? 0 : 1 + std::clamp(device.index, 0, kMostGpus - 1);
  return counts[static_cast<size_t>(index)];
}

// The allocators that the caller has set.
struct Chosen {
  std::mutex mutex;
  std::map<std::pair<DeviceType, int>, std::shared_ptr<Allocator>> by_device;
};

Chosen& chosen() {
  static auto& instance = *new Chosen;  // leaked: tensors may be made and freed after main()
  return instance;
}

std::pair<DeviceType, int> key_of(Device device) {
  return {device.type, device.is_cpu() ? 0 : device.index};
}

std::shared_ptr<Allocator> allocator_of(Device device) {
  Chosen& all = chosen();
  {
    const std::lock_guard lock(all.mutex);
    if (const auto found = all.by_device.find(key_of(device)); found != all.by_device.end()) {
      return found->second;
    }
  }
  return device.is_cpu() ? host_allocator() : cuda::pool_allocator(device.index);
}

void* ask(Allocator& allocator, int64_t bytes, Device device, void* stream) {
  void* data = nullptr;
  try {
    data = allocator.allocate(bytes, kAlignment, device, stream);
  } catch (const Error&) {
    throw;  // ours says the bytes itself
  } catch (const std::bad_alloc&) {
    throw_out_of_memory(bytes, device);
  } catch (const std::exception& error) {
    throw_out_of_memory(bytes, device, error.what());
  }
  if (data == nullptr) {
    throw_out_of_memory(bytes, device);
  }
  if (const auto address = reinterpret_cast<uintptr_t>(data); address % kAlignment != 0) {
    allocator.deallocate(data, bytes, device, stream);
    throw Error(fmt::format("the allocator of {} gave address {:#x}, expected a multiple of {}",
                            to_string(device), address, kAlignment));
  }
  return data;
}

}  // namespace

void throw_out_of_memory(int64_t bytes, Device device, std::string_view reason) {
  throw OutOfMemory(fmt::format("out of memory: {} bytes on {}{}{}", bytes, to_string(device),
                                reason.empty() ? "" : ": ", reason));
}

void set_allocator(Device device, std::shared_ptr<Allocator> allocator) {
  expect_ge(device.index, 0, "index of the allocator's device");
  Chosen& all = chosen();
  std::shared_ptr<Allocator> before;  // may end without the lock
  const std::lock_guard lock(all.mutex);
  before = std::move(all.by_device[key_of(device)]);
  if (allocator) {
    all.by_device[key_of(device)] = std::move(allocator);
  } else {
    all.by_device.erase(key_of(device));
  }
}

MemoryStatistics memory_statistics(Device device) {
  const Counts& counts = counts_of(device);
  return {counts.bytes.load(), counts.peak_bytes.load(), counts.num_blocks.load(),
          counts.num_allocations.load()};
}

void reset_peak_memory(Device device) {
  Counts& counts = counts_of(device);
  counts.peak_bytes.store(counts.bytes.load());
}

void trim_memory(Device device) {
  release_finished();
  if (device.is_cuda()) {
    StreamBlocks::trim_all(device);
    cuda::give_back_unused_memory(device.index);
  }
}

std::shared_ptr<void> detail::take_memory(int64_t bytes, Device device, void* stream) {
  release_finished();
  const int64_t size = std::max<int64_t>(bytes, 1);  // no bytes have an address of their own, too
  std::shared_ptr<Allocator> allocator = allocator_of(device);
  void* data = ask(*allocator, size, device, stream);
  counts_of(device).add(size);
  const auto give_back = [allocator = std::move(allocator), size, device, stream](void* p) {
    if (device.is_cpu()) {
      allocator->deallocate(p, size, device, stream);
    } else {
      try {
        cuda::on_device(device.index, [&] { allocator->deallocate(p, size, device, stream); });
      } catch (const std::exception&) {
        // The process ends or the device has failed for good, and its memory is gone anyway.
      }
    }
    counts_of(device).remove(size);
  };
  return {data, give_back};
}

std::shared_ptr<void> allocate(int64_t bytes, Device device) {
  return device.is_cuda() ? cuda::allocate_from_allocator(bytes, device.index)
                          : detail::take_memory(bytes, device, nullptr);
}

}  // namespace moebius
