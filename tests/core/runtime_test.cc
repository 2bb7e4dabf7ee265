// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests of settings, errors, streams, loops and the choice of implementations.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/awake_deadline.h"
#include "core/cpu_features.h"
#include "core/parallel.h"
#include "core/select.h"
#include "moebius/deadline.h"
#include "moebius/error.h"
#include "moebius/settings.h"
#include "moebius/stream.h"
#include "tests/error_text.h"
#include "tests/scoped_setting.h"

namespace moebius {
namespace {

using testing::expect_mentions;
using testing::message_of;
using testing::ScopedSetting;

TEST(Settings, UnsetAndEmptyAreAbsent) {
  unsetenv("MOEBIUS_THREADS");
  EXPECT_FALSE(setting("MOEBIUS_THREADS").has_value());
  const ScopedSetting env("MOEBIUS_THREADS", "");
  EXPECT_FALSE(setting("MOEBIUS_THREADS").has_value());
}

TEST(Settings, BadNumbersNameVariableValueAndBounds) {
  for (const char* bad : {"zero", "0", "4097", "3x", "1e3", " 4"}) {
    setenv("MOEBIUS_THREADS", bad, 1);
    expect_mentions(message_of([] { setting_int("MOEBIUS_THREADS"); }),
                    {"MOEBIUS_THREADS", bad, "1 to 4096"});
  }
  unsetenv("MOEBIUS_THREADS");
}

TEST(Error, ChecksNameBothValuesAndThePlace) {
  expect_mentions(message_of([] { expect_eq(7000, 7168, "x.dim(1)"); }),
                  "x.dim(1) is 7000, expected 7168 (runtime_test.cc:");
  EXPECT_NO_THROW(expect_eq(1, 1, "x"));
  EXPECT_THROW(expect_ge(1, 2, "x"), InvalidArgument);
  EXPECT_THROW(expect_le(3, 2, "x"), InvalidArgument);
  EXPECT_THROW(expect_multiple_of(130, 128, "x"), InvalidArgument);
  EXPECT_THROW(expect(false, "x"), InvalidArgument);
}

TEST(Error, MessagesAreMadeOnlyWhereACheckFails) {
  int made = 0;
  const auto message = [&] { return "message " + std::to_string(++made); };
  expect(true, message);
  EXPECT_EQ(made, 0);
  expect_mentions(message_of([&] { expect(false, message); }), "message 1 (runtime_test.cc:");
}

TEST(Stream, CpuThreadsComeFromArgumentThenSetting) {
  EXPECT_EQ(Stream::cpu(3).num_threads(), 3);
  const ScopedSetting env("MOEBIUS_THREADS", "5");
  EXPECT_EQ(Stream::cpu().num_threads(), 5);
  EXPECT_THROW(Stream::cpu(-1), InvalidArgument);
  EXPECT_TRUE(Stream::cpu(1).record().is_complete());
}

TEST(Parallel, RunsEachTaskOnceOnAnyNumberOfThreads) {
  for (const int threads : {1, 2, 7}) {
    const Stream stream = Stream::cpu(threads);
    for (const int64_t n : {0, 1, 5, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(n));
      std::atomic<int> bad_thread{0};
      parallel_tasks(stream, n, [&](int64_t task, int thread_idx) {
        ++runs[static_cast<size_t>(task)];
        bad_thread += thread_idx < 0 || thread_idx >= threads;
      });
      for (const auto& count : runs) {
        EXPECT_EQ(count, 1);
      }
      EXPECT_EQ(bad_thread, 0);
    }
  }
}

TEST(Parallel, BlocksCoverTheRange) {
  std::vector<int> hits(103, 0);
  parallel_for(Stream::cpu(2), 103, 10, [&](int64_t begin, int64_t end) {
    EXPECT_LE(end - begin, 10);
    for (int64_t i = begin; i < end; ++i) {
      ++hits[static_cast<size_t>(i)];
    }
  });
  for (const int count : hits) {
    EXPECT_EQ(count, 1);
  }
}

TEST(Parallel, RethrowsAndStaysUsable) {
  const Stream stream = Stream::cpu(2);
  EXPECT_THROW(parallel_tasks(stream, 100,
                              [](int64_t task, int) {
                                if (task == 3) {
                                  throw std::runtime_error("task 3");
                                }
                              }),
               std::runtime_error);
  std::atomic<int> done{0};
  parallel_tasks(stream, 10, [&](int64_t, int) { ++done; });
  EXPECT_EQ(done, 10);
}

struct FakeImpl {
  std::string_view name;
  bool accepts;
};
constexpr std::array kFakes = {FakeImpl{"special", false}, FakeImpl{"general", true},
                               FakeImpl{"ref", true}};

const FakeImpl& pick(std::string_view forced) {
  return select_impl(kFakes, "quant", "MOEBIUS_QUANT", forced, [](const FakeImpl& impl) {
    return impl.accepts ? Support::yes() : Support::no("hidden 7000 is odd");
  });
}

TEST(Select, TakesTheFirstThatAcceptsOrTheForced) {
  unsetenv("MOEBIUS_QUANT");
  EXPECT_EQ(pick("").name, "general");
  EXPECT_EQ(pick("ref").name, "ref");
  const ScopedSetting env("MOEBIUS_QUANT", "ref");
  EXPECT_EQ(pick("").name, "ref");
  EXPECT_EQ(pick("general").name, "general");
}

TEST(Select, RefusalsSayWhy) {
  expect_mentions(message_of<Unsupported>([&] { pick("special"); }), "special: hidden 7000 is odd");
  expect_mentions(message_of([&] { pick("nonsense"); }), "special, general, ref");
}

TEST(Deadline, ExpiresAndCountsDown) {
  const Deadline past = Deadline::after(std::chrono::nanoseconds(0));
  EXPECT_TRUE(past.expired());
  EXPECT_EQ(past.remaining().count(), 0);
  const Deadline later = Deadline::after(std::chrono::hours(1));
  EXPECT_FALSE(later.expired());
  EXPECT_GT(later.remaining(), std::chrono::minutes(59));
}

// Durations that nanoseconds cannot count are allowed, too.
// A thread that sleeps for longer than a short timeout has not been stopped.
TEST(AwakeDeadline, ExpiresForThreadsThatSleepLonger) {
  AwakeDeadline deadline(std::chrono::milliseconds(2));
  int num_looks = 1;
  for (; num_looks < 100 && !deadline.expired(); ++num_looks) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
  EXPECT_LT(num_looks, 100);
}

TEST(Deadline, NoDurationIsTooLong) {
  EXPECT_FALSE(Deadline::after(std::chrono::milliseconds::max()).expired());
  EXPECT_FALSE(Deadline::after(std::chrono::milliseconds(9'223'372'036'854)).expired());
  EXPECT_FALSE(Deadline::after(std::chrono::nanoseconds::max()).expired());
  EXPECT_GT(Deadline::after(std::chrono::hours::max()).remaining(), std::chrono::hours(24));
}

TEST(CpuFeatures, WiderSetsIncludeNarrowerOnes) {
  const CpuFeatures& f = cpu_features();
  EXPECT_TRUE(!f.avx512 || f.avx2);
  EXPECT_TRUE(!f.avx512_bf16 || f.avx512);
  EXPECT_TRUE(!f.amx_bf16 || f.avx512);
}

}  // namespace
}  // namespace moebius
