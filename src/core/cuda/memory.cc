// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "core/allocate.h"
#include "core/cuda/check.h"
#include "core/cuda/host_memory.h"
#include "core/cuda/outside_of_captures.h"
#include "core/cuda/runtime.h"
#include "moebius/error.h"

namespace moebius::cuda {

namespace {

// A memory pool of the driver.  Why cudaMalloc is not used: it and cudaFree wait until the device
// is idle, while kernels there may be waiting for the calling rank.
class Pool {
 public:
  explicit Pool(int index) : index_(index) {
    int supported = 0;
    check_cuda(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, index),
               "cudaDeviceGetAttribute");
    if (supported == 0) {
      throw Unsupported(to_string(Device::cuda(index)) + " has no memory pools");
    }
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.handleTypes = cudaMemHandleTypeNone;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = index;
    check_cuda(cudaMemPoolCreate(&pool_, &properties), "cudaMemPoolCreate");
    // Freed memory stays in the pool for the next allocation, until an allocation finds no room.
    uint64_t keep = std::numeric_limits<uint64_t>::max();
    check_cuda(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep),
               "cudaMemPoolSetAttribute");
    // The pool must not make one stream wait for another in order to reuse memory that the other
    // has freed: the other stream may belong to a rank that waits for this rank.
    int allowed = 0;
    check_cuda(cudaMemPoolSetAttribute(pool_, cudaMemPoolReuseAllowInternalDependencies, &allowed),
               "cudaMemPoolSetAttribute");
  }

  void* take(int64_t bytes, cudaStream_t stream) {
    void* data = nullptr;
    // An allocation of zero bytes gets an address of its own, too.
    const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
    cudaError_t status = cudaMallocFromPoolAsync(&data, size, pool_, stream);
    if (status == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      give_back_unused_memory(index_);
      status = cudaMallocFromPoolAsync(&data, size, pool_, stream);
    }
    if (status == cudaErrorMemoryAllocation) {
      throw_out_of_memory(bytes);
    }
    check_cuda(status, fmt::format("allocating {} bytes", bytes));
    return data;
  }

  // Lets another GPU load and store all memory of the pool; returns false if it cannot.
  bool allow(int peer) {
    const std::lock_guard lock(mutex_);
    if (peer == index_ || std::find(allowed_.begin(), allowed_.end(), peer) != allowed_.end()) {
      return true;
    }
    int can = 0;
    check_cuda(cudaDeviceCanAccessPeer(&can, peer, index_), "cudaDeviceCanAccessPeer");
    if (can == 0) {
      return false;
    }
    cudaMemAccessDesc access{};
    access.location.type = cudaMemLocationTypeDevice;
    access.location.id = peer;
    access.flags = cudaMemAccessFlagsProtReadWrite;
    check_cuda(cudaMemPoolSetAccess(pool_, &access, 1), "cudaMemPoolSetAccess");
    allowed_.push_back(peer);
    return true;
  }

  void trim() { check_cuda(cudaMemPoolTrimTo(pool_, 0), "cudaMemPoolTrimTo"); }

 private:
  [[noreturn]] void throw_out_of_memory(int64_t bytes) const {
    (void)cudaGetLastError();
    size_t free = 0;
    size_t total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    throw OutOfMemory(fmt::format("out of memory: {} bytes on {}, of whose {} bytes {} are free",
                                  bytes, to_string(Device::cuda(index_)), total, free));
  }

  const int index_;
  cudaMemPool_t pool_ = nullptr;  // never destroyed: handles may outlive everything else
  std::mutex mutex_;
  std::vector<int> allowed_;
};

Pool& pool_of(int index) {
  static std::mutex mutex;
  // The map is leaked on purpose, because handles with static lifetime are freed after main().
  static auto& pools = *new std::map<int, std::unique_ptr<Pool>>;
  const std::lock_guard lock(mutex);
  auto& pool = pools[index];
  if (!pool) {
    pool = std::make_unique<Pool>(index);
  }
  return *pool;
}

