// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What a program sets for the whole process: settings, where logs go, and who runs parallel loops.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/parallel.h"
#include "core/worker_team.h"
#include "moebius/error.h"
#include "moebius/log.h"
#include "moebius/parallel_executor.h"
#include "moebius/settings.h"
#include "tests/error_text.h"
#include "tests/scoped_setting.h"

namespace moebius {
namespace {

using testing::expect_mentions;
using testing::message_of;
using testing::ScopedSetting;

TEST(Settings, WhatIsSetWinsOverTheEnvironment) {
  setenv("MOEBIUS_THREADS", "3", 1);
  EXPECT_EQ(setting_int("MOEBIUS_THREADS"), 3);
  set_setting("MOEBIUS_THREADS", "2");
  EXPECT_EQ(setting_int("MOEBIUS_THREADS"), 2);
  EXPECT_EQ(Stream::cpu().num_threads(), 2);
  set_setting("MOEBIUS_THREADS", "");
  EXPECT_EQ(setting_int("MOEBIUS_THREADS"), std::nullopt);
  clear_setting("MOEBIUS_THREADS");
  EXPECT_EQ(setting_int("MOEBIUS_THREADS"), 3);
  unsetenv("MOEBIUS_THREADS");
}

TEST(Settings, WrongValuesAreRefusedAndChangeNothing) {
  const ScopedSetting two("MOEBIUS_THREADS", "2");
  for (const char* bad : {"zero", "0", "4097", "3x", " 4"}) {
    expect_mentions(message_of([&] { set_setting("MOEBIUS_THREADS", bad); }),
                    {"MOEBIUS_THREADS", bad, "1 to 4096"});
  }
  expect_mentions(message_of([] { set_setting("MOEBIUS_LOG", "warn,dispach"); }),
                  {"MOEBIUS_LOG", "warn,dispach", "a topic (dispatch)"});
  expect_mentions(message_of([] { set_setting("MOEBIUS_THREDS", "2"); }), "MOEBIUS_THREDS");
  expect_mentions(message_of([] { clear_setting("PATH"); }), "PATH");
  EXPECT_EQ(setting_int("MOEBIUS_THREADS"), 2);
}

TEST(Settings, EachSaysWhenItIsRead) {
  std::set<std::string_view> names;
  for (const SettingInfo& info : all_settings()) {
    EXPECT_FALSE(info.read.empty()) << info.name;
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    if (info.numbers) {
      EXPECT_LE(info.numbers->low, info.numbers->high) << info.name;
      EXPECT_NO_THROW(set_setting(info.name, std::to_string(info.numbers->high))) << info.name;
    }
    clear_setting(info.name);
  }
}

TEST(Settings, ThreadsMayReadWhileOneSets) {
  std::atomic<bool> is_over{false};
  std::thread reader([&] {
    while (!is_over) {
      const auto value = setting_int("MOEBIUS_LINK_LATENCY_US");
      EXPECT_TRUE(!value || *value == 7 || *value == 8);
      (void)log_topic_enabled("dispatch");
    }
  });
  for (int i = 0; i < 2000; ++i) {
    set_setting("MOEBIUS_LINK_LATENCY_US", i % 2 == 0 ? "7" : "8");
    if (i % 3 == 0) {
      clear_setting("MOEBIUS_LINK_LATENCY_US");
    }
  }
  is_over = true;
  reader.join();
  clear_setting("MOEBIUS_LINK_LATENCY_US");
}

struct Message {
  LogLevel level;
  std::string topic;
  std::string text;
};

// Collects messages while it lives.
class Collected {
 public:
  Collected() {
    set_log_callback([this](LogLevel level, std::string_view topic, std::string_view message) {
      const std::lock_guard lock(mutex_);
      messages_.push_back({level, std::string(topic), std::string(message)});
    });
  }
  ~Collected() { set_log_callback(nullptr); }
  std::vector<Message> get() {
    const std::lock_guard lock(mutex_);
    return messages_;
  }

 private:
  std::mutex mutex_;
  std::vector<Message> messages_;
};

TEST(LogCallback, GetsWhatTheLevelLetsThrough) {
  const ScopedSetting level("MOEBIUS_LOG", "info");
  Collected collected;
  log(LogLevel::kDebug, "too little");
  log(LogLevel::kInfo, "a line\nand another");
  log(LogLevel::kError, "an error");
  log_topic("dispatch", "not asked for");
  const auto messages = collected.get();
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].level, LogLevel::kInfo);
  EXPECT_EQ(messages[0].topic, "");
  EXPECT_EQ(messages[0].text, "a line\\x0aand another");
  EXPECT_EQ(messages[1].level, LogLevel::kError);
}

