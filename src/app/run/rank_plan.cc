// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/run/rank_plan.h"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "app/failure.h"
#include "comm/group/mpi/job.h"
#include "core/cuda/runtime.h"
#include "moebius/error.h"

namespace moebius::app {

ParallelConfig RankPlan::parallel(int rank) const {
  return ParallelConfig::make(tp, rank % tp, dp, dp_rank(rank), use_ep, backend);
}

namespace {

// The most rank threads that run_thread_ranks allows in one process.
constexpr int64_t kMostRanks = 1024;

int64_t asked_ranks(const RunOptions& options) {
  const int64_t product = int64_t{options.tp.value_or(1)} * options.dp.value_or(1);
  return options.ranks ? *options.ranks : product;
}

}  // namespace

RankPlan make_rank_plan(const RunOptions& options, std::optional<int> launched) {
  const int64_t num_ranks = launched ? *launched : asked_ranks(options);
  if (!launched && num_ranks > kMostRanks) {
    throw InvalidArgument(
        fmt::format("{} ranks, expected at most {} in one process", num_ranks, kMostRanks));
  }
  const int64_t tp = options.tp.value_or(1);
  const int64_t dp = options.dp ? *options.dp : num_ranks / tp;
  if (tp * dp != num_ranks) {
    throw InvalidArgument(
        options.dp ? fmt::format("--tp {} times --dp {} is {}, but there are {} ranks", tp, dp,
                                 tp * dp, num_ranks)
                   : fmt::format("--tp {}: {} ranks are no multiple of that", tp, num_ranks));
  }
  RankPlan plan;
  plan.ranks = static_cast<int>(num_ranks);
  plan.tp = static_cast<int>(tp);
  plan.dp = static_cast<int>(dp);
  plan.use_ep = !options.no_ep;
  plan.backend = plan.dp > 1 ? All2AllBackend::kAllGatherReduceScatter : All2AllBackend::kNone;
  if (!options.all2all.empty()) {
    plan.backend = *all2all_backend_from_name(options.all2all);
  }
  if (plan.backend == All2AllBackend::kNone && plan.dp > 1) {
    throw InvalidArgument(
        fmt::format("--all2all none: ranks hold the same tokens, so dp is 1, but {} ranks with "
                    "--tp {} make it {} (--tp {})",
                    num_ranks, tp, plan.dp, num_ranks));
  }
  return plan;
}

namespace {

// Throws Unsupported where NCCL cannot give `ranks` ranks a GPU each.
void expect_gpu_each(int ranks) {
  if (const std::string reason = why_no_nccl(); !reason.empty()) {
    throw Unsupported(fmt::format("--group nccl: {}", reason));
  }
  if (ranks > cuda_device_count()) {
    throw Unsupported(fmt::format(
        "--group nccl: {} ranks on a machine with {} GPU{}, and each needs one of its own "
        "(--group threads lets ranks share)",
        ranks, cuda_device_count(), cuda_device_count() == 1 ? "" : "s"));
  }
}

// Gives each rank a GPU.  Where nodes are pretended, all ranks are taken to be on one machine.
std::unique_ptr<Group> with_gpus(std::unique_ptr<Group>&& host, int ranks_per_node) {
  const bool is_pretended = ranks_per_node > 0;
  const Topology& topology = host->topology();
  const int index = is_pretended ? host->rank() : topology.local_rank();
  return make_nccl_group(std::move(host), Device::cuda(index));
}

void run_processes(const RunOptions& options,
                   const std::function<void(const RankPlan& plan, Group& group)>& agree,
                   const std::function<void(const RankPlan& plan, Group* group)>& body) {
  auto group = make_mpi_group({.ranks_per_node = options.ranks_per_node});
  try {
    if (options.ranks && *options.ranks != group->size()) {
      throw InvalidArgument(fmt::format("--ranks {}, but the launcher started {} processes",
                                        *options.ranks, group->size()));
    }
    const RankPlan plan = make_rank_plan(options, group->size());
    agree(plan, *group);
    if (options.group == "nccl") {
      const Topology& topology = group->topology();
      expect_gpu_each(options.ranks_per_node > 0 ? topology.size
                                                 : topology.node_size(topology.node()));
      group = with_gpus(std::move(group), options.ranks_per_node);
    }
    body(plan, group.get());
    group->leave();
  } catch (const std::exception& error) {
    fail_job(*group, error);
  }
}

}  // namespace

ThreadGroupOptions gpu_ranks(int num_ranks, const std::string& group) {
  ThreadGroupOptions options;
  options.num_ranks = num_ranks;
  options.nccl = group == "nccl";
  if (options.nccl) {
    expect_gpu_each(num_ranks);
  }
  for (int rank = 0; rank < num_ranks; ++rank) {
    options.devices.push_back(Device::cuda(rank % cuda_device_count()));
  }
  return options;
}

void expect_launcher(const RunOptions& options) {
  const std::optional<comm::Job> job = comm::launched_job();
  if (options.group == "threads" && job && job->has_others()) {
    throw InvalidArgument(
        "a launcher started this process, but --group is threads: --group mpi makes its processes "
        "ranks");
  }
}

void expect_device(const RunOptions& options) {
  const bool on_gpus = options.device == "cuda";
  const auto expect_gpus = [&](bool is_given, std::string_view option) {
    if (is_given && !on_gpus) {
      throw InvalidArgument(fmt::format("{} is of GPUs: it needs --device cuda", option));
    }
  };
  expect_gpus(options.group == "nccl", "--group nccl");
  if (options.group == "mpi" && on_gpus) {
    throw InvalidArgument(
        "--device cuda: GPUs of processes reach each other through --group nccl, not mpi");
  }
  expect_gpus(options.graph, "--graph");
  expect_gpus(options.comm_sms > 0, fmt::format("--comm-sms {}", options.comm_sms));
  expect_gpus(options.kernel.combine_parts > 0,
              fmt::format("--combine-parts {}", options.kernel.combine_parts));
  expect_gpus(options.kernel.early_rows.has_value(),
              fmt::format("--early-rows {}", options.kernel.early_rows.value_or(0)));
  expect_gpus(options.router_sums == "tensor", "--router-sums tensor");
  expect_gpus(options.capacity.has_value(),
              fmt::format("--capacity {}", options.capacity.value_or(0)));
  if (on_gpus) {
    if (options.group == "threads" && asked_ranks(options) > 1) {
      cuda::prepare_for_shared_gpus();
    }
    expect_usable(Device::cuda(0));
  }
}

void run_ranks(const RunOptions& options,
               const std::function<void(const RankPlan& plan, Group& group)>& agree,
               const std::function<void(const RankPlan& plan, Group* group)>& body) {
  if (options.group == "mpi" || (options.group == "nccl" && launched_by_mpi())) {
    run_processes(options, agree, body);
    return;
  }
  const RankPlan plan = make_rank_plan(options, std::nullopt);
  if (plan.ranks == 1 && plan.backend == All2AllBackend::kNone) {
    body(plan, nullptr);
    return;
  }
  ThreadGroupOptions threads;
  if (options.device == "cuda") {
    threads = gpu_ranks(plan.ranks, options.group);
  }
  threads.num_ranks = plan.ranks;
  threads.ranks_per_node = options.ranks_per_node;
  run_thread_ranks(threads, [&](Group& group) { body(plan, &group); });
}

}  // namespace moebius::app
