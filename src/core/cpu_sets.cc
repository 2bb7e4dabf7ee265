// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/cpu_sets.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <tuple>

namespace moebius {

namespace {

// More CPUs than any machine has; a plain cpu_set_t ends at 1024.
constexpr int kMaxCpus = 8192;

struct CpuSetDeleter {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};
using CpuSet = std::unique_ptr<cpu_set_t, CpuSetDeleter>;

CpuSet make_cpu_set() {
  CpuSet set(CPU_ALLOC(kMaxCpus));
  if (!set) {
    throw std::bad_alloc();
  }
  CPU_ZERO_S(CPU_ALLOC_SIZE(kMaxCpus), set.get());
  return set;
}

std::vector<int> read_cpu_list(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return parse_cpu_list(line);
}

// [kMaxCpus] the NUMA node of each CPU; 0 where the system does not say.
std::vector<int> nodes_of_cpus() {
  std::vector<int> nodes(kMaxCpus, 0);
  for (const int node : read_cpu_list("/sys/devices/system/node/online")) {
    for (const int cpu :
         read_cpu_list(fmt::format("/sys/devices/system/node/node{}/cpulist", node))) {
      nodes[static_cast<size_t>(cpu)] = node;
    }
  }
  return nodes;
}

// The first CPU of the core that this one belongs to.
int core_of(int cpu) {
  const auto siblings = read_cpu_list(
      fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
  return siblings.empty() ? cpu : siblings.front();
}

// thread: 0 is the calling one, and a process's id its main thread.
int num_cpus_of(pid_t thread) {
  const CpuSet set = make_cpu_set();
  const size_t set_bytes = CPU_ALLOC_SIZE(kMaxCpus);
  const bool is_known = sched_getaffinity(thread, set_bytes, set.get()) == 0;
  return is_known ? std::max(1, CPU_COUNT_S(set_bytes, set.get())) : 1;
}

}  // namespace

std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    int first = 0;
    auto parsed = std::from_chars(at, end, first);
    int last = first;
    if (parsed.ec == std::errc() && parsed.ptr < end && *parsed.ptr == '-') {
      parsed = std::from_chars(parsed.ptr + 1, end, last);
    }
    if (parsed.ec != std::errc() || first < 0 || last >= kMaxCpus) {
      break;
    }
    for (int cpu = first; cpu <= last; ++cpu) {
      cpus.push_back(cpu);
    }
    at = parsed.ptr + (parsed.ptr < end && *parsed.ptr == ',' ? 1 : 0);
  }
  return cpus;
}

std::vector<int> usable_cpus() {
  const CpuSet set = make_cpu_set();
  const size_t set_bytes = CPU_ALLOC_SIZE(kMaxCpus);
  std::vector<std::tuple<int, int, int>> places;
  if (sched_getaffinity(0, set_bytes, set.get()) == 0) {
    const auto nodes = nodes_of_cpus();
    for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), set_bytes, set.get())) {
        places.emplace_back(nodes[static_cast<size_t>(cpu)], core_of(cpu), cpu);
      }
    }
  }
  std::sort(places.begin(), places.end());
  std::vector<int> cpus;
  for (const auto& [node, core, cpu] : places) {
    cpus.push_back(cpu);
  }
  return cpus;
}

int num_usable_cpus() {
  return num_cpus_of(0);
}

int num_usable_cpus_of_process() {
  return num_cpus_of(getpid());
}

std::vector<std::vector<int>> split_cpus(const std::vector<int>& cpus, int num_ranks) {
  const auto ranks = static_cast<size_t>(num_ranks);
  std::vector<std::vector<int>> parts(ranks);
  if (cpus.size() < ranks) {
    return parts;
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    const auto begin = static_cast<std::ptrdiff_t>(rank * cpus.size() / ranks);
    const auto end = static_cast<std::ptrdiff_t>((rank + 1) * cpus.size() / ranks);
    parts[rank].assign(cpus.begin() + begin, cpus.begin() + end);
  }
  return parts;
}

bool pin_this_thread(const std::vector<int>& cpus) {
  return pin_thread(pthread_self(), cpus);
}

bool pin_thread(pthread_t thread, const std::vector<int>& cpus) {
  if (cpus.empty()) {
    return false;
  }
  const CpuSet set = make_cpu_set();
  const size_t set_bytes = CPU_ALLOC_SIZE(kMaxCpus);
  for (const int cpu : cpus) {
    CPU_SET_S(static_cast<size_t>(cpu), set_bytes, set.get());
  }
  return pthread_setaffinity_np(thread, set_bytes, set.get()) == 0;
}

}  // namespace moebius