TEST(LogCallback, GetsTopics) {
  const ScopedSetting topics("MOEBIUS_LOG", "error,dispatch");
  Collected collected;
  log(LogLevel::kWarn, "too little");
  log_topic("dispatch", "quant: ref");
  const auto messages = collected.get();
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].topic, "dispatch");
  EXPECT_EQ(messages[0].text, "quant: ref");
}

TEST(LogCallback, AnEmptyOneBringsStderrBack) {
  { const Collected collected; }
  ::testing::internal::CaptureStderr();
  log(LogLevel::kWarn, "to stderr");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "warning: to stderr\n");
}

TEST(LogCallback, MayLogAndMayThrow) {
  int calls = 0;
  set_log_callback([&](LogLevel, std::string_view, std::string_view) {
    ++calls;
    log(LogLevel::kError, "from the callback");
    set_log_callback(nullptr);  // takes the lock that guards the callback
    throw std::runtime_error("dropped");
  });
  ::testing::internal::CaptureStderr();
  log(LogLevel::kError, "first");
  log(LogLevel::kError, "second");
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "error: from the callback\nerror: second\n");
}

// Threads that live for one loop.
class NewThreads : public ParallelExecutor {
 public:
  explicit NewThreads(int most = 1 << 20) : most_(most) {}

  void run(int num_threads, Job job, void* context) override {
    ++num_loops;
    std::vector<std::thread> threads;
    for (int i = 1; i < std::min(num_threads, most_); ++i) {
      threads.emplace_back([=] { job(context, i); });
    }
    job(context, 0);
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  std::atomic<int> num_loops{0};

 private:
  int most_;
};

class ExecutorTest : public ::testing::Test {
 protected:
  void TearDown() override { set_parallel_executor(nullptr); }
};

TEST_F(ExecutorTest, RunsEveryTaskOnce) {
  for (const int most : {1, 2, 100}) {
    const auto threads = std::make_shared<NewThreads>(most);
    set_parallel_executor(threads);
    std::vector<std::atomic<int>> done(1000);
    parallel_tasks(Stream::cpu(4), 1000, [&](int64_t task, int thread_idx) {
      EXPECT_GE(thread_idx, 0);
      EXPECT_LT(thread_idx, 4);
      ++done[static_cast<size_t>(task)];
      parallel_tasks(Stream::cpu(4), 3, [&](int64_t, int inner) { EXPECT_EQ(inner, 0); });
    });
    for (const auto& count : done) {
      EXPECT_EQ(count, 1);
    }
    EXPECT_EQ(threads->num_loops, 1);
    EXPECT_TRUE(worker_team::may_run());
  }
}

TEST_F(ExecutorTest, ErrorsOfTasksArriveAndNullBringsOurThreadsBack) {
  const auto threads = std::make_shared<NewThreads>();
  set_parallel_executor(threads);
  EXPECT_THROW(parallel_tasks(Stream::cpu(3), 10,
                              [](int64_t task, int) {
                                if (task == 4) {
                                  throw std::runtime_error("task 4");
                                }
                              }),
               std::runtime_error);
  set_parallel_executor(nullptr);
  std::atomic<int> sum{0};
  parallel_tasks(Stream::cpu(3), 10, [&](int64_t task, int) { sum += static_cast<int>(task); });
  EXPECT_EQ(sum, 45);
  EXPECT_EQ(threads->num_loops, 1);
}

class Idle : public ParallelExecutor {
 public:
  void run(int, Job, void*) override {}
};

class Refusing : public ParallelExecutor {
 public:
  void run(int, Job, void*) override { throw Error("no threads today"); }
};

TEST_F(ExecutorTest, OneThatDoesNothingIsFoundOut) {
  set_parallel_executor(std::make_shared<Idle>());
  expect_mentions(message_of<Error>([] { parallel_tasks(Stream::cpu(2), 5, [](int64_t, int) {}); }),
                  {"0 of 5 tasks"});
  set_parallel_executor(std::make_shared<Refusing>());
  expect_mentions(message_of<Error>([] { parallel_tasks(Stream::cpu(2), 5, [](int64_t, int) {}); }),
                  {"no threads today"});
}

}  // namespace
}  // namespace moebius
