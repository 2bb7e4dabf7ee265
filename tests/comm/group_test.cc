// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The contract of Group, for every kind of group: exchanges, waiting, topology, splits.
#include "tests/comm/group_test.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "comm/group/blocks.h"
#include "tests/error_text.h"

namespace moebius::testing {
namespace {

// A unit of payload that names where it comes from.
struct Unit {
  int32_t source = -1;
  int32_t target = -1;
  int32_t block = -1;
  int32_t index = -1;
  bool operator==(const Unit&) const = default;
};
void PrintTo(const Unit& unit, std::ostream* out) {
  *out << "unit " << unit.index << " of block " << unit.block << " from rank " << unit.source
       << " to " << unit.target;
}

using Units = std::vector<Unit>;

Units make_units(int source, int target, int block, size_t count) {
  Units units(count);
  for (size_t i = 0; i < count; ++i) {
    units[i] = {source, target, block, static_cast<int32_t>(i)};
  }
  return units;
}

int64_t bytes_of(const Units& units) {
  return static_cast<int64_t>(units.size() * sizeof(Unit));
}

// The sizes of 0, 1 or 2 blocks, a third of which are empty.
std::vector<size_t> block_sizes(uint32_t round, int source, int target, uint32_t max_units) {
  std::minstd_rand random((round * 1009 + static_cast<uint32_t>(source)) * 1013 +
                          static_cast<uint32_t>(target) + 1);
  random.discard(3);
  std::vector<size_t> sizes(random() % 3);
  for (size_t& size : sizes) {
    size = random() % 3 == 0 ? 0 : random() % (max_units + 1);
  }
  return sizes;
}

// An exchange with random sizes.  Both ends compute the same sizes from the round.
struct RandomExchange {
  std::vector<Units> sent, expected, received;
  std::vector<SendBlock> sends;
  std::vector<RecvBlock> recvs;

  RandomExchange(const Group& group, uint32_t round, uint32_t max_units) {
    for (int peer = 0; peer < group.size(); ++peer) {
      for (const size_t count : block_sizes(round, group.rank(), peer, max_units)) {
        sent.push_back(make_units(group.rank(), peer, static_cast<int>(sent.size()), count));
        sends.push_back({peer, sent.back().data(), bytes_of(sent.back())});
      }
    }
    for (int peer = 0; peer < group.size(); ++peer) {
      // A block's number counts all blocks of its sender.
      int block = 0;
      for (int target = 0; target < group.rank(); ++target) {
        block += static_cast<int>(block_sizes(round, peer, target, max_units).size());
      }
      for (const size_t count : block_sizes(round, peer, group.rank(), max_units)) {
        expected.push_back(make_units(peer, group.rank(), block++, count));
        received.emplace_back(count);
        recvs.push_back({peer, received.back().data(), bytes_of(received.back())});
      }
    }
  }
};

TEST_P(GroupTest, KnowsItsPlace) {
  RankCounts seen(GetParam().num_ranks);
  run([&](Group& group) {
    const Topology& topology = group.topology();
    EXPECT_EQ(group.name(), runner_name());
    EXPECT_EQ(group.shares_address_space(), runner_name() == "threads");
    EXPECT_EQ(group.size(), GetParam().num_ranks);
    const int per_node =
        GetParam().ranks_per_node == 0 ? GetParam().num_ranks : GetParam().ranks_per_node;
    EXPECT_EQ(topology.num_nodes(), (GetParam().num_ranks + per_node - 1) / per_node);
    EXPECT_EQ(topology.node(), group.rank() / per_node);
    EXPECT_EQ(topology.local_rank(), group.rank() % per_node);
    EXPECT_EQ(group.epoch(), 0);
    seen.add(group.rank());
  });
  const std::vector<int> counts = seen.get();
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0),
            runs_on_mpi() ? 1 : GetParam().num_ranks);
  EXPECT_EQ(*std::max_element(counts.begin(), counts.end()), 1);
}

// The other cases rely on this.
TEST(GroupRunner, SeesExpectationsThatForkedRanksDoNotMeet) {
  if (!runs_on_forked_ranks()) {
    GTEST_SKIP() << "ranks are not forked, so their failures are this test's own";
  }
  for (const int failing : {0, 1}) {
    const auto body = [&](Group& group) {
      if (group.rank() == failing) {
        ASSERT_NE(std::freopen("/dev/null", "w", stdout), nullptr);  // not in this test's output
        EXPECT_EQ(group.size(), 3);
      }
      group.barrier("met");
    };
    EXPECT_EQ(message_of<Error>([&] { run_ranks({.num_ranks = 2}, body); }),
              "rank " + std::to_string(failing) + " did not meet an expectation: see above");
  }
}

