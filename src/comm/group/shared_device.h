// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Ranks of a process that share a GPU, where kernels of one wait for those of another.  Streams
// whose kernels do so must not share one of the GPU's hardware queues, in which one would wait
// behind the other for ever; there are 32 at most (CUDA_DEVICE_MAX_CONNECTIONS).
#pragma once

#include <vector>

#include "moebius/group.h"
#include "moebius/support.h"

namespace moebius::comm {

// Those of layers: the call's, transfers, shared experts (and loads), copies; a graph of it takes
// two more for its branches.
inline constexpr int kQueuesPerRank = 4;
inline constexpr int kQueuesPerRankInGraphs = 6;
inline constexpr int kMaxQueues = 32;

// Collective: the ranks on this rank's GPU in order, itself included; it alone on CPUs.  Ranks in
// processes of their own have a GPU of their own.
std::vector<int> ranks_on_this_gpu(Group& group);

// Whether so many ranks of a GPU may replay graphs of a layer side by side, in a process with so
// many queues (cuda::hardware_queues).
Support can_replay_on_one_gpu(int num_ranks, int num_queues);

// Whether the ranks that share this rank's device may replay graphs of a layer side by side.
// Collective, as ranks_on_this_gpu().
Support can_replay_graphs(Group& group);

}  // namespace moebius::comm
