// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/shared_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/cuda/runtime.h"

namespace moebius::comm {

std::vector<int> ranks_on_this_gpu(Group& group) {
  if (group.device().is_cpu() || !group.shares_address_space()) {
    return {group.rank()};
  }
  const int32_t own = group.device().index;
  std::vector<int32_t> devices(static_cast<size_t>(group.size()));
  all_gather_bytes(group, "GPUs of the ranks", &own, sizeof(own), devices.data());
  std::vector<int> ranks;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (devices[static_cast<size_t>(rank)] == own) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

Support can_replay_on_one_gpu(int num_ranks, int num_queues) {
  const int most = std::max(1, num_queues / kQueuesPerLayer);
  return num_ranks <= most
             ? Support::yes()
             : Support::no(fmt::format(
                   "{} ranks share a GPU, at most {} can replay graphs there: kernels that wait "
                   "for each other need a hardware queue per stream, of which this process has {} "
                   "(CUDA_DEVICE_MAX_CONNECTIONS, at most {})",
                   num_ranks, most, num_queues, kMaxQueues));
}

Support can_replay_graphs(Group& group) {
  return can_replay_on_one_gpu(static_cast<int>(ranks_on_this_gpu(group).size()),
                               cuda::hardware_queues());
}

}  // namespace moebius::comm
