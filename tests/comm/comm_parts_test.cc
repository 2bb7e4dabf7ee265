// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The parts of the comm stage that need no peers.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "comm/group/blocks.h"
#include "comm/group/byte_stream.h"
#include "comm/group/nccl/version.h"
#include "comm/group/shared_device.h"
#include "comm/group/started.h"
#include "comm/group/stream_copy.h"
#include "comm/routing/common_ids.h"
#include "core/cpu_sets.h"
#include "moebius/dispatch.h"
#include "moebius/error.h"
#include "moebius/group.h"
#include "moebius/tensor.h"
#include "tests/error_text.h"

namespace moebius {
namespace {

using testing::expect_mentions;
using testing::message_of;

TEST(Topology, SplitsRanksIntoNodes) {
  const Topology t = Topology::make(5, 7, 3);
  EXPECT_EQ(t.node_begin, (std::vector<int>{0, 3, 6, 7}));
  EXPECT_EQ(t.num_nodes(), 3);
  EXPECT_EQ(t.node(), 1);
  EXPECT_EQ(t.local_rank(), 2);
  EXPECT_EQ(t.node_size(2), 1);
  EXPECT_EQ(t.node_of(6), 2);
  EXPECT_TRUE(t.same_node(3));
  EXPECT_FALSE(t.same_node(6));
  EXPECT_EQ(Topology::make(0, 4, 0).num_nodes(), 1);
  EXPECT_EQ(Topology::make(0, 4, 100).num_nodes(), 1);
  EXPECT_EQ(Topology::make(0, 4, 1).num_nodes(), 4);
}

TEST(Topology, RefusesWhatIsNoPlace) {
  EXPECT_THROW(Topology::make(0, 0, 0), InvalidArgument);
  EXPECT_THROW(Topology::make(4, 4, 0), InvalidArgument);
  EXPECT_THROW(Topology::make(-1, 4, 0), InvalidArgument);
  EXPECT_THROW(Topology::make(0, 4, -1), InvalidArgument);
  EXPECT_THROW(Topology::make(0, 4, 2).node_of(4), InvalidArgument);
  EXPECT_THROW(Topology::make(0, 4, 2).node_size(2), InvalidArgument);
}

TEST(RunThreadRanks, RefusesImpossibleOptions) {
  const auto body = [](Group&) {};
  EXPECT_THROW(run_thread_ranks({.num_ranks = 0}, body), InvalidArgument);
  EXPECT_THROW(run_thread_ranks({.num_ranks = 2, .ranks_per_node = -1}, body), InvalidArgument);
  EXPECT_THROW(run_thread_ranks({.num_ranks = 2, .timeout = std::chrono::milliseconds(-1)}, body),
               InvalidArgument);
}

TEST(RunThreadRanks, TakesTheTimeoutFromOptionsThenSettings) {
  const auto timeout_with = [](std::chrono::milliseconds wanted) {
    std::chrono::milliseconds seen{};
    run_thread_ranks({.timeout = wanted}, [&](Group& group) { seen = group.timeout(); });
    return seen.count();
  };
  EXPECT_EQ(timeout_with(std::chrono::milliseconds(77)), 77);
  setenv("MOEBIUS_TIMEOUT_MS", "1234", 1);
  EXPECT_EQ(timeout_with({}), 1234);
  unsetenv("MOEBIUS_TIMEOUT_MS");
  EXPECT_EQ(timeout_with({}), 60'000);
  EXPECT_EQ(timeout_with(std::chrono::hours(24)), 86'400'000);
  expect_mentions(message_of([&] { timeout_with(std::chrono::milliseconds::max()); }),
                  "timeout in ms is 9223372036854775807, expected at most 86400000");
}

TEST(RunThreadRanks, GivesRanksDisjointCpusWhenThereAreEnough) {
  const auto before = usable_cpus();
  if (before.size() < 2) {
    GTEST_SKIP() << "needs 2 CPUs, has " << before.size();
  }
  std::mutex mutex;
  std::multiset<int> seen;
  run_thread_ranks({.num_ranks = 2}, [&](Group&) {
    const auto cpus = usable_cpus();
    EXPECT_EQ(Stream::cpu().num_threads(), static_cast<int>(cpus.size()));
    const std::lock_guard lock(mutex);
    seen.insert(cpus.begin(), cpus.end());
  });
  EXPECT_EQ(seen, std::multiset<int>(before.begin(), before.end()));
  EXPECT_EQ(usable_cpus(), before);
  run_thread_ranks({.num_ranks = 2, .pin = false},
                   [&](Group&) { EXPECT_EQ(usable_cpus(), before); });
  run_thread_ranks({.num_ranks = static_cast<int>(before.size()) + 1},
                   [&](Group&) { EXPECT_EQ(usable_cpus(), before); });
}

TEST(CpuSets, ReadsListsAsLinuxWritesThem) {
  EXPECT_EQ(parse_cpu_list("0-3,8"), (std::vector<int>{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_cpu_list("5"), (std::vector<int>{5}));
  EXPECT_EQ(parse_cpu_list("1,3-4\n"), (std::vector<int>{1, 3, 4}));
  EXPECT_TRUE(parse_cpu_list("").empty());
  EXPECT_TRUE(parse_cpu_list("none").empty());
  EXPECT_TRUE(parse_cpu_list("99999999").empty());
}

TEST(CpuSets, SplitsEvenlyOrNotAtAll) {
  std::vector<int> cpus(10);
  std::iota(cpus.begin(), cpus.end(), 0);
  const auto parts = split_cpus(cpus, 4);
  std::vector<int> joined;
  for (const auto& part : parts) {
    EXPECT_GE(part.size(), 2u);
    EXPECT_LE(part.size(), 3u);
    joined.insert(joined.end(), part.begin(), part.end());
  }
  EXPECT_EQ(joined, cpus);
  for (const auto& part : split_cpus(cpus, 11)) {
    EXPECT_TRUE(part.empty());
  }
}

TEST(BlocksByPeer, KeepsTheOrderWithinAPeer) {
  const std::vector<SendBlock> blocks = {
      {2, nullptr, 5}, {0, nullptr, 7}, {2, nullptr, 3}, {2, nullptr, 0}};
  comm::BlocksByPeer<SendBlock> by_peer;
  for (int repeat = 0; repeat < 2; ++repeat) {
    by_peer.assign(blocks, 4);
    EXPECT_EQ(by_peer.size(), 4u);
    ASSERT_EQ(by_peer.of(2).size(), 3u);
    EXPECT_EQ(by_peer.of(2)[1].bytes, 3);
    EXPECT_EQ(by_peer.index_of(2)[1], 2u);
    EXPECT_EQ(by_peer.bytes_of(2), 8);
    EXPECT_EQ(by_peer.bytes_of(0), 7);
    EXPECT_TRUE(by_peer.of(1).empty());
    EXPECT_TRUE(by_peer.of(3).empty());
  }
}

// An exchange that is done may be destroyed, so it must leave the list even when another throws.
TEST(Started, ThoseThatAreDoneLeaveAlsoWhereAnotherThrows) {
  std::vector<int> exchanges = {0, 1, 2, 3, 4};
  std::vector<int*> started;
  for (int& exchange : exchanges) {
    started.push_back(&exchange);
  }
  const auto advance = [](int number) {
    return [number](int& exchange) {
      expect(exchange != number, "this one fails");
      return exchange % 2 == 0;
    };
  };
  EXPECT_THROW(comm::advance_started(started, advance(3)), InvalidArgument);
  EXPECT_EQ(started, (std::vector<int*>{&exchanges[1], &exchanges[3], &exchanges[4]}));
  comm::advance_started(started, advance(-1));
  EXPECT_EQ(started, (std::vector<int*>{&exchanges[1], &exchanges[3]}));
}

TEST(ByteStream, JoinsNeighboursAndCopiesAcrossGaps) {
  std::vector<std::byte> memory(100);
  for (size_t i = 0; i < memory.size(); ++i) {
    memory[i] = static_cast<std::byte>(i);
  }
  comm::ByteStream stream;
  stream.append(memory.data(), 10);
  stream.append(memory.data() + 10, 5);  // one run of 15
  stream.append(memory.data() + 50, 0);
  stream.append(memory.data() + 40, 20);
  EXPECT_EQ(stream.bytes(), 35);
  EXPECT_EQ(stream.contiguous(3, 15), memory.data() + 3);
  EXPECT_EQ(stream.contiguous(15, 35), memory.data() + 40);
  EXPECT_EQ(stream.contiguous(14, 16), nullptr);
  std::vector<std::byte> out(10);
  stream.copy_out(10, 20, out.data());
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(out[i], static_cast<std::byte>(i < 5 ? 10 + i : 35 + i)) << i;
  }
  std::fill(out.begin(), out.end(), std::byte{0xff});
  stream.copy_in(10, 20, out.data());
  EXPECT_EQ(memory[9], std::byte{9});
  EXPECT_EQ(memory[10], std::byte{0xff});
  EXPECT_EQ(memory[15], std::byte{15});
  EXPECT_EQ(memory[44], std::byte{0xff});
  EXPECT_EQ(memory[45], std::byte{45});
  stream.copy_out(7, 7, nullptr);  // nothing
}

TEST(StreamCopy, CopiesTheseBytesAndNoOthers) {
  std::vector<std::byte> from(700);
  for (size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<std::byte>(i % 251 + 1);
  }
  for (const size_t bytes : {0u, 1u, 15u, 63u, 64u, 65u, 128u, 200u, 500u}) {
    for (const size_t at : {0u, 1u, 16u, 63u}) {
      for (const size_t first : {0u, 3u}) {
        std::vector<std::byte> to(700);
        stream_copy(to.data() + at, from.data() + first, static_cast<int64_t>(bytes));
        stream_fence();
        for (size_t i = 0; i < to.size(); ++i) {
          const bool is_copied = i >= at && i < at + bytes;
          ASSERT_EQ(to[i], is_copied ? from[first + i - at] : std::byte{0})
              << bytes << " bytes from " << first << " to " << at << ", byte " << i;
        }
      }
    }
  }
}

TEST(CommonIds, AreThoseOfAllRanksInOrder) {
  const std::vector<std::vector<int64_t>> named = {{7, 3, 5, 0}, {5, 2, 7}, {9, 7, 5, 3, 1}};
  run_thread_ranks({.num_ranks = 3}, [&](Group& group) {
    EXPECT_EQ(comm::common_ids(group, "ids", named[static_cast<size_t>(group.rank())]),
              (std::vector<int64_t>{5, 7}));
    EXPECT_TRUE(comm::common_ids(group, "ids", {}).empty());
    const std::vector<int64_t> own = {4};
    EXPECT_TRUE(
        comm::common_ids(group, "ids", std::span(own).first(group.rank() == 1 ? 0 : 1)).empty());
  });
}

TEST(DispatchConfig, HasTheSmsThatWereMeasuredBest) {
  EXPECT_EQ(DispatchConfig::for_dispatch(8, Device::cuda(0)).num_sms, 16);
  EXPECT_EQ(DispatchConfig::for_combine(8, Device::cuda(0)).num_sms, 12);
  EXPECT_EQ(DispatchConfig::for_combine(2, Device::cuda(0)).num_sms, 20);
  for (int ranks = 1; ranks <= 2048; ++ranks) {
    EXPECT_NO_THROW(DispatchConfig::for_dispatch(ranks).validate()) << ranks;
    EXPECT_NO_THROW(DispatchConfig::for_combine(ranks).validate()) << ranks;
  }
  EXPECT_THROW(DispatchConfig::for_dispatch(0), InvalidArgument);
  DispatchConfig bad = DispatchConfig::for_dispatch(8);
  bad.num_sms = 21;
  EXPECT_THROW(bad.validate(), InvalidArgument);
}

TEST(ExpertPlacement, FirstRanksOwnOneMore) {
  const ExpertPlacement p = ExpertPlacement::linear(10, 4);
  EXPECT_EQ(p.num_local(0), 3);
  EXPECT_EQ(p.num_local(1), 3);
  EXPECT_EQ(p.num_local(2), 2);
  EXPECT_EQ(p.rank_of(6), 2);
  EXPECT_EQ(p.local_index(7), 1);
  EXPECT_EQ(p.expert_map(3).data<int32_t>()[9], 1);
  EXPECT_EQ(p.expert_map(3).data<int32_t>()[0], -1);
  EXPECT_THROW(ExpertPlacement::from_ranks({0, 4}, 4), InvalidArgument);
}

TEST(Nccl, VersionsWithTheWindowsOfTheHeadersAreTaken) {
  EXPECT_EQ(comm::version_refusal(22809, 22809), "");
  EXPECT_EQ(comm::version_refusal(22809, 22807), "");
  EXPECT_EQ(comm::version_refusal(22809, 22902), "");
  EXPECT_EQ(
      comm::version_refusal(22809, 22803),
      "NCCL 2.28.3, expected 2.28.7 or later of major version 2 (this was built with 2.28.9)");
  EXPECT_NE(comm::version_refusal(22809, 30000), "");
}

TEST(Nccl, SaysWhyThereIsNone) {
  setenv("MOEBIUS_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
  const std::string reason = why_no_nccl();
  unsetenv("MOEBIUS_NCCL_LIBRARY");
  EXPECT_TRUE(reason == "built without NCCL" ||
              reason ==
                  "no NCCL library: /nowhere/libnccl.so.2: cannot open shared object file: "
                  "No such file or directory")
      << reason;
  expect_mentions(message_of([] { run_thread_ranks({.nccl = true}, [](Group&) {}); }),
                  "a nccl group needs devices, and has none");
}

TEST(Mpi, SaysWhetherItIsThere) {
#ifdef MOEBIUS_HAVE_MPI
  EXPECT_TRUE(mpi_available());
#else
  EXPECT_FALSE(mpi_available());
  expect_mentions(message_of<Unsupported>([] { make_mpi_group(); }), "libopenmpi-dev");
#endif
}

TEST(Mpi, KnowsItsLaunchers) {
  ASSERT_FALSE(launched_by_mpi());
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"}) {
    setenv(name, "4", 1);
    EXPECT_TRUE(launched_by_mpi()) << name;
    unsetenv(name);
  }
}

TEST(SharedGpu, GraphsNeedAHardwareQueuePerStream) {
  EXPECT_TRUE(comm::can_replay_on_one_gpu(1, 1));  // a rank alone waits for nobody
  EXPECT_TRUE(comm::can_replay_on_one_gpu(4, 32));
  EXPECT_FALSE(comm::can_replay_on_one_gpu(2, 8));
  EXPECT_FALSE(comm::can_replay_on_one_gpu(4, 16));
  const Support five = comm::can_replay_on_one_gpu(5, 32);
  EXPECT_FALSE(five);
  expect_mentions(five.reason, {"5 ranks share a GPU", "at most 4", "has 32"});
}

// Ranks on CPUs share no GPU, and they know that without a collective call.
TEST(SharedGpu, RanksOnCpusShareNone) {
  run_thread_ranks({.num_ranks = 2}, [](Group& group) {
    const int64_t epoch = group.epoch();
    EXPECT_EQ(comm::ranks_on_this_gpu(group), std::vector<int>{group.rank()});
    EXPECT_TRUE(comm::can_replay_graphs(group).ok);
    EXPECT_EQ(group.epoch(), epoch);
  });
}

}  // namespace
}  // namespace moebius
