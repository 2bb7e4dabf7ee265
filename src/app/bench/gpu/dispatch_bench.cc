// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>

#include "app/bench/benches.h"
#include "app/bench/gpu/transport.h"
#include "app/bench/harness.h"
#include "app/bench/per_rank.h"
#include "app/bench/rank_team.h"
#include "app/run/rank_plan.h"
#include "app/run/rank_run.h"
#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "core/cuda/runtime.h"
#include "moebius/error.h"
#include "problems/statistics.h"

namespace moebius::bench {

namespace {

using app::Unit;
using app::Value;

const std::vector<app::Column> kDispatchColumns = {
    {"sms", "SMs"},
    {"wire_bytes", "wire", Unit::kBytes},
    {"gb_per_s", "rate", Unit::kGigabytesPerSecond},
    {"deepep_gb_per_s", "as DeepEP's", Unit::kGigabytesPerSecond},
    {"rank_median_us", "all ranks", Unit::kMicros},
};

// A problem on all ranks, each of which has its GPU and its thread.
class GpuDispatchRun {
 public:
  GpuDispatchRun(RankTeam& team, const GpuProblem& problem, bool is_low_latency)
      : problem_(problem),
        all_(rows_of(team, problem, is_low_latency)),
        ranks_(team, [&](Group& group) {
          auto rank = std::make_unique<Rank>();
          const Stream stream = Stream::cuda(group.device().index);
          const auto make = is_low_latency ? make_gpu_low_latency : make_gpu_high_throughput;
          rank->transport = make({group, problem_, all_, stream});
          rank->clock = std::make_unique<GpuClock>(group, stream);
          rank->transfers = rank->transport->transfers();
          return rank;
        }) {}

  const std::vector<GpuTransfer>& transfers() const { return ranks_.first().transfers; }

  void choose(size_t transfer) {
    ranks_.run([&](Rank& rank, Group&) {
      const GpuTransfer& chosen = rank.transfers[transfer];
      rank.clock->set(chosen.work, chosen.launch);
      rank.samples.clear();
    });
  }
  // Makes one call and returns the seconds of the slowest rank.
  double call() {
    return ranks_.slowest([](Rank& rank) {
      rank.samples.push_back(rank.clock->run());
      rank.transport->check();
      return rank.samples.back();
    });
  }
  Difference difference(size_t transfer) {
    return ranks_.difference(
        [&](const Rank& rank) { return rank.transfers[transfer].difference(); });
  }
  // The median over all calls and ranks.
  double rank_median_us() const {
    std::vector<double> all;
    for (const auto& rank : ranks_.all()) {
      all.insert(all.end(), rank->samples.begin(), rank->samples.end());
    }
    return app::median(all) * 1e6;
  }

 private:
  struct Rank {
    std::unique_ptr<GpuTransport> transport;
    std::unique_ptr<GpuClock> clock;  // destroyed before the transport, which its graph uses
    std::vector<GpuTransfer> transfers;
    std::vector<double> samples;
  };

  static std::vector<RankRows> rows_of(RankTeam& team,
                                       const GpuProblem& problem,
                                       bool is_low_latency) {
    const RowFormat format = is_low_latency ? RowFormat::kBF16 : problem.format;
    std::vector<RankRows> all(static_cast<size_t>(problem.routing.num_ranks));
    team.run([&](Group& group) {
      all[static_cast<size_t>(group.rank())] = make_rows(problem.routing, format, group.rank());
    });
    return all;
  }

