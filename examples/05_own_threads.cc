// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Own threads: threads that the program has anyway become the ranks of a group, and its even and
// odd ranks two groups of their own.
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "moebius/group.h"

namespace {

constexpr int kNumRanks = 4;

// A thread of the program calls this: it adds its rank to the sum of all ranks and of its half.
bool is_rank_right(moebius::Group& group) {
  std::vector<int64_t> sum = {group.rank()};
  moebius::all_reduce_sum(group, "sum of ranks", sum);
  const std::unique_ptr<moebius::Group> half = group.split(/*color=*/group.rank() % 2);
  std::vector<int64_t> sum_of_half = {group.rank()};
  moebius::all_reduce_sum(*half, "sum of half", sum_of_half);
  const int64_t expected = group.rank() % 2 == 0 ? 0 + 2 : 1 + 3;
  return sum[0] == 0 + 1 + 2 + 3 && sum_of_half[0] == expected;
}

}  // namespace

int main() {
  // One handle for each thread; who gets which one is the program's affair.
  auto groups = moebius::make_thread_groups(kNumRanks);
  std::vector<char> is_right(kNumRanks, 0);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < kNumRanks; ++rank) {
    threads.emplace_back([&is_right, rank, group = std::move(groups[rank])] {
      try {
        is_right[rank] = is_rank_right(*group) ? 1 : 0;
      } catch (const std::exception& error) {
        group->abort(error.what());  // the others then end at once, and know why
        std::fprintf(stderr, "%s\n", error.what());
      }
    });
  }
  int num_right = 0;
  for (size_t rank = 0; rank < kNumRanks; ++rank) {
    threads[rank].join();
    num_right += is_right[rank];
  }
  std::printf("%d of %d ranks have the right sums\n", num_right, kNumRanks);
  return num_right == kNumRanks ? 0 : 1;
}
