// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/numa.h"

#include <fmt/format.h>
#include <sched.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "core/cpu_sets.h"
#include "moebius/error.h"
#include "moebius/log.h"
#include "moebius/settings.h"

namespace moebius {

namespace {

constexpr std::string_view kNodesFolder = "/sys/devices/system/node";

std::vector<int> read_list(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return parse_cpu_list(line);
}

// One number, or two with "-" between them.
std::vector<int> parse_range(std::string_view text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const bool is_range =
      !text.empty() && is_digit(text.front()) && is_digit(text.back()) &&
      std::count(text.begin(), text.end(), '-') <= 1 &&
      std::all_of(text.begin(), text.end(), [&](char c) { return is_digit(c) || c == '-'; });
  return is_range ? parse_cpu_list(text) : std::vector<int>();
}

// Calls body(piece) for the pieces of a text between separators.
template <typename Body>
void for_each_piece(std::string_view text, char separator, Body body) {
  for (;;) {
    const size_t end = text.find(separator);
    body(text.substr(0, end));
    if (end == std::string_view::npos) {
      return;
    }
    text.remove_prefix(end + 1);
  }
}

#ifdef __linux__
// Sets the policy of whole pages within [begin, begin + bytes), and moves those already written.
bool bind_pages(std::byte* begin, int64_t bytes, int mode, uint64_t nodes) {
  constexpr unsigned kMove = 2;  // MPOL_MF_MOVE
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
  const uintptr_t last =
      (reinterpret_cast<uintptr_t>(begin) + static_cast<uintptr_t>(bytes)) / page * page;
  return first >= last ||
         syscall(SYS_mbind, first, last - first, mode, &nodes, 8 * sizeof(nodes) + 1, kMove) == 0;
}
#endif

}  // namespace

NumaNodes::NumaNodes(const std::vector<std::vector<int>>& cpus, bool are_real)
    : count_(static_cast<int>(std::max<size_t>(1, cpus.size()))), are_real_(are_real) {
  for (size_t node = 0; node < cpus.size(); ++node) {
    for (const int cpu : cpus[node]) {
      const auto i = static_cast<size_t>(cpu);
      node_of_cpu_.resize(std::max(node_of_cpu_.size(), i + 1), 0);
      node_of_cpu_[i] = static_cast<int>(node);
    }
  }
}

int NumaNodes::node_of_cpu(int cpu) const {
  const auto i = static_cast<size_t>(cpu);
  return cpu >= 0 && i < node_of_cpu_.size() ? node_of_cpu_[i] : 0;
}

int NumaNodes::here() const {
  return count_ > 1 ? node_of_cpu(sched_getcpu()) : 0;
}

NumaNodes system_numa_nodes() {
  std::vector<std::vector<int>> nodes;
  for (const int node : read_list(fmt::format("{}/online", kNodesFolder))) {
    std::vector<int> cpus = read_list(fmt::format("{}/node{}/cpulist", kNodesFolder, node));
    // Nodes are counted from 0 without gaps here, which is what place() relies on.
    if (cpus.empty() || node != static_cast<int>(nodes.size())) {
      break;
    }
    nodes.push_back(std::move(cpus));
  }
  return {nodes, true};
}

NumaNodes parse_numa_nodes(std::string_view text) {
  std::vector<std::vector<int>> nodes;
  std::vector<int> all;
  for_each_piece(text, '/', [&](std::string_view list) {
    std::vector<int>& cpus = nodes.emplace_back();
    for_each_piece(list, ',', [&](std::string_view range) {
      const std::vector<int> part = parse_range(range);
      expect(!part.empty(), [&] {
        return fmt::format(
            "MOEBIUS_NUMA_NODES is \"{}\", expected lists of CPUs as in 0-7/8-15, not \"{}\"", text,
            range);
      });
      cpus.insert(cpus.end(), part.begin(), part.end());
    });
    all.insert(all.end(), cpus.begin(), cpus.end());
  });
  std::sort(all.begin(), all.end());
  const auto twice = std::adjacent_find(all.begin(), all.end());
  expect(twice == all.end(), [&] {
    return fmt::format("MOEBIUS_NUMA_NODES is \"{}\", which names CPU {} twice", text, *twice);
  });
  return {nodes, false};
}

NumaPlacement::NumaPlacement(NumaPolicy policy, NumaNodes nodes)
    : policy_(nodes.count() > 1 ? policy : NumaPolicy::kOff), nodes_(std::move(nodes)) {}

void NumaPlacement::place([[maybe_unused]] std::byte* block,
                          [[maybe_unused]] int64_t bytes,
                          [[maybe_unused]] int64_t num_experts) const {
#ifdef __linux__
  constexpr int kPreferred = 1;
  constexpr int kInterleave = 3;
  if (policy_ == NumaPolicy::kOff || !nodes_.are_real() || block == nullptr ||
      nodes_.count() > 63) {
    return;
  }
  bool is_placed = true;
  if (policy_ == NumaPolicy::kInterleave) {
    is_placed = bind_pages(block, bytes, kInterleave, (uint64_t{1} << nodes_.count()) - 1);
  } else {
    const int64_t per_expert = bytes / num_experts;
    for (int64_t begin = 0; begin < num_experts && is_placed;) {
      const int node = home(begin, num_experts);
      int64_t end = begin + 1;
      while (end < num_experts && home(end, num_experts) == node) {
        ++end;
      }
      is_placed = bind_pages(block + begin * per_expert, (end - begin) * per_expert, kPreferred,
                             uint64_t{1} << node);
      begin = end;
    }
  }
  if (!is_placed) {
    log(LogLevel::kWarn, fmt::format("mbind: {}; experts lie where they are first written",
                                     std::generic_category().message(errno)));
  }
#endif
}

NumaPlacement numa_placement() {
  const std::string name = setting("MOEBIUS_NUMA").value_or("off");
  constexpr std::array<std::pair<std::string_view, NumaPolicy>, 3> kPolicies = {
      {{"off", NumaPolicy::kOff},
       {"experts", NumaPolicy::kExperts},
       {"interleave", NumaPolicy::kInterleave}}};
  const auto* policy = std::find_if(kPolicies.begin(), kPolicies.end(),
                                    [&](const auto& entry) { return entry.first == name; });
  expect(policy != kPolicies.end(), [&] {
    return fmt::format("MOEBIUS_NUMA is \"{}\", expected off, experts or interleave", name);
  });
  const auto pretended = setting("MOEBIUS_NUMA_NODES");
  return {policy->second, pretended ? parse_numa_nodes(*pretended) : system_numa_nodes()};
}

}  // namespace moebius