  const GpuProblem problem_;
  const std::vector<RankRows> all_;
  PerRank<Rank> ranks_;
};

struct Machine {
  int num_gpus = 0;
  int num_ranks = 0;
  int num_sms = 0;
};

std::string version_of(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

void report_set_up(Harness& harness, const app::BenchOptions& options, const Machine& machine) {
  int driver = 0;
  int runtime = 0;
  cuda::check_cuda(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  cuda::check_cuda(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  const int used = std::min(machine.num_gpus, machine.num_ranks);
  const std::string gpu = cuda_device_info(0).name;
  harness.fact("device", "cuda");
  harness.fact("gpu", gpu);
  harness.fact("gpus", used);
  harness.fact("cuda_driver", version_of(driver));
  harness.fact("cuda_runtime", version_of(runtime));
  harness.fact("group", options.group);
  harness.fact("ranks", machine.num_ranks);
  harness.fact("hidden", options.hidden);
  harness.fact("topk", options.dispatch_topk());
  harness.fact("experts", options.dispatch_experts());
  fmt::print(
      "{} ranks ({}) on {} x {}, CUDA {} on a driver of {}; hidden {}, top-{} of {} experts\n",
      machine.num_ranks, options.group, used, gpu, version_of(runtime), version_of(driver),
      options.hidden, options.dispatch_topk(), options.dispatch_experts());
}

// Runs every transfer of every problem that the options ask for.
class GpuDispatchBench {
 public:
  GpuDispatchBench(const app::BenchOptions& options, const Machine& machine)
      : options_(options),
        machine_(machine),
        harness_(options, kDispatchColumns),
        team_(app::gpu_ranks(machine.num_ranks, options.group)) {
    report_set_up(harness_, options, machine);
  }

  int run() {
    for (const std::string& mode : options_.modes) {
      for (const int64_t tokens : tokens_of(mode)) {
        for (const std::string& dtype : options_.dtypes) {
          for (const int sms : options_.sms) {
            run_problem(mode == "ll", tokens, dtype, sms);
          }
        }
      }
    }
    return harness_.finish();
  }

 private:
  const std::vector<int64_t>& tokens_of(const std::string& mode) const {
    return !options_.tokens.empty() ? options_.tokens
           : mode == "ll"           ? app::BenchOptions::kLowLatencyTokens
                                    : app::BenchOptions::kHighThroughputTokens;
  }

  void run_problem(bool is_low_latency, int64_t tokens, const std::string& dtype, int sms) {
    GpuProblem problem;
    problem.routing = {fmt::format("t{}_r{}", tokens, machine_.num_ranks),
                       machine_.num_ranks,
                       tokens,
                       options_.hidden,
                       options_.dispatch_experts(),
                       options_.dispatch_topk()};
    problem.format = dtype == "fp8" ? RowFormat::kFp8 : RowFormat::kBF16;
    problem.num_sms = sms;
    harness_.fact("tokens", tokens);
    harness_.fact("dtype", dtype);
    if (!is_low_latency) {
      harness_.fact("sum", nullptr);
      harness_.fact("window_bytes", nullptr);
      run_transfers(problem, false, "");
      return;
    }
    const auto& sums = options_.sums.empty() ? app::BenchOptions::kSums : options_.sums;
    for (const std::string& sum : sums) {
      problem.sum = app::low_latency_sum_of(sum);
      problem.with_dispatch = sum == sums.front();
      harness_.fact("sum", sum);
      harness_.fact("window_bytes", gpu_low_latency_bytes(problem));
      run_transfers(problem, true, sum == "ranks" ? "_ranks" : "");
    }
  }

  void run_transfers(const GpuProblem& problem, bool is_low_latency, const char* suffix) {
    GpuDispatchRun run(team_, problem, is_low_latency);
    for (size_t i = 0; i < run.transfers().size(); ++i) {
      const GpuTransfer& transfer = run.transfers()[i];
      const bool is_dispatch = transfer.name.starts_with("dispatch");
      const bool in_graph = transfer.launch == GpuLaunch::kGraph;
      Case c;
      c.problem = fmt::format("{}/{}_{}{}{}", problem.routing.name, transfer.name,
                              problem.format == RowFormat::kFp8 ? "fp8" : "bf16",
                              is_dispatch ? "" : suffix, in_graph ? "_graph" : "");
      c.impl = is_low_latency ? "low_latency" : "high_throughput";
      run.choose(i);
      c.num_calls = options_.iterations;
      c.call = [&] { run.call(); };
      c.timed_call = [&] { return run.call(); };
      c.difference = [&] { return run.difference(i); };
      c.metrics = [&](double seconds) {
        return std::vector<Value>{sms_of(problem, is_low_latency, is_dispatch), transfer.wire_bytes,
                                  static_cast<double>(transfer.wire_bytes) / seconds * 1e-9,
                                  static_cast<double>(transfer.deepep_bytes) / seconds * 1e-9,
                                  run.rank_median_us()};
      };
      harness_.fact("launch", in_graph ? "graph" : "stream");
      harness_.run(c);
    }
  }

  // How many SMs a transfer uses.  For low latency it is an upper bound, since few tokens need
  // fewer.
  int sms_of(const GpuProblem& problem, bool is_low_latency, bool is_dispatch) const {
    if (is_low_latency) {
      const int ranks_per_gpu = (machine_.num_ranks + machine_.num_gpus - 1) / machine_.num_gpus;
      const int most = machine_.num_sms / ranks_per_gpu;
      return problem.num_sms > 0 ? std::min(problem.num_sms, most) : most;
    }
    const auto config = is_dispatch ? DispatchConfig::for_dispatch : DispatchConfig::for_combine;
    return problem.num_sms > 0 ? problem.num_sms
                               : config(machine_.num_ranks, Device::cuda(0)).num_sms;
  }

  const app::BenchOptions& options_;
  const Machine machine_;
  Harness harness_;
  RankTeam team_;
};

}  // namespace

int run_gpu_dispatch_bench(const app::BenchOptions& options) {
  cuda::prepare_for_shared_gpus();
  expect_usable(Device::cuda(0));
  expect_le(options.dispatch_topk(), options.dispatch_experts(), "--topk");
  if (std::find(options.dtypes.begin(), options.dtypes.end(), "fp8") != options.dtypes.end()) {
    expect_multiple_of(options.hidden, int64_t{128}, "--hidden with --dtype fp8");
  }
  Machine machine;
  machine.num_gpus = cuda_device_count();
  machine.num_ranks = options.ranks > 0 ? options.ranks : machine.num_gpus;
  machine.num_sms = cuda::num_sms(0);
  return GpuDispatchBench(options, machine).run();
}

}  // namespace moebius::bench