TEST_P(GroupTest, ExchangesRandomSizes) {
  run([&](Group& group) {
    for (int round = 0; round < rounds(60); ++round) {
      RandomExchange x(group, static_cast<uint32_t>(round), 300);
      group.exchange("random", x.sends, x.recvs);
      EXPECT_EQ(x.received, x.expected) << "round " << round;
    }
    EXPECT_EQ(group.epoch(), rounds(60));
  });
}

TEST_P(GroupTest, ExchangesOddNumbersOfBytes) {
  run([&](Group& group) {
    const auto byte_at = [](int source, int64_t i) {
      return static_cast<std::byte>(source * 37 + i * 11);
    };
    for (const int64_t bytes : {1, 3, 1023, 1024, 1025, 4099}) {
      std::vector<std::byte> in(static_cast<size_t>(bytes));
      for (int64_t i = 0; i < bytes; ++i) {
        in[static_cast<size_t>(i)] = byte_at(group.rank(), i);
      }
      std::vector<std::byte> out(static_cast<size_t>(bytes * group.size()));
      all_gather_bytes(group, "bytes", in.data(), bytes, out.data());
      for (int source = 0; source < group.size(); ++source) {
        for (int64_t i = 0; i < bytes; ++i) {
          ASSERT_EQ(out[static_cast<size_t>(source * bytes + i)], byte_at(source, i))
              << "byte " << i << " of " << bytes << " from rank " << source;
        }
      }
    }
  });
}

TEST_P(GroupTest, SurvivesThousandsOfCallsBackToBack) {
  run([&](Group& group) {
    for (int i = 0; i < rounds(3000); ++i) {
      if (i % 3 == 0) {
        group.barrier("barrier");
      } else {
        ASSERT_EQ(all_reduce_max(group, "max", group.rank() * 1000 + i),
                  (group.size() - 1) * 1000 + i);
      }
    }
  });
}

TEST_P(GroupTest, ToleratesRanksThatComeLate) {
  run([&](Group& group) {
    std::mt19937 random(static_cast<uint32_t>(group.rank()));
    for (int round = 0; round < rounds(100); ++round) {
      if (random() % 4 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
      }
      RandomExchange x(group, static_cast<uint32_t>(round), 40);
      auto exchange = group.start_exchange("late", x.sends, x.recvs);
      if (random() % 4 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
      }
      if (random() % 2 == 0) {
        while (!exchange->test()) {
          std::this_thread::yield();
        }
      }
      exchange->wait();
      ASSERT_EQ(x.received, x.expected) << "round " << round;
    }
  });
}

TEST_P(GroupTest, CompletesStartedExchangesInAnyOrder) {
  run([&](Group& group) {
    std::mt19937 random(static_cast<uint32_t>(group.rank() + 1));
    for (int round = 0; round < rounds(20); ++round) {
      std::vector<std::unique_ptr<RandomExchange>> exchanges;
      std::vector<std::unique_ptr<Exchange>> started;
      // A barrier among them must move the others forward.
      for (uint32_t i = 0; i + 1 < Group::kMaxStarted; ++i) {
        exchanges.push_back(
            std::make_unique<RandomExchange>(group, static_cast<uint32_t>(round) * 100 + i, 200));
        started.push_back(
            group.start_exchange("many", exchanges.back()->sends, exchanges.back()->recvs));
        if (i == 3) {
          group.barrier("between");
        }
      }
      std::shuffle(started.begin(), started.end(), random);
      for (auto& exchange : started) {
        exchange->wait();
      }
      for (const auto& x : exchanges) {
        ASSERT_EQ(x->received, x->expected) << "round " << round;
      }
    }
  });
}

TEST_P(GroupTest, ShowsReceivedBlocksInPlace) {
  run([&](Group& group) {
    for (int round = 0; round < rounds(40); ++round) {
      RandomExchange x(group, static_cast<uint32_t>(round), 100);
      std::vector<RecvBlock> nowhere = x.recvs;
      for (RecvBlock& block : nowhere) {
        block.data = nullptr;
      }
      int calls = 0;
      group.exchange("read", x.sends, nowhere, [&](std::span<const std::byte* const> blocks) {
        ++calls;
        ASSERT_EQ(blocks.size(), x.expected.size());
        for (size_t i = 0; i < blocks.size(); ++i) {
          Units seen(x.expected[i].size());
          if (!seen.empty()) {
            std::memcpy(seen.data(), blocks[i], static_cast<size_t>(bytes_of(seen)));
          }
          EXPECT_EQ(seen, x.expected[i]) << "block " << i << " in round " << round;
        }
      });
      EXPECT_EQ(calls, 1);
    }
    EXPECT_EQ(group.traffic().intra_node_bytes + group.traffic().inter_node_bytes, 0);
  });
}

