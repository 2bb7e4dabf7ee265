// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/host_allocator.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <new>

#include "core/allocate.h"
#include "core/proc_fields.h"

namespace moebius {

namespace {

constexpr std::align_val_t kAlignment{256};
constexpr std::align_val_t kHugePage{size_t{2} << 20};
constexpr int64_t kLarge = int64_t{4} << 20;

std::align_val_t alignment_of(int64_t bytes) {
  return bytes < kLarge ? kAlignment : kHugePage;
}

void* take(int64_t bytes) {
  const auto n = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  void* block = ::operator new(n, alignment_of(bytes), std::nothrow);
  if (block == nullptr) {
    throw_out_of_memory(bytes, Device::cpu());
  }
#ifdef MADV_HUGEPAGE
  if (bytes >= kLarge) {
    madvise(block, n, MADV_HUGEPAGE);  // results do not depend on whether this succeeds
  }
#endif
  return block;
}

void give_back(void* block, int64_t bytes) noexcept {
  ::operator delete(block, alignment_of(bytes));
}

// Returns the least of what the system says is there.  Where it says nothing, there is no limit.
int64_t available_bytes() {
  int64_t least = std::numeric_limits<int64_t>::max();
  if (const int64_t free = proc_bytes("/proc/meminfo", "MemAvailable"); free > 0) {
    least = free;
  }
  // The limit of a container (cgroups of version 2 and 1), whose caches may make room.
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    if (int64_t limit = 0; std::ifstream(path) >> limit) {
      least = std::min(least, limit);
    }
  }
  return least;
}

class HostAllocator final : public Allocator {
 public:
  void* allocate(int64_t bytes, int64_t, Device, void*) override { return take(bytes); }
  void deallocate(void* data, int64_t bytes, Device, void*) noexcept override {
    give_back(data, bytes);
  }
};

}  // namespace

std::shared_ptr<Allocator> host_allocator() {
  // Leaked: tensors may be made and freed after main().
  static const auto& instance = *new std::shared_ptr<Allocator>(std::make_shared<HostAllocator>());
  return instance;
}

std::shared_ptr<std::byte> allocate_block(int64_t bytes) {
  return {static_cast<std::byte*>(take(bytes)), [bytes](std::byte* p) { give_back(p, bytes); }};
}

void expect_available(int64_t bytes) {
  if (const int64_t available = available_bytes(); bytes > available) {
    throw_out_of_memory(bytes, Device::cpu(), fmt::format("{} bytes are available", available));
  }
}

}  // namespace moebius
