// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/rank_plan.h"

#include <fmt/format.h>

#include "app/failure.h"
#include "moebius/error.h"

namespace moebius::app {

ParallelConfig RankPlan::parallel(int rank) const {
  return ParallelConfig::make(tp, rank % tp, dp, dp_rank(rank), use_ep, backend);
}

RankPlan make_rank_plan(const RunOptions& options, int ranks) {
  RankPlan plan;
  plan.ranks = ranks > 1 ? ranks : options.tp * options.dp;
  plan.tp = options.tp;
  plan.dp = options.dp;
  if (plan.dp == 1 && plan.ranks % plan.tp == 0) {
    plan.dp = plan.ranks / plan.tp;
  }
  if (plan.tp * plan.dp != plan.ranks) {
    throw InvalidArgument(fmt::format("--tp {} times --dp {} is {}, but there are {} ranks",
                                      options.tp, options.dp, options.tp * options.dp, plan.ranks));
  }
  plan.use_ep = !options.no_ep;
  plan.backend = plan.dp > 1 ? All2AllBackend::kAllGatherReduceScatter : All2AllBackend::kNone;
  if (!options.all2all.empty()) {
    plan.backend = *all2all_backend_from_name(options.all2all);
  }
  return plan;
}

void run_ranks(const RunOptions& options,
               const std::function<void(const RankPlan& plan, Group* group)>& body) {
  if (options.group == "mpi") {
    const auto group = make_mpi_group({.ranks_per_node = options.ranks_per_node});
    try {
      if (options.ranks > 1 && options.ranks != group->size()) {
        throw InvalidArgument(fmt::format("--ranks {}, but the launcher started {} processes",
                                          options.ranks, group->size()));
      }
      body(make_rank_plan(options, group->size()), group.get());
    } catch (const std::exception& error) {
      fail_job(*group, error);
    }
    return;
  }
  const RankPlan plan = make_rank_plan(options, options.ranks);
  if (plan.ranks == 1 && plan.backend == All2AllBackend::kNone) {
    body(plan, nullptr);
    return;
  }
  ThreadGroupOptions threads;
  threads.num_ranks = plan.ranks;
  threads.ranks_per_node = options.ranks_per_node;
  run_thread_ranks(threads, [&](Group& group) { body(plan, &group); });
}

}  // namespace moebius::app