TEST_P(GroupTest, ReadersAndCopiesMayOverlap) {
  run([&](Group& group) {
    RandomExchange a(group, 1, 100);
    RandomExchange b(group, 2, 100);
    int calls = 0;
    auto reading = group.start_exchange("read", a.sends, a.recvs,
                                        [&](std::span<const std::byte* const>) { ++calls; });
    auto copying = group.start_exchange("copy", b.sends, b.recvs);
    copying->wait();
    EXPECT_EQ(b.received, b.expected);
    reading->wait();
    EXPECT_TRUE(reading->test());
    EXPECT_EQ(calls, 1);
  });
}

TEST_P(GroupTest, MovesLargeAndScatteredBlocks) {
  run([&](Group& group) {
    // Each peer gets one large block and many rows that lie apart.  6.4 MB are over the thresholds
    // for several threads and for rendezvous.  The bytes grow with the square of the ranks.
    const size_t large = group.size() > 8 ? 2'000 : 400'000;
    const size_t num_rows = group.size() > 8 ? 50 : 3000;
    constexpr size_t kRowUnits = 7;
    std::vector<Units> sent, received, expected;
    comm::BlockLists blocks;
    for (int peer = 0; peer < group.size(); ++peer) {
      for (const size_t count : {large, num_rows * kRowUnits}) {
        const int block = count == large ? 0 : 1;
        sent.push_back(make_units(group.rank(), peer, block, count));
        expected.push_back(make_units(peer, group.rank(), block, count));
        received.emplace_back(count);
      }
      const size_t at = sent.size() - 2;
      blocks.add({peer, sent[at].data(), bytes_of(sent[at])},
                 {peer, received[at].data(), bytes_of(received[at])});
      for (size_t row = 0; row < num_rows; ++row) {
        // This names each row once, since 77 and their number have no common factor, and never two
        // neighbours one after the other.
        const size_t place = (row * 77 + 5) % num_rows * kRowUnits;
        blocks.add({peer, sent[at + 1].data() + place, kRowUnits * sizeof(Unit)},
                   {peer, received[at + 1].data() + place, kRowUnits * sizeof(Unit)});
      }
    }
    group.exchange("large", blocks.sends, blocks.recvs);
    for (size_t i = 0; i < received.size(); ++i) {
      EXPECT_TRUE(received[i] == expected[i]) << "block " << i;  // too large to print
    }
  });
}

TEST(LargeMessages, AreCutAndJoined) {
  const GroupShape shape{runs_on_mpi() ? group_shapes().front().num_ranks : 2};
  if (shape.num_ranks != 2) {
    GTEST_SKIP() << "takes much memory, so only with 2 ranks; these are " << shape.num_ranks;
  }
  run_ranks(shape, [&](Group& group) {
    constexpr size_t kCount = 35'000'000;  // 280 MB: the mpi group cuts at 268 MB
    const int peer = 1 - group.rank();
    const auto value_at = [](int source, size_t i) { return static_cast<int64_t>(i) * 2 + source; };
    std::vector<int64_t> out(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      out[i] = value_at(group.rank(), i);
    }
    std::vector<int64_t> in(kCount, -1);
    const auto bytes = static_cast<int64_t>(kCount * sizeof(int64_t));
    const SendBlock send{peer, out.data(), bytes};
    const RecvBlock recv{peer, in.data(), bytes};
    group.exchange("huge", {&send, 1}, {&recv, 1});
    for (size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(in[i], value_at(peer, i)) << i;
    }
  });
}

