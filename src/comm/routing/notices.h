// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Notices: what ranks tell each other on the host before rows move.  From them every rank computes
// the same count matrix and the same choice of banks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/high_throughput/bank.h"
#include "comm/routing/route.h"
#include "comm/routing/row_layout.h"
#include "moebius/group.h"

namespace moebius {

struct Notice {
  int64_t row_bytes = 0;  // the same on every rank
  int64_t bank = BankPool::kNone;
  int64_t bank_bytes = 0;
  std::vector<int64_t> copies;       // [R]; empty when the counts are known already
  std::vector<int64_t> node_copies;  // [num_nodes]
  // [E] selections of each expert; empty where ids travel, from which their receiver counts them.
  std::vector<int64_t> selections = {};
};

// Collective.  Returns the notices of all ranks, by rank.  Throws InvalidArgument on every rank
// when row sizes differ.
std::vector<Notice> exchange_notices(Group& group, std::string_view op, const Notice& mine);

// The selections of all ranks among the experts of `rank`, in order of local index and rounded up
// to a multiple of `alignment`.
std::vector<int64_t> count_selections(std::span<const Notice> notices,
                                      const ExpertPlacement& placement,
                                      int rank,
                                      int64_t alignment);

CountMatrix make_counts(std::span<const Notice> notices, int num_nodes);

// The bytes that each rank's bank must be able to hold, by rank.
std::vector<int64_t> bank_bytes(const RowLayout& layout, const CountMatrix& counts);

// The banks that the ranks receive in.  `lease` keeps this rank's bank.
struct BankChoice {
  std::vector<int64_t> bank_of;  // [R]
  std::shared_ptr<void> lease;
};

// Chooses the bank of each rank.  This is collective where any rank needs a new bank.  needed[r] is
// how many bytes the bank of rank r must be able to hold.
BankChoice choose_banks(Group& group,
                        BankPool& pool,
                        std::span<const Notice> notices,
                        std::span<const int64_t> needed);

}  // namespace moebius
