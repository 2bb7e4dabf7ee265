// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What ranks tell each other before rows move, where they do so on the host, and what follows from
// it for everybody alike: the count matrix, and the banks.
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
  int64_t row_bytes = 0;  // must be the same everywhere
  int64_t bank = BankPool::kNone;
  int64_t bank_bytes = 0;
  std::vector<int64_t> copies;       // [R]; empty when the counts are known already
  std::vector<int64_t> node_copies;  // [num_nodes]
};

// Collective.  Notices of all ranks; throws InvalidArgument on every rank alike when row sizes
// differ.
std::vector<Notice> exchange_notices(Group& group, std::string_view op, const Notice& mine);

CountMatrix make_counts(std::span<const Notice> notices, int num_nodes);

// What each rank's bank must be able to hold.
std::vector<int64_t> bank_bytes(const RowLayout& layout, const CountMatrix& counts);

// Where every rank receives; `lease` keeps this rank's bank.
struct BankChoice {
  std::vector<int64_t> bank_of;  // [R]
  std::shared_ptr<void> lease;
};

// Collective where any rank needs a new bank; needed[rank]: bytes it must be able to hold.
BankChoice choose_banks(Group& group,
                        BankPool& pool,
                        std::span<const Notice> notices,
                        std::span<const int64_t> needed);

}  // namespace moebius
