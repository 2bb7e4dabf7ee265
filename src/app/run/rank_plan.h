// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// How `moebius run` spreads a layer over ranks, and the running of them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "app/options.h"
#include "moebius/group.h"
#include "moebius/parallel_config.h"

namespace moebius::app {

struct RankPlan {
  int ranks = 1;
  int tp = 1;
  int dp = 1;
  bool use_ep = true;
  All2AllBackend backend = All2AllBackend::kNone;

  // rank = dp_rank * tp + tp_rank.
  ParallelConfig parallel(int rank) const;
  int dp_rank(int rank) const { return rank / tp; }
  // Of the ranks that hold the same tokens, the one that speaks for them.
  bool leads_tp_group(int rank) const { return rank % tp == 0; }
};

// ranks = tp * dp, those of the launcher where there is one; what is not given follows from the
// others, data parallelism first.  Without --all2all: allgather_reducescatter when there are
// data-parallel ranks, none otherwise.
// Throws InvalidArgument naming the sizes.
RankPlan make_rank_plan(const RunOptions& options, std::optional<int> launched);

// Throws InvalidArgument where a launcher started several processes that would not be ranks: each
// would do the whole run and write the same files.
void expect_launcher(const RunOptions& options);

// Throws InvalidArgument or Unsupported, one line, where device and group do not go together or a
// GPU is missing or too old.  Before anything is loaded.
void expect_device(const RunOptions& options);

// A group of rank threads on the GPUs of this machine, rank r on GPU r modulo their number. `group`
// is "threads" or "nccl".  Throws Unsupported for "nccl" where NCCL cannot be used or where ranks
// would share a GPU, since NCCL's symmetric memory belongs to one GPU.
ThreadGroupOptions gpu_ranks(int num_ranks, const std::string& group);

// body(group) on every rank this process holds; group is null for a single rank that needs none.
// The plan's ranks are those of the launcher with --group mpi, and with --group nccl where there is
// one; errors are then reported here.  With --device cuda rank r has GPU r modulo their number.
void run_ranks(const RunOptions& options,
               const std::function<void(const RankPlan& plan, Group* group)>& body);

}  // namespace moebius::app
