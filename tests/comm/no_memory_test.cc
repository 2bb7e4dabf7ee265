// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A rank tells its failure when there is no memory left.  This program's operator new can be told
// to find none.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "core/host_allocator.h"
#include "moebius/group.h"
#include "moebius/low_latency.h"
#include "moebius/transports.h"
#include "tests/comm/lone_group.h"
#include "tests/error_text.h"

namespace {

thread_local bool has_no_memory = false;

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  void* memory = has_no_memory ? nullptr : std::malloc(bytes);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace moebius {
namespace {

// The last rank runs out of memory between two calls, and does not get any more.
void run_out_of_memory(Group& group) {
  group.barrier("first");
  if (group.rank() == group.size() - 1) {
    has_no_memory = true;
    delete new std::string(1000, 'x');
  }
  group.barrier("second");
}

template <typename Options>
void expect_told(void (*run)(const Options&,
                             const std::function<void(Group&)>&,
                             std::vector<std::string>*),
                 const Options& options) {
  std::vector<std::string> errors;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_ANY_THROW(run(
      options,
      [](Group& group) {
        try {
          run_out_of_memory(group);
        } catch (const std::bad_alloc&) {
          group.abort("out of memory");  // as what runs the ranks does once more
          throw;
        }
      },
      &errors));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, options.timeout / 2);
  const int last = options.num_ranks - 1;
  for (int rank = 0; rank < last; ++rank) {
    EXPECT_EQ(errors[static_cast<size_t>(rank)],
              "rank " + std::to_string(rank) + ": second, epoch 2: rank " + std::to_string(last) +
                  " failed: out of memory");
  }
  EXPECT_EQ(errors[static_cast<size_t>(last)], "out of memory");
}

constexpr std::chrono::milliseconds kTimeout{20'000};

TEST(NoMemory, RankThreadsTellTheirFailure) {
  expect_told<ThreadGroupOptions>(run_thread_ranks, {.num_ranks = 3, .timeout = kTimeout});
}

TEST(NoMemory, ForkedRanksTellTheirFailure) {
  expect_told<ProcessGroupOptions>(run_process_ranks, {.num_ranks = 3, .timeout = kTimeout});
}

TEST(NoMemory, AnAbandonedExchangeIsTold) {
  testing::LoneGroup group(0, 2);
  has_no_memory = true;
  group.abandon({"dispatch", 1});
  has_no_memory = false;
  ASSERT_EQ(group.told.size(), 1u);
  EXPECT_EQ(testing::message_of<CommError>([&] { group.barrier("combine"); }),
            "rank 0: combine, epoch 1: rank 0 abandoned dispatch at epoch 1");
}

// No address space is as large as these, so nothing is ever taken.
TEST(NoMemory, BlocksThatDoNotFitAreNamedWithTheirBytes) {
  testing::expect_mentions(
      testing::message_of<OutOfMemory>([] { allocate_block(int64_t{1} << 60); }),
      "out of memory: 1152921504606846976 bytes on cpu");
}

TEST(NoMemory, WindowsThatDoNotFitAreNamedWithTheirBytes) {
  run_thread_ranks({}, [](Group& group) {
    const LowLatencyOptions options{10'000'000, int64_t{1} << 30, 1};
    testing::expect_mentions(testing::message_of<OutOfMemory>([&] {
                               LowLatency(group, ExpertPlacement::linear(1, 1), options);
                             }),
                             "out of memory: 85899346240000592 bytes on cpu");
    Transports transports(group);
    testing::expect_mentions(
        testing::message_of<OutOfMemory>([&] { transports.reserve_low_latency(int64_t{1} << 60); }),
        "out of memory: 1152921504606846976 bytes on cpu");
  });
}

}  // namespace
}  // namespace moebius