// Frees what a pool gave, in the order of a stream.
void free_on(void* data, cudaStream_t stream) noexcept {
  log_cuda_error(cudaFreeAsync(data, stream), "cudaFreeAsync");
}

// Allocates memory in the order of a stream; the handle also frees it in that order.
std::shared_ptr<void> take(int64_t bytes, int index, Pool& pool, cudaStream_t stream) {
  return {pool.take(bytes, stream), [index, stream](void* p) {
            try {
              const DeviceGuard guard(index);
              free_on(p, stream);
            } catch (const Error&) {
              // The process ends or the device has failed for good, and its memory is gone anyway.
            }
          }};
}

// Our own memory of GPUs.
class PoolAllocator final : public Allocator {
 public:
  void* allocate(int64_t bytes, int64_t, Device device, void* stream) override {
    return pool_of(device.index).take(bytes, as_stream(stream));
  }
  void deallocate(void* data, int64_t, Device, void* stream) noexcept override {
    free_on(data, as_stream(stream));
  }
};

// Pinned host memory that is mapped into every device.  Blocks are reused and never freed, because
// freeing would wait for a device, where kernels of other ranks may be waiting for this rank.
class MappedBlocks {
 public:
  std::shared_ptr<std::byte> take(size_t bytes) {
    std::byte* block = take_again(bytes);
    if (block == nullptr) {
      void* taken = nullptr;
      check_cuda(cudaHostAlloc(&taken, bytes, cudaHostAllocMapped | cudaHostAllocPortable),
                 fmt::format("cudaHostAlloc of {} bytes", bytes));
      block = static_cast<std::byte*>(taken);
    }
    return {block, [this, bytes](std::byte* p) {
              const std::lock_guard lock(mutex_);
              unused_[bytes].push_back(p);
            }};
  }

 private:
  std::byte* take_again(size_t bytes) {
    const std::lock_guard lock(mutex_);
    std::vector<std::byte*>& blocks = unused_[bytes];
    if (blocks.empty()) {
      return nullptr;
    }
    std::byte* block = blocks.back();
    blocks.pop_back();
    return block;
  }

  std::mutex mutex_;
  std::map<size_t, std::vector<std::byte*>> unused_;  // by size
};

MappedBlocks& mapped_blocks() {
  static auto& blocks = *new MappedBlocks;  // leaked on purpose, like the pools
  return blocks;
}

}  // namespace

void give_back_unused_memory(int index) {
  expect_usable(index);
  const DeviceGuard guard(index);
  pool_of(index).trim();
}

std::shared_ptr<Allocator> pool_allocator(int) {
  // One serves all GPUs.  It is leaked, like the pools.
  static const auto& instance = *new std::shared_ptr<Allocator>(std::make_shared<PoolAllocator>());
  return instance;
}

std::shared_ptr<void> allocate_from_allocator(int64_t bytes, int index) {
  expect_usable(index);
  const DeviceGuard guard(index);
  const OutsideOfCaptures outside;
  auto memory = detail::take_memory(bytes, Device::cuda(index), cudaStreamPerThread);
  check_cuda(cudaStreamSynchronize(cudaStreamPerThread), "cudaStreamSynchronize");
  return memory;
}

std::shared_ptr<void> allocate_in_graph(int64_t bytes, void* stream, int index) {
  expect_usable(index);
  const DeviceGuard guard(index);
  return take(bytes, index, pool_of(index), as_stream(stream));
}

void on_device(int index, const std::function<void()>& body) {
  const DeviceGuard guard(index);
  body();
}

void give_back_after(void* stream, int index) {
  const DeviceGuard guard(index);
  wait_event(cudaStreamPerThread, index, record_event(stream, index, /*is_timed=*/false).get());
}

