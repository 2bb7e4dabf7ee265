// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/runner.h"

#include <exception>
#include <new>

#include "core/cpu_sets.h"

namespace moebius::comm {

RankCpus::RankCpus(int num_ranks, bool pin) {
  const std::vector<int> cpus = usable_cpus();
  num_cpus_ = static_cast<int>(cpus.size());
  if (pin && num_ranks > 1) {
    parts_ = split_cpus(cpus, num_ranks);
  }
}

bool RankCpus::pin(int rank) const {
  return !parts_.empty() && pin_this_thread(parts_[static_cast<size_t>(rank)]);
}

uint64_t hash_of_cpus() {
  uint64_t hash = 0;
  for (const int cpu : usable_cpus()) {
    hash = hash * 8191 + static_cast<uint64_t>(cpu) + 1;
  }
  return hash;
}

FixedText<2048> current_exception_text() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return std::string_view("out of memory");
  } catch (const std::exception& error) {
    return std::string_view(error.what());
  } catch (...) {
    return std::string_view("an exception that is no std::exception");
  }
}

}  // namespace moebius::comm
