// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Ranks of a process that share a GPU, where kernels of one wait for kernels of another.  The
// streams of such kernels must not share one of the GPU's hardware queues: there the kernel that is
// waited for could stand behind the one that waits, for ever.  A process has at most 32 queues
// (CUDA_DEVICE_MAX_CONNECTIONS): while so many streams have a kernel that waits for an event of
// another stream, no kernel of a further stream begins (measured on an H200 with CUDA 13).
#pragma once

#include <vector>

#include "moebius/group.h"
#include "moebius/support.h"

namespace moebius::comm {

// A rank's streams are the caller's and one for memory and copies.
inline constexpr int kQueuesPerRank = 2;
// A layer adds one for transfers and one for shared experts (and loads).  A graph of the layer
// takes two more queues for its branches, and a call without one so many while its streams wait.
// That is six, but of five ranks' graphs of exchanges one in 45 tests expired with 32 queues, and
// of four ranks' none in 150.
inline constexpr int kQueuesPerLayer = 8;
inline constexpr int kMaxQueues = 32;

// Collective.  Returns the ranks of this process on this rank's GPU in order, this one included. On
// CPUs, and for ranks that are processes, which have hardware queues of their own and take turns,
// that is this rank alone.
std::vector<int> ranks_on_this_gpu(Group& group);

// Returns whether num_ranks ranks of a GPU may run layers with streams beside the caller's, and
// replay graphs of them, in a process with num_queues hardware queues (cuda::hardware_queues).
Support can_replay_on_one_gpu(int num_ranks, int num_queues);

// Collective.  Returns the same for the ranks that share this rank's GPU.
Support can_replay_graphs(Group& group);

}  // namespace moebius::comm
