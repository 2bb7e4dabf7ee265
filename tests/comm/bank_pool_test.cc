// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Which banks calls on GPUs may have, with events that are complete when a test says so.
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "comm/high_throughput/bank.h"
#include "core/ordered_lease.h"
#include "moebius/group.h"
#include "moebius/stream.h"
#include "tests/fake_cuda.h"

namespace moebius::testing {
namespace {

using comm::Launch;

class Banks : public ::testing::Test {
 protected:
  Banks() { pool.add(*group, 64); }
  ~Banks() override { complete_events(true); }

  // A call on the stream, whose result is used there and dropped.
  void call(Launch launch, const Stream& stream) {
    const int64_t bank = pool.pick(launch);
    ASSERT_NE(bank, BankPool::kNone);
    const std::shared_ptr<void> lease = pool.lease_in_order(bank, launch, stream);
    EXPECT_EQ(OrderedLease::note(lease, stream), lease);
    EXPECT_EQ(pool.pick(launch), BankPool::kNone);
  }

  const std::unique_ptr<Group> group = std::move(make_thread_groups(1).front());
  BankPool pool;
  const Stream one = Stream::cuda(0);
  const Stream two = Stream::cuda(0);
};

// A call that is captured asks twice: it agrees with the other ranks on room in between.
TEST_F(Banks, WhatIsDoneStaysDone) {
  call(Launch::kNow, one);
  complete_events(false);
  take_cuda_calls();
  EXPECT_EQ(pool.pick(Launch::kCaptured), BankPool::kNone);
  EXPECT_EQ(pool.pick(Launch::kCaptured), BankPool::kNone);
  EXPECT_EQ(pool.pick(Launch::kNow), 0);
  complete_events(true);
  EXPECT_EQ(pool.pick(Launch::kCaptured), 0);
  EXPECT_EQ(take_cuda_calls()["cudaEventRecord"], 1);
  complete_events(false);
  EXPECT_EQ(pool.pick(Launch::kCaptured), 0);
}

TEST_F(Banks, GraphsOfAllStreamsShareABank) {
  call(Launch::kCaptured, one);
  complete_events(false);
  call(Launch::kCaptured, two);
  EXPECT_EQ(pool.pick(Launch::kNow), BankPool::kNone);
}

// Another stream waits for uses that came after is_done() had asked, too.
TEST_F(Banks, AnotherStreamWaitsForTheLatestUse) {
  call(Launch::kNow, one);
  complete_events(false);
  EXPECT_EQ(pool.pick(Launch::kCaptured), BankPool::kNone);
  call(Launch::kNow, one);
  take_cuda_calls();
  call(Launch::kNow, two);
  auto calls = take_cuda_calls();
  EXPECT_EQ(calls["cudaEventRecord"], 1);
  EXPECT_EQ(calls["cudaStreamWaitEvent"], 1);
}

// CUDA would refuse an event there while a stream that waits for it is captured.
TEST_F(Banks, TheDefaultStreamIsNotAsked) {
  call(Launch::kNow, Stream::wrap_cuda(nullptr, 0));
  take_cuda_calls();
  EXPECT_EQ(pool.pick(Launch::kCaptured), BankPool::kNone);
  EXPECT_EQ(take_cuda_calls()["cudaEventRecord"], 0);
}

}  // namespace
}  // namespace moebius::testing
