// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/allocator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "core/allocate.h"
#include "core/ordered_lease.h"
#include "moebius/error.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"
#include "tests/error_text.h"

namespace moebius {
namespace {

using testing::expect_mentions;
using testing::message_of;

// Keeps count of what it has given, and fails as it is told.
class CountingAllocator final : public Allocator {
 public:
  enum class Failure { kNone, kNull, kBadAlloc, kThrows, kMisaligned };

  void* allocate(int64_t bytes, int64_t alignment, Device device, void* stream) override {
    EXPECT_TRUE(device.is_cpu());
    EXPECT_EQ(stream, nullptr);
    EXPECT_GT(bytes, 0);
    switch (failure) {
      case Failure::kNone:
        break;
      case Failure::kNull:
        return nullptr;
      case Failure::kBadAlloc:
        throw std::bad_alloc();
      case Failure::kThrows:
        throw std::runtime_error("the arena is closed");
      case Failure::kMisaligned:
        break;
    }
    ++num_allocations;
    now += bytes;
    auto* block = static_cast<std::byte*>(
        std::aligned_alloc(static_cast<size_t>(alignment),
                           static_cast<size_t>((bytes + 2 * alignment) / alignment * alignment)));
    return block + (failure == Failure::kMisaligned ? 16 : 0);
  }
  void deallocate(void* data, int64_t bytes, Device, void*) noexcept override {
    now -= bytes;
    std::free(static_cast<std::byte*>(data) - (failure == Failure::kMisaligned ? 16 : 0));
  }

  Failure failure = Failure::kNone;
  std::atomic<int64_t> num_allocations{0};
  std::atomic<int64_t> now{0};
};

class AllocatorTest : public ::testing::Test {
 protected:
  void SetUp() override { set_allocator(Device::cpu(), allocator); }
  void TearDown() override { set_allocator(Device::cpu(), nullptr); }

