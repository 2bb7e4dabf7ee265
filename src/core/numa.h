// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Where experts' weights lie on a machine whose memory belongs to several nodes, as that of two
// sockets does, and which threads are near them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace moebius {

enum class NumaPolicy : uint8_t {
  kOff,         // the system decides: a page lies where it is first written
  kExperts,     // each node has a part of the experts, and its threads begin with these
  kInterleave,  // the pages of all experts lie on all nodes by turns
};

// The nodes of a machine, or those that a setting pretends.
class NumaNodes {
 public:
  // One node with all CPUs.
  NumaNodes() = default;
  // The CPUs of each node.  Only the memory of real nodes can be chosen.
  NumaNodes(const std::vector<std::vector<int>>& cpus, bool are_real);

  int count() const { return count_; }
  bool are_real() const { return are_real_; }
  int node_of_cpu(int cpu) const;  // 0 where the CPU is in none
  // The node that the calling thread is on.
  int here() const;

 private:
  int count_ = 1;
  bool are_real_ = false;
  std::vector<int> node_of_cpu_;
};

// Those of the system that have CPUs.
NumaNodes system_numa_nodes();
// Reads lists of CPUs with "/" between nodes: "0-7,16/8-15".  Throws InvalidArgument.
NumaNodes parse_numa_nodes(std::string_view text);

// How one object places its experts.  It is chosen once.
class NumaPlacement {
 public:
  NumaPlacement() = default;  // off
  NumaPlacement(NumaPolicy policy, NumaNodes nodes);

  const NumaNodes& nodes() const { return nodes_; }
  NumaPolicy policy() const { return policy_; }  // kOff where there is one node
  // How many nodes have experts of their own.
  int num_homes() const { return policy_ == NumaPolicy::kExperts ? nodes_.count() : 1; }
  // The node of an expert: neighbours share one, so that memory is cut into few pieces.
  int home(int64_t expert, int64_t num_experts) const {
    return static_cast<int>(expert * num_homes() / num_experts);
  }

  // Chooses the nodes of a block of equal parts, one per expert, which has yet to be written.  It
  // does nothing where nodes are pretended, and where the system refuses, with a warning.
  void place(std::byte* block, int64_t bytes, int64_t num_experts) const;

 private:
  NumaPolicy policy_ = NumaPolicy::kOff;
  NumaNodes nodes_;
};

// By MOEBIUS_NUMA and MOEBIUS_NUMA_NODES.  Throws InvalidArgument for a bad setting.
NumaPlacement numa_placement();

}  // namespace moebius
