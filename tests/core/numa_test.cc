// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Nodes are pretended here: a list of CPUs each.
#include "core/numa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/cpu_sets.h"
#include "core/node_tasks.h"
#include "moebius/error.h"
#include "tests/scoped_setting.h"

namespace moebius {
namespace {

using testing::ScopedSetting;

std::string error_of(const char* nodes, const char* policy = "experts") {
  const ScopedSetting numa("MOEBIUS_NUMA", policy);
  const ScopedSetting pretended("MOEBIUS_NUMA_NODES", nodes);
  try {
    numa_placement();
    return "";
  } catch (const InvalidArgument& e) {
    return e.what();
  }
}

TEST(Numa, ListsOfCpusBecomeNodes) {
  const NumaNodes nodes = parse_numa_nodes("0-2,8/3,9-10");
  EXPECT_EQ(nodes.count(), 2);
  EXPECT_FALSE(nodes.are_real());
  for (const int cpu : {0, 1, 2, 8}) {
    EXPECT_EQ(nodes.node_of_cpu(cpu), 0) << cpu;
  }
  for (const int cpu : {3, 9, 10}) {
    EXPECT_EQ(nodes.node_of_cpu(cpu), 1) << cpu;
  }
  EXPECT_EQ(nodes.node_of_cpu(4), 0);
  EXPECT_EQ(nodes.node_of_cpu(5000), 0);
}

TEST(Numa, BadSettingsAreNamedWithWhatIsExpected) {
  for (const char* text : {"0-1/", "0,x/1", "0-/1", "-1/0", "3-1/0", "0//1", "0,,1/2", "0-1-2/3"}) {
    const std::string error = error_of(text);
    EXPECT_NE(error.find("MOEBIUS_NUMA_NODES is \"" + std::string(text) +
                         "\", expected lists of CPUs as in 0-7/8-15"),
              std::string::npos)
        << text << ": " << error;
  }
  EXPECT_NE(error_of("0-3/3-4").find("which names CPU 3 twice"), std::string::npos);
  EXPECT_NE(
      error_of("0/1", "near").find("MOEBIUS_NUMA is \"near\", expected off, experts or interleave"),
      std::string::npos);
}

TEST(Numa, NeighbouringExpertsShareANode) {
  const NumaPlacement placement(NumaPolicy::kExperts, parse_numa_nodes("0/1/2"));
  EXPECT_EQ(placement.num_homes(), 3);
  std::vector<int> homes;
  for (int64_t e = 0; e < 8; ++e) {
    homes.push_back(placement.home(e, 8));
  }
  EXPECT_EQ(homes, (std::vector<int>{0, 0, 0, 1, 1, 1, 2, 2}));
}

TEST(Numa, OneNodeOrAnotherPolicyHasOneHome) {
  EXPECT_EQ(NumaPlacement(NumaPolicy::kExperts, NumaNodes()).policy(), NumaPolicy::kOff);
  EXPECT_EQ(NumaPlacement(NumaPolicy::kInterleave, parse_numa_nodes("0/1")).num_homes(), 1);
  EXPECT_EQ(NumaPlacement().home(7, 8), 0);
}

TEST(Numa, TheMemoryOfThisMachinesNodesCanBeChosen) {
  // On a machine of one node nothing is asked of the system; on others no expert may lose a byte.
  const NumaPlacement placement(NumaPolicy::kExperts, system_numa_nodes());
  std::vector<std::byte> block(size_t{3} << 20, std::byte{7});
  placement.place(block.data(), static_cast<int64_t>(block.size()), 3);
  EXPECT_EQ(std::count(block.begin(), block.end(), std::byte{7}), int64_t{3} << 20);
}

// Every task is done once, whichever CPUs the nodes have.
TEST(NodeTasks, AllAreDoneOnce) {
  for (const char* nodes : {"0/1", "1/0", "500/600", "0-4095/5000"}) {
    const NumaPlacement placement(NumaPolicy::kExperts, parse_numa_nodes(nodes));
    for (const int num_threads : {1, 2, 5}) {
      constexpr int64_t kTasks = 301;
      const auto done = std::make_unique<std::atomic<int>[]>(kTasks);
      parallel_tasks_by_node(
          Stream::cpu(num_threads), kTasks, placement,
          [](int64_t task) { return static_cast<int>(task % 3 == 0); },
          [&](int64_t task, int thread) {
            ASSERT_LT(thread, num_threads);
            ++done[static_cast<size_t>(task)];
          });
      for (int64_t task = 0; task < kTasks; ++task) {
        EXPECT_EQ(done[static_cast<size_t>(task)], 1)
            << nodes << ", " << num_threads << ", " << task;
      }
    }
  }
}

// The caller is bound to a CPU of node 1, and whoever else helps may be anywhere.
TEST(NodeTasks, AThreadBeginsWithThoseOfItsNode) {
  const int cpu = usable_cpus().front();
  const std::string other = cpu == 0 ? "1" : "0";
  const std::string own = std::to_string(cpu);
  const NumaPlacement placement(NumaPolicy::kExperts, parse_numa_nodes(other + "/" + own));
  std::vector<int64_t> order;
  std::thread bound([&] {
    ASSERT_TRUE(pin_this_thread({cpu}));
    parallel_tasks_by_node(
        Stream::cpu(2), 40, placement, [](int64_t task) { return static_cast<int>(task % 2); },
        [&](int64_t task, int thread) {
          if (thread == 0) {
            order.push_back(task);
          }
        });
  });
  bound.join();
  // Its own tasks come first and in order, then others in order.
  const auto first_foreign =
      std::find_if(order.begin(), order.end(), [](int64_t task) { return task % 2 == 0; });
  EXPECT_TRUE(std::is_sorted(order.begin(), first_foreign));
  EXPECT_TRUE(std::is_sorted(first_foreign, order.end()));
  EXPECT_TRUE(std::all_of(first_foreign, order.end(), [](int64_t task) { return task % 2 == 0; }));
}

TEST(NodeTasks, TheFirstErrorIsThrown) {
  const NumaPlacement placement(NumaPolicy::kExperts, parse_numa_nodes("0/1"));
  EXPECT_THROW(
      parallel_tasks_by_node(
          Stream::cpu(2), 10, placement, [](int64_t task) { return static_cast<int>(task % 2); },
          [](int64_t task, int) {
            if (task == 5) {
              throw std::runtime_error("five");
            }
          }),
      std::runtime_error);
}

}  // namespace
}  // namespace moebius