// Two of three ranks are in a sub-group each; the third is in none.
TEST_P(GroupTest, SplitsByColorIntoGroupsOfTheirOwn) {
  run([&](Group& group) {
    const Topology& whole = group.topology();
    const int color = group.rank() % 3 == 2 ? -1 : group.rank() % 3;
    const auto part = group.split(color);
    ASSERT_EQ(part != nullptr, color >= 0);
    if (part) {
      EXPECT_EQ(part->name(), group.name());
      EXPECT_EQ(part->epoch(), 0);
      EXPECT_EQ(part->timeout(), group.timeout());
      EXPECT_EQ(part->size(), (group.size() - color + 2) / 3);
      EXPECT_EQ(part->rank(), group.rank() / 3);
      for (int peer = 0; peer < part->size(); ++peer) {
        EXPECT_EQ(part->original_rank(peer), group.original_rank(3 * peer + color));
        EXPECT_EQ(part->topology().same_node(peer), whole.same_node(3 * peer + color));
      }
    }
    // Calls of the sub-group and of the whole do not disturb each other.
    for (int round = 0; round < rounds(20); ++round) {
      RandomExchange x(group, static_cast<uint32_t>(round), 100);
      auto exchange = group.start_exchange("whole", x.sends, x.recvs);
      if (part) {
        RandomExchange y(*part, static_cast<uint32_t>(round) + 7, 100);
        part->exchange("part", y.sends, y.recvs);
        ASSERT_EQ(y.received, y.expected) << "round " << round;
        EXPECT_EQ(all_reduce_max(*part, "max", group.rank()), 3 * (part->size() - 1) + color);
      }
      exchange->wait();
      ASSERT_EQ(x.received, x.expected) << "round " << round;
    }
    if (part) {
      const auto window = part->make_window("window", 8 * part->size());
      for (int peer = 0; peer < part->size(); ++peer) {
        if (window->peer(peer) != nullptr) {
          window->signal(peer, 8 * part->rank(), color + 1);
        }
      }
      part->barrier("signalled");
      for (int peer = 0; peer < part->size(); ++peer) {
        EXPECT_EQ(reinterpret_cast<int64_t*>(window->local())[peer],
                  part->topology().same_node(peer) ? color + 1 : 0);
      }
      part->barrier("before the windows go");
    }
    group.barrier("the whole is still usable");
  });
}

TEST_P(GroupTest, SplitsInOrderOfKeysAndAgain) {
  run([&](Group& group) {
    const auto reversed = group.split(5, -group.rank());
    EXPECT_EQ(reversed->rank(), group.size() - 1 - group.rank());
    const auto halves = reversed->split(reversed->rank() % 2, 0);
    EXPECT_EQ(halves->original_rank(halves->rank()), group.original_rank(group.rank()));
    std::vector<int> ranks(static_cast<size_t>(halves->size()));
    const int rank = group.rank();
    all_gather_bytes(*halves, "ranks", &rank, sizeof(rank), ranks.data());
    for (size_t i = 1; i < ranks.size(); ++i) {
      EXPECT_EQ(ranks[i], ranks[i - 1] - 2);
    }
    halves->barrier("end");  // a group that is destroyed may still be needed by others
    reversed->barrier("end");
  });
}

TEST_P(GroupTest, NodesThatKeysWouldTearApartAreRefusedByAll) {
  if (GetParam().ranks_per_node < 2 || GetParam().num_ranks < 3) {
    GTEST_SKIP() << "needs a node of two ranks and another node";
  }
  run([&](Group& group) {
    const int per_node = GetParam().ranks_per_node;
    // A rank of the second node comes between ranks 0 and 1.
    const int key = group.rank() == 0 ? 0 : group.rank() == per_node ? 1 : 2;
    expect_mentions(message_of([&] { group.split(0, key); }),
                    "ranks 0 and 1 share a node and must be neighbours in a sub-group, but their "
                    "keys put rank " +
                        std::to_string(per_node) + " between them");
    group.barrier("still usable");
  });
}

TEST_P(GroupTest, BadArgumentsAreRefusedBeforeAnythingIsSent) {
  run([&](Group& group) {
    int value = 0;
    const std::vector<SendBlock> to_nobody = {{group.size(), &value, 4}};
    const std::vector<SendBlock> negative = {{0, &value, -4}};
    const std::vector<RecvBlock> no_data = {{0, nullptr, 4}};
    EXPECT_THROW(group.exchange("bad", to_nobody, {}), InvalidArgument);
    EXPECT_THROW(group.exchange("bad", negative, {}), InvalidArgument);
    EXPECT_THROW(group.exchange("bad", {}, no_data), InvalidArgument);
    EXPECT_THROW(group.make_window("bad", -1), InvalidArgument);
    EXPECT_THROW(group.set_dead(group.rank(), true), InvalidArgument);
    EXPECT_THROW(group.wait_until(
                     "bad", -1, [] { return true; }, [] { return ""; }),
                 InvalidArgument);
    EXPECT_EQ(group.epoch(), 0);
    group.barrier("still usable");
  });
}

TEST_P(GroupTest, CollectiveCallsNeedEveryRank) {
  run([&](Group& group) {
    for (int peer = 0; peer < group.size(); ++peer) {
      if (peer == group.rank()) {
        continue;
      }
      group.set_dead(peer, true);
      EXPECT_TRUE(group.is_dead(peer));
      try {
        group.barrier("not everybody");
        ADD_FAILURE() << "the barrier did not mind";
      } catch (const CommError& error) {
        EXPECT_EQ(error.peer(), peer);
      }
      group.set_dead(peer, false);
    }
    group.barrier("everybody");
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, GroupTest, on_group_shapes(), shape_name);

}  // namespace
}  // namespace moebius::testing
