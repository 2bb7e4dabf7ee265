// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Decides how `moebius run` spreads a layer over ranks, and runs them.
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
  // Whether the rank is the first of those that hold the same tokens, and so counts for them.
  bool leads_tp_group(int rank) const { return rank % tp == 0; }
};

// Makes the plan, in which ranks = tp * dp.  Where a launcher started the ranks, `launched` is
// their number.  A size that is not given follows from the others: tp is 1, and dp is the rest.
// Where --all2all names no backend, it is allgather_reducescatter when there are data-parallel
// ranks and none otherwise.
// Throws InvalidArgument, which names the sizes.
RankPlan make_rank_plan(const RunOptions& options, std::optional<int> launched);

// Throws InvalidArgument where a launcher started several processes that would not be ranks, since
// each would do the whole run and write the same files.
void expect_launcher(const RunOptions& options);

// Throws InvalidArgument or Unsupported, with a message of one line, where device and group do not
// go together or a GPU is missing or too old.  Called before anything is loaded.
void expect_device(const RunOptions& options);

// A group of rank threads on the GPUs of this machine, rank r on GPU r modulo their number. `group`
// is "threads" or "nccl".  Throws Unsupported for "nccl" where NCCL cannot be used or where ranks
// would share a GPU, since NCCL's symmetric memory belongs to one GPU.
ThreadGroupOptions gpu_ranks(int num_ranks, const std::string& group);

// Calls body(plan, group) on every rank of this process; group is null for a single rank that needs
// none.  With --group mpi, and with --group nccl under a launcher, the ranks are the launcher's
// processes, and errors are reported here; they call agree(plan, group) first, which compares what
// each was given.  With --device cuda rank r has GPU r modulo their number.
void run_ranks(const RunOptions& options,
               const std::function<void(const RankPlan& plan, Group& group)>& agree,
               const std::function<void(const RankPlan& plan, Group* group)>& body);

}  // namespace moebius::app
