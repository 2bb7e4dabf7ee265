// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/high_throughput_state.h"

#include <fmt/format.h>

#include <algorithm>

namespace moebius {

HighThroughput::State::State(Group& g, ExpertPlacement p) : group(g), placement(std::move(p)) {
  for (int64_t e = 0; e < placement.num_experts(); ++e) {
    rank_of.push_back(placement.rank_of(e));
    node_of.push_back(topology().node_of(placement.rank_of(e)));
  }
}

std::vector<Notice> HighThroughput::State::exchange_notices(std::string_view op,
                                                            const Notice& mine) {
  std::vector<int64_t> words = {mine.row_bytes, mine.bank, mine.bank_bytes};
  words.insert(words.end(), mine.copies.begin(), mine.copies.end());
  words.insert(words.end(), mine.node_copies.begin(), mine.node_copies.end());
  const size_t stride = words.size();
  std::vector<int64_t> all(stride * static_cast<size_t>(group.size()));
  all_gather_bytes(group, op, words.data(), static_cast<int64_t>(stride * sizeof(int64_t)),
                   all.data());

  std::vector<Notice> notices(static_cast<size_t>(group.size()));
  for (size_t r = 0; r < notices.size(); ++r) {
    const int64_t* w = all.data() + r * stride;
    const int64_t* copies = w + 3;
    const int64_t* node_copies = copies + mine.copies.size();
    notices[r] = {w[0],
                  w[1],
                  w[2],
                  {copies, node_copies},
                  {node_copies, node_copies + mine.node_copies.size()}};
    if (w[0] != all[0]) {  // rank 0's
      throw InvalidArgument(
          fmt::format("{}: rank {} moves rows of {} bytes, rank 0 of {}", op, r, w[0], all[0]));
    }
  }
  return notices;
}

BankChoice HighThroughput::State::choose_banks(BankPool& pool,
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
  const int64_t mine = choice.bank_of[static_cast<size_t>(rank())];
  if (mine != BankPool::kNone) {
    choice.lease = pool.lease(mine);
  }
  return choice;
}

Tensor HighThroughputHandle::source_rank() const {
  const Tensor ranks = Tensor::empty({num_rows()}, DType::kI32);
  for (int s = 0; s < counts.num_ranks; ++s) {
    std::fill(ranks.data<int32_t>() + counts.row_begin(s, rank),
              ranks.data<int32_t>() + counts.row_begin(s + 1, rank), s);
  }
  return ranks;
}

}  // namespace moebius
