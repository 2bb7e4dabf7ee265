// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Which CPUs ranks may run on.
#pragma once

#include <string_view>
#include <vector>

namespace moebius::comm {

// CPUs of a list as Linux writes it: "0-3,8" -> 0 1 2 3 8.  What is not a number ends it.
std::vector<int> parse_cpu_list(std::string_view text);

// The CPUs that the calling thread may run on: those of a NUMA node together, and within it those
// of a core together.
std::vector<int> usable_cpus();

// A part for each rank, disjoint, in order and as equal as possible; empty lists when there are
// fewer CPUs than ranks.
std::vector<std::vector<int>> split_cpus(const std::vector<int>& cpus, int num_ranks);

// Keeps the calling thread on these CPUs, and the threads it starts from now on.  An empty list or
// a refusal by the system changes nothing.  Returns whether it is done.
bool pin_this_thread(const std::vector<int>& cpus);

}  // namespace moebius::comm