  const std::shared_ptr<CountingAllocator> allocator = std::make_shared<CountingAllocator>();
};

TEST_F(AllocatorTest, TensorsComeFromIt) {
  {
    const Tensor t = Tensor::zeros({3, 5}, DType::kF32);
    EXPECT_EQ(allocator->now, 60);
    const Tensor copy = t.clone();
    const Tensor part = t.slice(0, 1);
    EXPECT_EQ(allocator->now, 120);
    EXPECT_EQ(allocator->num_allocations, 2);
    EXPECT_EQ(convert(t, DType::kBF16).nbytes(), 30);
    const auto scratch = moebius::allocate(100, Device::cpu());
    EXPECT_EQ(allocator->now, 220);
  }
  EXPECT_EQ(allocator->now, 0);
}

TEST_F(AllocatorTest, MemoryGoesBackToTheAllocatorThatGaveIt) {
  Tensor t = Tensor::zeros({64}, DType::kU8);
  const auto other = std::make_shared<CountingAllocator>();
  set_allocator(Device::cpu(), other);
  Tensor u = Tensor::zeros({32}, DType::kU8);
  set_allocator(Device::cpu(), nullptr);
  std::weak_ptr<CountingAllocator> watched = other;
  EXPECT_EQ(allocator->now, 64);
  EXPECT_EQ(other->now, 32);
  t = Tensor();
  EXPECT_EQ(allocator->now, 0);
  u = Tensor();
  EXPECT_EQ(other->now, 0);
  EXPECT_EQ(watched.use_count(), 1);  // the library keeps no allocator that is not in use
}

TEST_F(AllocatorTest, FailuresNameTheBytesAndTheDevice) {
  using Failure = CountingAllocator::Failure;
  const auto message = [] { return message_of<Error>([] { Tensor::empty({1000}, DType::kF32); }); };
  allocator->failure = Failure::kNull;
  expect_mentions(message(), {"out of memory", "4000 bytes", "cpu"});
  allocator->failure = Failure::kBadAlloc;
  expect_mentions(message(), {"out of memory", "4000 bytes", "cpu"});
  allocator->failure = Failure::kThrows;
  expect_mentions(message(), {"4000 bytes", "the arena is closed"});
  allocator->failure = Failure::kMisaligned;
  expect_mentions(message(), {"multiple of 256"});
  EXPECT_EQ(allocator->now, 0);
  allocator->failure = Failure::kNone;
  EXPECT_NO_THROW(Tensor::empty({1000}, DType::kF32));
}

TEST_F(AllocatorTest, StatisticsFollowEveryAllocation) {
  const MemoryStatistics before = memory_statistics(Device::cpu());
  reset_peak_memory(Device::cpu());
  {
    const Tensor a = Tensor::empty({1000}, DType::kU8);
    const Tensor b = Tensor::empty({0, 7}, DType::kU8);  // takes a byte, for an address of its own
    const MemoryStatistics now = memory_statistics(Device::cpu());
    EXPECT_EQ(now.bytes, before.bytes + 1001);
    EXPECT_EQ(now.num_blocks, before.num_blocks + 2);
    EXPECT_EQ(now.num_allocations, before.num_allocations + 2);
    EXPECT_EQ(now.peak_bytes, before.bytes + 1001);
  }
  const MemoryStatistics after = memory_statistics(Device::cpu());
  EXPECT_EQ(after.bytes, before.bytes);
  EXPECT_EQ(after.num_blocks, before.num_blocks);
  EXPECT_EQ(after.peak_bytes, before.bytes + 1001);
  reset_peak_memory(Device::cpu());
  EXPECT_EQ(memory_statistics(Device::cpu()).peak_bytes, before.bytes);
}

TEST_F(AllocatorTest, ThreadsMayAllocateWhileItIsReplaced) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([] {
      for (int n = 0; n < 2000; ++n) {
        const Tensor t = Tensor::empty({n + 1}, DType::kU8);
        t.bytes()[n] = std::byte{1};
      }
    });
  }
  for (int n = 0; n < 500; ++n) {
    set_allocator(Device::cpu(), n % 2 == 0 ? nullptr : allocator);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(allocator->now, 0);
}

TEST_F(AllocatorTest, DevicesHaveAllocatorsOfTheirOwn) {
  expect_mentions(message_of([&] { set_allocator(Device::cuda(-1), allocator); }), {"-1", "0"});
  set_allocator(Device::cuda(5), allocator);  // a GPU that need not exist
  EXPECT_EQ(Tensor::zeros({8}, DType::kU8).nbytes(), 8);
  set_allocator(Device::cuda(5), nullptr);
  trim_memory(Device::cpu());
}

TEST(Tensor, ReadOnlyHandlesAreRefusedAsOutputs) {
  const Tensor t = Tensor::zeros({2, 4}, DType::kF32);
  const Tensor fixed = t.as_read_only();
  EXPECT_FALSE(t.is_read_only());
  for (const Tensor& handle :
       {fixed, fixed[0], fixed.slice(0, 1), fixed.view({8}), fixed.view_as(DType::kU8)}) {
    EXPECT_TRUE(handle.is_read_only());
  }
  EXPECT_FALSE(fixed.clone().is_read_only());
  copy(fixed, t, Stream::cpu(1));
  expect_mentions(message_of([&] { copy(t, fixed, Stream::cpu(1)); }), {"to [2, 4] is read-only"});
}

TEST(Tensor, StreamsOfTheCpuNeedNoRecord) {
  Tensor t = Tensor::zeros({4}, DType::kF32);
  t.record_stream(Stream::cpu(1));
  EXPECT_EQ(t.numel(), 4);
  std::byte byte{};
  Tensor lent = Tensor::borrow(&byte, {1}, DType::kU8);
  expect_mentions(message_of([&] { lent.record_stream(Stream::cpu(1)); }), "borrowed");
  Tensor none;
  EXPECT_THROW(none.record_stream(Stream::cpu(1)), InvalidArgument);
}

TEST(OrderedLease, LendsTheMemoryUntilTheLastHandleIsGone) {
  const auto memory = std::make_shared<int>(7);
  OrderedLease lease(memory);
  const Stream stream = Stream::cpu(1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(lease.is_taken());
    EXPECT_TRUE(lease.is_done());
    std::shared_ptr<void> lent = lease.lend(stream);
    EXPECT_EQ(lent.get(), memory.get());
    const std::shared_ptr<void> kept = OrderedLease::note(lent, stream);
    EXPECT_EQ(kept, lent);
    lent.reset();
    EXPECT_TRUE(lease.is_taken());
  }
  EXPECT_FALSE(lease.is_taken());
  EXPECT_EQ(OrderedLease::note(memory, stream), nullptr);
}

TEST(OrderedLease, WhatIsLentOutlivesTheLease) {
  std::weak_ptr<int> memory;
  std::shared_ptr<void> lent;
  {
    const auto made = std::make_shared<int>(7);
    memory = made;
    OrderedLease first(made);
    OrderedLease second(std::move(first));
    lent = second.lend(Stream::cpu(1));
  }
  EXPECT_FALSE(memory.expired());
  lent.reset();
  EXPECT_TRUE(memory.expired());
}

}  // namespace
}  // namespace moebius
