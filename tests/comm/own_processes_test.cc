// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are processes of the caller: what does not fit together is refused by all, and nothing
// hangs or stays behind when one of them is killed or stopped, whenever that happens.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "moebius/group.h"
#include "moebius/low_latency.h"
#include "moebius/tensor.h"
#include "tests/comm/failure_cases.h"
#include "tests/comm/piped_processes.h"
#include "tests/comm/two_tokens.h"
#include "tests/error_text.h"

namespace moebius::testing {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kLong{60'000};

std::set<std::string> shared_files() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (name.find("_segment.") == std::string::npos) {  // of MPI jobs that run beside this test
      names.insert(name);
    }
  }
  return names;
}

// Every kind of wait: exchanges small and large, windows and signals.
void work_for_ever(Group& group) {
  const int size = group.size();
  const auto window = group.make_window("signals", 8 * size);
  const std::vector<std::byte> out(300'000, static_cast<std::byte>(group.rank()));
  std::vector<std::byte> in(out.size() * static_cast<size_t>(size));
  for (int64_t round = 1;; ++round) {
    all_gather_bytes(group, "dispatch", out.data(), static_cast<int64_t>(out.size()), in.data());
    for (int peer = 0; peer < size; ++peer) {
      window->signal(peer, 8 * group.rank(), round);
    }
    for (int peer = 0; peer < size; ++peer) {
      const auto* word = reinterpret_cast<int64_t*>(window->local()) + peer;
      group.wait_until(
          "signal", peer,
          [&] {
            return std::atomic_ref(*const_cast<int64_t*>(word)).load(std::memory_order_acquire) >=
                   round;
          },
          [&] { return fmt::format("expected signal {}", round); });
    }
    if (round % 10 == 0) {
      group.make_window("another", 100'000);
    }
  }
}

// Each rank becomes part of a group and works until something goes wrong.
void join_and_work(const Bootstrap& bootstrap) {
  const auto group = make_process_group(bootstrap);
  work_for_ever(*group);
}

// How many moments are tried; MOEBIUS_TEST_MOMENTS asks for more.
int num_moments() {
  const char* wanted = std::getenv("MOEBIUS_TEST_MOMENTS");
  return wanted == nullptr ? 8 : std::atoi(wanted);
}

// Sends the signal to a rank at a random moment; every other rank must name it within `limit`.
void disturb(int signal, milliseconds timeout, milliseconds limit) {
  constexpr int kRanks = 4;
  const std::set<std::string> before = shared_files();
  std::mt19937 random(static_cast<uint32_t>(signal));
  for (int moment = 0; moment < num_moments(); ++moment) {
    const int guilty = static_cast<int>(random() % kRanks);
    // Starting takes some milliseconds, so that this is before, during or after it.
    const std::chrono::microseconds delay(random() % (moment % 2 == 0 ? 20'000 : 200'000));
    SCOPED_TRACE(fmt::format("moment {}: rank {} after {} us", moment, guilty, delay.count()));
    PipedProcesses processes({.num_ranks = kRanks, .timeout = timeout}, join_and_work);
    std::this_thread::sleep_for(delay);
    const auto when = std::chrono::steady_clock::now();
    kill(processes.pid(guilty), signal);
    const auto reports = processes.wait(limit + std::chrono::seconds(20), guilty);
    expect_blamed(reports, guilty, when, limit);
  }
  EXPECT_EQ(shared_files(), before);
}

TEST(OwnProcesses, NameOneThatIsKilledAtOnce) {
  disturb(SIGKILL, kLong, kLong / 4);
}

TEST(OwnProcesses, NameOneThatIsStoppedAtTheDeadline) {
  disturb(SIGSTOP, milliseconds(700), milliseconds(5'000));
}

// The stopped rank has shown that it waits for another.  It is blamed nevertheless.
TEST(OwnProcesses, OneThatIsStoppedWhileItWaitsIsNamed) {
  constexpr int kStopped = 2;
  PipedProcesses processes({.num_ranks = 3, .timeout = milliseconds(1000)},
                           [](const Bootstrap& bootstrap) {
                             wait_in_a_circle(*make_process_group(bootstrap), kStopped);
                           });
  const auto reports = processes.wait(kLong, kStopped);
  for (const size_t rank : {0u, 1u}) {
    ASSERT_TRUE(reports[rank].has_reported);
    EXPECT_EQ(reports[rank].peer, kStopped) << reports[rank].message;
    expect_mentions(reports[rank].message, {"rank 2 did not come", "its process is stopped"});
  }
}

// The messages of all ranks, whose bodies must end by themselves.
std::vector<std::string> messages_of(const ProcessGroupOptions& options,
                                     const std::function<void(const Bootstrap&)>& body) {
  std::vector<std::string> messages;
  for (const PipedReport& report : PipedProcesses(options, body).wait(kLong)) {
    EXPECT_TRUE(report.has_reported);
    messages.push_back(report.message);
  }
  return messages;
}

TEST(OwnProcesses, NeedNoAccessToEachOthersFiles) {
  // A process that is not dumpable keeps others of its user out of its /proc/<pid>/fd.
  const auto messages =
      messages_of({.num_ranks = 3, .timeout = kLong}, [](const Bootstrap& bootstrap) {
        expect_eq(prctl(PR_SET_DUMPABLE, 0), 0, "result of prctl()");
        const auto group = make_process_group(bootstrap);
        const auto window = group->make_window("window", 1000);
        window->local()[0] = static_cast<std::byte>(group->rank() + 1);
        group->barrier("written");
        for (int peer = 0; peer < group->size(); ++peer) {
          expect_eq(static_cast<int>(window->peer(peer)[0]), peer + 1, "byte of a peer");
        }
        group->barrier("read");
      });
  EXPECT_EQ(messages, std::vector<std::string>(3));
}

TEST(OwnProcesses, RefuseTogetherWhatDoesNotFit) {
  const auto start_as = [](const std::function<void(Bootstrap&)>& change) {
    return messages_of({.num_ranks = 2, .timeout = kLong}, [=](const Bootstrap& given) {
      Bootstrap bootstrap = given;
      if (given.rank == 1) {
        change(bootstrap);
      }
      make_process_group(bootstrap);
    });
  };
  for (const std::string& message : start_as([](Bootstrap& b) { b.rank = 0; })) {
    expect_mentions(message,
                    "rank said by the process at place 1 of the all-gather is 0, expected 1");
  }
  for (const std::string& message : start_as([](Bootstrap& b) { b.ranks_per_node = 1; })) {
    expect_mentions(message, "ranks_per_node said by the process at place 1");
  }
  expect_mentions(message_of<InvalidArgument>([] { make_process_group({.rank = 2, .size = 2}); }),
                  "all_gather is empty");
  expect_mentions(message_of<InvalidArgument>([] { make_process_group({.size = 1000}); }),
                  "size is 1000, expected at most 256");
}

TEST(OwnProcesses, ARankThatIsGatheredButDoesNotComeIsNamed) {
  const auto messages =
      messages_of({.num_ranks = 3, .timeout = milliseconds(400)}, [](const Bootstrap& given) {
        Bootstrap bootstrap = given;
        bootstrap.all_gather = [&](const void* in, int64_t bytes, void* out) {
          given.all_gather(in, bytes, out);
          if (given.rank == 1) {
            std::this_thread::sleep_for(std::chrono::seconds(2));
          }
        };
        make_process_group(bootstrap);
      });
  for (const size_t rank : {0u, 2u}) {
    expect_mentions(messages[rank],
                    "make_process_group, epoch 0: rank 1 did not come within 400 ms");
  }
}

TEST(OwnProcesses, OneThatEndsBeforeTheOthersLookForItIsNamedAtOnce) {
  // Rank 1 has been waited for by its parent, too, when the others come to watch it.
  const auto body = [](const Bootstrap& given) {
    Bootstrap bootstrap = given;
    bootstrap.all_gather = [&](const void* in, int64_t bytes, void* out) {
      given.all_gather(in, bytes, out);
      if (given.rank == 1) {
        raise(SIGKILL);
      }
      std::this_thread::sleep_for(milliseconds(500));
    };
    make_process_group(bootstrap);
  };
  const auto start = std::chrono::steady_clock::now();
  const auto reports = PipedProcesses({.num_ranks = 3, .timeout = kLong}, body).wait(kLong / 2);
  for (const size_t rank : {0u, 2u}) {
    ASSERT_TRUE(reports[rank].has_reported) << "rank " << rank << " has not ended";
    // The first of the others that gives up may be named beside it.
    expect_mentions(reports[rank].message, "rank 1 has died: its process has ended");
    EXPECT_LT(reports[rank].ended - start, kLong / 4);
  }
}

TEST(OwnProcesses, OneProcessAloneNeedsNoGather) {
  const auto group = make_process_group({});
  EXPECT_EQ(group->size(), 1);
  EXPECT_EQ(group->name(), "processes");
  group->barrier("alone");
}

TEST(OwnProcesses, ASubGroupThatLosesAMemberNamesItAndOthersGoOn) {
  // Ranks 0 and 1, and ranks 2 and 3, are a sub-group each.  Rank 3 dies.
  const auto body = [](const Bootstrap& bootstrap) {
    const auto group = make_process_group(bootstrap);
    const auto part = group->split(group->rank() / 2);
    part->barrier("met");
    if (group->rank() == 3) {
      raise(SIGKILL);
    }
    for (int i = 0; i < 1000; ++i) {
      part->barrier("go on");
    }
  };
  const auto reports = PipedProcesses({.num_ranks = 4, .timeout = kLong}, body).wait(kLong);
  EXPECT_EQ(reports[0].message + reports[1].message, "");
  EXPECT_EQ(
      reports[2].message,
      "rank 0: go on, epoch 2: rank 1 has died: its process has ended (in a sub-group: rank 0 "
      "is rank 2, rank 1 is rank 3 of the group that was split)");
}

TEST(OwnProcesses, LowLatencyGoesOnWithoutOneThatIsKilled) {
  const auto body = [](const Bootstrap& bootstrap) {
    const auto group = make_process_group(bootstrap);
    const TwoTokens tokens;
    const auto& [x, ids, weights, options] = tokens;
    LowLatency transport(*group, ExpertPlacement::linear(4, 4), options);
    for (int call = 0; call < 4; ++call) {
      if (group->rank() == 3 && call == 1) {
        raise(SIGKILL);
      }
      const auto rows = transport.dispatch({.x = x, .topk_ids = ids}, Stream());
      const auto sum = transport.combine({.x = rows.x, .topk_ids = ids, .topk_weights = weights},
                                         *rows.handle, Stream());
      // Token 1 has the experts of the ranks 2 and 3.
      const bool has_lost = transport.dead_ranks()[3];
      expect(get_float(sum.x, 0) == 2, "token 0 has lost an expert");
      expect(call == 0 || get_float(sum.x, 128) == (has_lost ? 1 : 2), "token 1 is wrong");
    }
    expect(transport.dead_ranks()[3], "rank 3 is not excluded");
  };
  const auto reports = PipedProcesses({.num_ranks = 4, .timeout = kLong}, body).wait(kLong);
  for (const size_t rank : {0u, 1u, 2u}) {
    ASSERT_TRUE(reports[rank].has_reported) << "rank " << rank << " has not ended";
    EXPECT_EQ(reports[rank].message, "") << "rank " << rank;
  }
}

}  // namespace
}  // namespace moebius::testing
