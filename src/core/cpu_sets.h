// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The CPUs that threads may run on.
#pragma once

#include <pthread.h>

#include <string_view>
#include <vector>

namespace moebius {

// Reads a list of CPUs as Linux writes it: "0-3,8" -> 0 1 2 3 8.  The list ends where something is
// not a number.
std::vector<int> parse_cpu_list(std::string_view text);

// The CPUs that the calling thread may run on, ordered by NUMA node and then by core.
std::vector<int> usable_cpus();

// How many those are; at least 1, and 1 where the system does not say.
int num_usable_cpus();
// The same for the process as a whole: those of its main thread, whatever the caller is bound to.
int num_usable_cpus_of_process();

// Splits the CPUs into a part for each rank, in order and as equal as possible.  All parts are
// empty when there are fewer CPUs than ranks.
std::vector<std::vector<int>> split_cpus(const std::vector<int>& cpus, int num_ranks);

// Keeps the calling thread on these CPUs, and the threads that it starts from now on.  Returns
// false, and changes nothing, when the list is empty or the system refuses.
bool pin_this_thread(const std::vector<int>& cpus);
// The same for another thread of this process, which must not have been joined.
bool pin_thread(pthread_t thread, const std::vector<int>& cpus);

}  // namespace moebius
