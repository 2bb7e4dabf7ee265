// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/routing/notices.h"

#include <fmt/format.h>

#include <algorithm>

namespace moebius {

std::vector<Notice> exchange_notices(Group& group, std::string_view op, const Notice& mine) {
  std::vector<int64_t> words = {mine.row_bytes, mine.bank, mine.bank_bytes};
  words.insert(words.end(), mine.copies.begin(), mine.copies.end());
  words.insert(words.end(), mine.node_copies.begin(), mine.node_copies.end());
  words.insert(words.end(), mine.selections.begin(), mine.selections.end());
  const size_t stride = words.size();
  std::vector<int64_t> all(stride * static_cast<size_t>(group.size()));
  all_gather_bytes(group, op, words.data(), static_cast<int64_t>(stride * sizeof(int64_t)),
                   all.data());

  std::vector<Notice> notices(static_cast<size_t>(group.size()));
  for (size_t r = 0; r < notices.size(); ++r) {
    const int64_t* w = all.data() + r * stride;
    const int64_t* copies = w + 3;
    const int64_t* node_copies = copies + mine.copies.size();
    const int64_t* selections = node_copies + mine.node_copies.size();
    notices[r] = {w[0],
                  w[1],
                  w[2],
                  {copies, node_copies},
                  {node_copies, selections},
                  {selections, w + stride}};
    if (w[0] != all[0]) {  // rank 0's
      throw InvalidArgument(
          fmt::format("{}: rank {} moves rows of {} bytes, rank 0 of {}", op, r, w[0], all[0]));
    }
  }
  return notices;
}

std::vector<int64_t> count_selections(std::span<const Notice> notices,
                                      const ExpertPlacement& placement,
                                      int rank,
                                      int64_t alignment) {
  std::vector<int64_t> counts(static_cast<size_t>(placement.num_local(rank)), 0);
  for (int64_t e = 0; e < placement.num_experts(); ++e) {
    if (placement.rank_of(e) == rank) {
      int64_t& count = counts[static_cast<size_t>(placement.local_index(e))];
      for (const Notice& notice : notices) {
        count += notice.selections[static_cast<size_t>(e)];
      }
      count = (count + alignment - 1) / alignment * alignment;
    }
  }
  return counts;
}

CountMatrix make_counts(std::span<const Notice> notices, int num_nodes) {
  CountMatrix counts;
  counts.num_ranks = static_cast<int>(notices.size());
  counts.num_nodes = num_nodes;
  for (const Notice& notice : notices) {
    counts.copies.insert(counts.copies.end(), notice.copies.begin(), notice.copies.end());
    counts.node_copies.insert(counts.node_copies.end(), notice.node_copies.begin(),
                              notice.node_copies.end());
  }
  return counts;
}

std::vector<int64_t> bank_bytes(const RowLayout& layout, const CountMatrix& counts) {
  std::vector<int64_t> bytes;
  for (int r = 0; r < counts.num_ranks; ++r) {
    bytes.push_back(layout.block_bytes(counts.rows(r)));
  }
  return bytes;
}

BankChoice choose_banks(Group& group,
                        BankPool& pool,
                        std::span<const Notice> notices,
                        std::span<const int64_t> needed) {
  BankChoice choice;
  int64_t largest = 0;
  for (size_t r = 0; r < notices.size(); ++r) {
    const bool fits = needed[r] <= notices[r].bank_bytes;
    choice.bank_of.push_back(fits ? notices[r].bank : BankPool::kNone);
    largest = std::max(largest, fits ? 0 : needed[r]);
  }
  if (largest > 0) {
    const int64_t added = pool.add(group, largest);
    std::replace(choice.bank_of.begin(), choice.bank_of.end(), BankPool::kNone, added);
  }
  const int64_t mine = choice.bank_of[static_cast<size_t>(group.rank())];
  if (mine != BankPool::kNone) {
    choice.lease = pool.lease(mine);
  }
  return choice;
}

}  // namespace moebius
