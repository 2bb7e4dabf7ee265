// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/threads/shared_state.h"

namespace moebius::comm {

SharedState::SharedState(int num_ranks) : ranks_(static_cast<size_t>(num_ranks)) {
  for (RankState& rank : ranks_) {
    for (Slot& slot : rank.slots) {
      slot.phases = std::vector<PhaseCell>(static_cast<size_t>(num_ranks));
    }
  }
  constexpr size_t kMostOfRank = 4;
  failures_.reserve(ranks_.size() * kMostOfRank);
}

uint64_t SharedState::op_id(const std::string& op) {
  const std::lock_guard lock(mutex_);
  const auto [entry, is_new] = op_ids_.try_emplace(op, op_names_.size() + 1);
  if (is_new) {
    expect_le(static_cast<int64_t>(entry->second), (int64_t{1} << Stamp::kOpBits) - 1,
              "number of operation names");
    op_names_.push_back(op);
  }
  return entry->second;
}

std::string SharedState::op_name(uint64_t id) {
  const std::lock_guard lock(mutex_);
  return id == 0 ? "start" : op_names_[id - 1];
}

void SharedState::tell_failure(const Failure& failure) {
  const std::lock_guard lock(mutex_);
  if (failures_.size() == failures_.capacity()) {
    return;
  }
  failures_.push_back(failure);
  // pairs with read_told: a rank that sees the count finds the failures.
  num_failures_.store(failures_.size(), std::memory_order_release);
}

void SharedState::read_told(std::vector<Failure>& failures) {
  // pairs with tell_failure.
  if (failures.size() < num_failures_.load(std::memory_order_acquire)) {
    const std::lock_guard lock(mutex_);
    failures.insert(failures.end(),
                    failures_.begin() + static_cast<std::ptrdiff_t>(failures.size()),
                    failures_.end());
  }
}

std::vector<int> SharedState::failure_authors() {
  const std::lock_guard lock(mutex_);
  std::vector<int> authors;
  for (const Failure& failure : failures_) {
    authors.push_back(failure.author);
  }
  return authors;
}

}  // namespace moebius::comm