std::shared_ptr<void> allocate_shared(int64_t bytes, int index, std::span<const int> peers) {
  expect_usable(index);
  const DeviceGuard guard(index);
  const OutsideOfCaptures outside;
  Pool& pool = pool_of(index);
  for (const int peer : peers) {
    if (!pool.allow(peer)) {
      throw Unsupported(fmt::format("{} cannot load and store memory of {}",
                                    to_string(Device::cuda(peer)), to_string(Device::cuda(index))));
    }
  }
  auto memory = take(bytes, index, pool, cudaStreamPerThread);
  check_cuda(cudaStreamSynchronize(cudaStreamPerThread), "cudaStreamSynchronize");
  return memory;
}

void copy(void* to, const void* from, int64_t bytes, void* stream, int stream_index) {
  if (bytes > 0) {
    const DeviceGuard guard(stream_index);
    check_cuda(
        cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, as_stream(stream)),
        fmt::format("cudaMemcpyAsync of {} bytes", bytes));
  }
}

void copy_between(void* to,
                  int to_index,
                  const void* from,
                  int from_index,
                  int64_t bytes,
                  void* stream,
                  int stream_index) {
  const int other = from_index == stream_index ? to_index : from_index;
  if (other == stream_index || pool_of(other).allow(stream_index)) {
    copy(to, from, bytes, stream, stream_index);
  } else if (bytes > 0) {
    // The GPU cannot access the pool of the other GPU, so the copy goes through the host.
    const DeviceGuard guard(stream_index);
    check_cuda(cudaMemcpyPeerAsync(to, to_index, from, from_index, static_cast<size_t>(bytes),
                                   as_stream(stream)),
               fmt::format("cudaMemcpyPeerAsync of {} bytes", bytes));
  }
}

void copy_rows(void* to,
               const void* from,
               int64_t step,
               int64_t bytes,
               int64_t count,
               void* stream,
               int stream_index) {
  constexpr int64_t kLargestPitch = std::numeric_limits<int32_t>::max();
  if (bytes == 0 || count == 0) {
    return;
  }
  if (step >= bytes && step <= kLargestPitch) {
    const DeviceGuard guard(stream_index);
    const auto width = static_cast<size_t>(bytes);
    check_cuda(cudaMemcpy2DAsync(to, width, from, static_cast<size_t>(step), width,
                                 static_cast<size_t>(count), cudaMemcpyDefault, as_stream(stream)),
               fmt::format("cudaMemcpy2DAsync of {} rows of {} bytes", count, bytes));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    copy(static_cast<std::byte*>(to) + i * bytes, static_cast<const std::byte*>(from) + i * step,
         bytes, stream, stream_index);
  }
}

void fill_zero(void* to, int64_t bytes, void* stream, int stream_index) {
  if (bytes > 0) {
    const DeviceGuard guard(stream_index);
    check_cuda(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), as_stream(stream)),
               fmt::format("cudaMemsetAsync of {} bytes", bytes));
  }
}

void copy_now(void* to, const void* from, int64_t bytes, int index) {
  const OutsideOfCaptures outside;
  copy(to, from, bytes, cudaStreamPerThread, index);
  synchronize_stream(cudaStreamPerThread, index);
}

void fill_zero_now(void* to, int64_t bytes, int index) {
  const OutsideOfCaptures outside;
  fill_zero(to, bytes, cudaStreamPerThread, index);
  synchronize_stream(cudaStreamPerThread, index);
}

MappedMemory::MappedMemory(int64_t bytes, int index) : bytes_(bytes) {
  expect_usable(index);
  const DeviceGuard guard(index);
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  host_ = mapped_blocks().take(size);
  std::fill_n(host_.get(), size, std::byte{0});
  void* device = nullptr;
  check_cuda(cudaHostGetDevicePointer(&device, host_.get(), 0), "cudaHostGetDevicePointer");
  device_ = static_cast<std::byte*>(device);
}

}  // namespace moebius::cuda
