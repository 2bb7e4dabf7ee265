// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Checks and times layers on GPUs, from their weights to calls and graphs.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "app/bench/benches.h"
#include "app/bench/cases.h"
#include "app/bench/gpu/clock.h"
#include "app/bench/harness.h"
#include "app/bench/per_rank.h"
#include "app/bench/probes.h"
#include "app/bench/rank_team.h"
#include "app/forced_setting.h"
#include "app/run/layer_cost.h"
#include "app/run/random_tensor.h"
#include "app/run/rank_plan.h"
#include "app/run/rank_run.h"
#include "app/run/reference_check.h"
#include "app/run/subject.h"
#include "core/cuda/runtime.h"
#include "layer/overlap.h"
#include "moebius/error.h"
#include "moebius/profile.h"
#include "moebius/tolerance.h"
#include "moebius/workspace.h"
#include "problems/gpu_cold.h"
#include "problems/random_layer.h"
#include "problems/statistics.h"

namespace moebius::bench {

namespace {

using app::Unit;
using app::Value;

constexpr int64_t kNumProbes = 8;
// Up to this number of tokens calls are replays of a graph, and ranks exchange rows by low latency
// unless asked otherwise.
constexpr int64_t kMostDecodeTokens = 256;

const std::vector<app::Column> kLayerColumns = {
    {"host_us", "host", Unit::kMicros},
    {"direct_us", "direct", Unit::kMicros},
    {"tokens_per_s", "rate", Unit::kTokensPerSecond},
    {"gflops", "products", Unit::kGflops},
    {"touched_bytes", "weights", Unit::kBytes},
    {"weight_gb_per_s", "read", Unit::kGigabytesPerSecond},
    {"router_us", "router", Unit::kMicros},
    {"prepare_us", "prepare", Unit::kMicros},
    {"experts_us", "experts", Unit::kMicros},
    {"finalize_us", "finalize", Unit::kMicros},
    {"shared_us", "shared", Unit::kMicros},
    {"hidden_share", "hidden", Unit::kPercent},
    {"busiest_rank", "busiest", Unit::kDecimals},
};

// The whole layer on the host, and the results of a few tokens by the float64 reference.
struct WholeLayer {
  MoeLayerWeights weights;
  app::LayerCost cost;
  double tolerance = 0;
  Tensor probes;    // [kNumProbes, H]
  Tensor expected;  // f32 [kNumProbes, H]; undefined without a check
};

WholeLayer make_whole(const app::BenchOptions& options, const Stream& stream) {
  WholeLayer whole;
  whole.weights =
      RandomLayers(options.preset, options.quant, stream).make(0, options.experts, options.topk);
  whole.cost = app::layer_cost(whole.weights);
  whole.tolerance = layer_tolerance(whole.weights.experts.quant);
  const MoeConfig& config = whole.weights.config;
  whole.probes = app::random_normal({kNumProbes, config.hidden}, config.in_dtype, 1);
  if (options.check) {
    whole.expected = app::reference_forward(whole.weights, whole.probes, stream).output;
  }
  return whole;
}

// Returns the experts in `range` of a tensor that has a row per expert, and any other tensor whole.
Tensor rows_of(const Tensor& tensor, ExpertRange range, int64_t num_experts) {
  const bool is_per_expert = tensor && tensor.num_dims() > 0 && tensor.dim(0) == num_experts;
  return is_per_expert ? tensor.slice(range.begin, range.end) : tensor;
}

MoeLayerWeights share_of(const MoeLayerWeights& whole, const ParallelConfig& parallel) {
  MoeLayerWeights own = whole;
  const int64_t num_experts = whole.config.num_experts;
  const ExpertRange range = expert_range(num_experts, parallel.ep_size, parallel.ep_rank);
  own.config.parallel = parallel;
  own.config.num_local_experts = range.size();
  QuantConfig& quant = own.experts.quant;
  for (Tensor* tensor :
       {&own.experts.w1, &own.experts.w2, &quant.w1.scale, &quant.w1.alpha_or_gscale,
        &quant.w1.zero_point, &quant.w1.bias, &quant.w2.scale, &quant.w2.alpha_or_gscale,
        &quant.w2.zero_point, &quant.w2.bias}) {
    *tensor = rows_of(*tensor, range, num_experts);
  }
  return own;
}

struct LayerProblem {
  int64_t num_tokens = 0;  // per rank
  KernelOptions kernel;    // as asked for
  int comm_sms = 0;        // 0: the backend's default
  All2AllBackend backend = All2AllBackend::kNone;
  std::string sum;  // what low latency's combine sends back

  bool replays() const { return num_tokens <= kMostDecodeTokens; }
  bool returns_in_parts() const { return backend == All2AllBackend::kHighThroughput; }
  // Whether the host waits for the number of rows; without that high throughput has a capacity.
  bool counts_rows() const { return backend == All2AllBackend::kHighThroughput && !replays(); }
};

std::vector<All2AllBackend> backends_of(const app::BenchOptions& options,
                                        int num_ranks,
                                        int64_t num_tokens) {
  if (num_ranks == 1) {
    return {All2AllBackend::kNone};
  }
  if (options.all2all.empty()) {
    return {num_tokens <= kMostDecodeTokens ? All2AllBackend::kLowLatency
                                            : All2AllBackend::kHighThroughput};
  }
  std::vector<All2AllBackend> backends;
  for (const std::string& name : options.all2all) {
    backends.push_back(*all2all_backend_from_name(name));
  }
  return backends;
}

std::vector<std::string> sums_of(const app::BenchOptions& options, All2AllBackend backend) {
  const bool has_choice = backend == All2AllBackend::kLowLatency && !options.sums.empty();
  return has_choice ? options.sums : std::vector{app::BenchOptions::kSums.front()};
}

std::vector<int> combine_parts_of(const app::BenchOptions& options, const LayerProblem& problem) {
  return problem.returns_in_parts() ? options.combine_parts : std::vector{0};
}

std::vector<std::optional<int64_t>> early_rows_of(const app::BenchOptions& options,
                                                  const LayerProblem& problem) {
  if (!problem.counts_rows() || options.early_rows.empty()) {
    return {std::nullopt};
  }
  return {options.early_rows.begin(), options.early_rows.end()};
}

std::vector<LayerProblem> problems_of(const app::BenchOptions& options, int num_ranks) {
  std::vector<LayerProblem> problems;
  for (const int64_t num_tokens :
       options.tokens.empty() ? app::BenchOptions::kGpuLayerTokens : options.tokens) {
    for (const All2AllBackend backend : backends_of(options, num_ranks, num_tokens)) {
      LayerProblem problem;
      problem.num_tokens = num_tokens;
      problem.backend = backend;
      for (const int microbatches : options.microbatches) {
        problem.kernel.microbatches = microbatches;
        for (const int combine_parts : combine_parts_of(options, problem)) {
          problem.kernel.combine_parts = combine_parts;
          for (const std::optional<int64_t> early_rows : early_rows_of(options, problem)) {
            problem.kernel.early_rows = early_rows;
            for (const int sms : options.sms) {
              problem.comm_sms = sms;
              for (const std::string& sum : sums_of(options, backend)) {
                problem.sum = sum;
                problems.push_back(problem);
              }
            }
          }
        }
      }
    }
  }
  return problems;
}

class LayerRun {
 public:
  LayerRun(RankTeam& team,
           const app::BenchOptions& options,
           const WholeLayer& whole,
           const LayerProblem& problem)
      : whole_(whole),
        problem_(problem),
        pause_(options.pause_ms),
        ranks_(team, [&](Group& group) { return set_up(group, options); }) {}

  int microbatches() const { return kernel().last_microbatches(); }
  int combine_parts() const { return kernel().last_combine_parts(); }
  bool in_waves() const { return kernel().last_rows_came_in_waves(); }
  std::string experts() const { return std::string(kernel().experts().name()); }

  // Makes one call and returns the seconds of the slowest rank.
  double call() {
    std::this_thread::sleep_for(pause_);
    return ranks_.slowest([](Rank& rank) {
      const double seconds = rank.clock->run();
      rank.layer->check();
      return seconds;
    });
  }

  // Compares the last call bit by bit with the first, which was not replayed, and the probes among
  // the tokens of every rank with the reference.
  std::optional<std::string> difference() {
    return ranks_.difference([&](const Rank& rank) -> std::optional<std::string> {
      const Tensor output = to_device(rank.output, Device::cpu(), rank.stream);
      if (std::memcmp(output.raw(), rank.first_output.raw(),
                      static_cast<size_t>(output.nbytes())) != 0) {
        return "other bits than the first call's";
      }
      return probe_difference(output, whole_.expected, whole_.tolerance);
    });
  }

  std::vector<Value> metrics(double seconds) {
    constexpr int kProfiledCalls = 5;
    std::array<double, app::kStages.size()> stages{};  // of the slowest rank in each stage
    for (int i = 0; i < kProfiledCalls; ++i) {
      ranks_.run([](Rank& rank, Group& group) { rank.profiled_call(group); });
    }
    Overlap travel;  // summed over all ranks
    int64_t rows = 0;
    int64_t most_rows = 0;  // of the rank that has most
    int64_t touched = 0;
    for (const std::unique_ptr<Rank>& rank : ranks_.all()) {
      for (size_t s = 0; s < stages.size(); ++s) {
        stages[s] = std::max(stages[s], app::median(rank->stages_us[s]));
      }
      travel.travel += rank->travel.travel;
      travel.hidden += rank->travel.hidden;
      const app::LoadSummary load = app::summarize_load(rank->layer->local_expert_load());
      rows += load.rows;
      most_rows = std::max(most_rows, load.rows);
      touched += (rank->layer->config().num_local_experts - load.idle) * whole_.cost.expert_bytes +
                 whole_.cost.shared_bytes + whole_.cost.router_bytes;
    }
    const auto num_ranks = static_cast<int64_t>(ranks_.all().size());
    const int64_t tokens = problem_.num_tokens * num_ranks;
    const auto flops = static_cast<double>(rows * whole_.cost.flops_per_row +
                                           tokens * whole_.cost.flops_per_token);
    const double host_us = host_seconds() * 1e6;
    const app::ForcedSetting no_replays("MOEBIUS_REPLAYS", "0");
    std::vector<Value> values = {host_us,
                                 host_seconds() * 1e6,
                                 static_cast<double>(tokens) / seconds,
                                 flops / seconds * 1e-9,
                                 touched,
                                 static_cast<double>(touched) / seconds * 1e-9};
    values.insert(values.end(), stages.begin(), stages.end());
    values.emplace_back(travel.hidden_share());
    values.emplace_back(static_cast<double>(most_rows * num_ranks) / static_cast<double>(rows));
    return values;
  }

 private:
  struct Rank {
    Stream stream;
    L2Flush l2;
    WorkspacePool workspaces;
    std::unique_ptr<MoeLayer> layer;
    Tensor hidden;
    Tensor output;
    Tensor first_output;  // on the host, of a call that was no replay
    std::unique_ptr<GpuClock> clock;
    std::array<std::vector<double>, app::kStages.size()> stages_us;
    Overlap travel;  // summed over all profiled calls

    void forward(Profile* profile) {
      layer->forward(hidden, output, {stream, &workspaces, 0, profile});
    }
    void profiled_call(Group& group) {
      Profile profile(Profile::Keep::kIntervals);
      group.barrier("profiled call");
      forward(&profile);
      const Overlap overlap = measure_overlap(profile.intervals());
      travel.travel += overlap.travel;
      travel.hidden += overlap.hidden;
      for (size_t s = 0; s < app::kStages.size(); ++s) {
        stages_us[s].push_back(app::stage_us(profile, app::kStages[s]));
      }
    }
  };

  // The seconds that the host takes for a call of the layer, of the slowest rank.  Each call finds
  // the GPU idle, so none waits for room in the stream.
  double host_seconds() {
    constexpr int kCalls = 51;
    std::vector<std::vector<double>> seconds(ranks_.all().size());
    for (int i = 0; i < kCalls; ++i) {
      ranks_.run([&](Rank& rank, Group& group) {
        rank.stream.synchronize();
        group.barrier("host time of a call");
        seconds[static_cast<size_t>(group.rank())].push_back(
            seconds_of([&] { rank.forward(nullptr); }));
      });
    }
    double slowest = 0;
    for (const std::vector<double>& of_rank : seconds) {
      slowest = std::max(slowest, app::median(of_rank));
    }
    return slowest;
  }

  const ModularKernel& kernel() const { return ranks_.first().layer->kernel(); }

  std::unique_ptr<Rank> set_up(Group& group, const app::BenchOptions& options) {
    auto made = std::make_unique<Rank>();
    Rank& rank = *made;
    rank.stream = Stream::cuda(group.device().index);
    rank.l2 = L2Flush(rank.stream.device(), l2_lines_of(options.l2_lines));
    MoeLayerWeights weights = share_of(
        whole_.weights, ParallelConfig::make(1, 0, group.size(), group.rank(),
                                             /*enable_expert_parallel=*/true, problem_.backend));
    weights.config.max_num_tokens = problem_.num_tokens;
    weights.router_config.logit_sums = app::logit_sums_of(options.router_sums);
    MoeLayerOptions layer_options;
    layer_options.experts = options.impl;
    layer_options.kernel = problem_.kernel;
    layer_options.comm_sms = problem_.comm_sms;
    layer_options.low_latency_sum = app::low_latency_sum_of(problem_.sum);
    if (problem_.backend == All2AllBackend::kHighThroughput && !problem_.counts_rows()) {
      layer_options.capacity = 0;
    }
    rank.layer = std::make_unique<MoeLayer>(std::move(weights), layer_options, rank.stream,
                                            group.size() == 1 ? nullptr : &group);
    const MoeConfig& config = rank.layer->config();
    const Tensor hidden = app::random_normal({problem_.num_tokens, config.hidden}, config.in_dtype,
                                             static_cast<uint64_t>(2 + group.rank()));
    put_probes(whole_.probes, hidden);
    rank.hidden = to_device(hidden, rank.stream.device(), rank.stream);
    rank.output = Tensor::empty(hidden.shape(), hidden.dtype(), rank.stream.device());
    rank.forward(nullptr);
    rank.forward(nullptr);  // makes the second set of buffers of low latency, see Graph
    rank.first_output = to_device(rank.output, Device::cpu(), rank.stream);
    rank.clock = std::make_unique<GpuClock>(group, rank.stream);
    // A model has other layers, so a call finds none of this one's weights in the L2 cache.
    rank.clock->set({.prepare = [&rank] { rank.l2.flush(rank.stream); },
                     .body = [&rank] { rank.forward(nullptr); },
                     .finish = {}},
                    problem_.replays() ? GpuLaunch::kGraph : GpuLaunch::kStream);
    return made;
  }

  const WholeLayer& whole_;
  const LayerProblem problem_;
  const std::chrono::duration<double, std::milli> pause_;
  PerRank<Rank> ranks_;
};

}  // namespace

int run_gpu_layer_bench(const app::BenchOptions& options) {
  cuda::prepare_for_shared_gpus();
  expect_usable(Device::cuda(0));
  const int num_ranks = options.ranks > 0 ? options.ranks : cuda_device_count();
  expect(num_ranks > 1 || options.sms == std::vector<int>{0},
         "--sms: one rank has no transport to give SMs to");
  expect(num_ranks > 1 || options.all2all.empty(), "--all2all: one rank has no transport");
  const ThreadGroupOptions group = app::gpu_ranks(num_ranks, options.group);
  const std::vector<LayerProblem> problems = problems_of(options, num_ranks);
  const auto some = [&](const auto& is_such) {
    return std::any_of(problems.begin(), problems.end(), is_such);
  };
  expect(options.sums.empty() || some([](const LayerProblem& problem) {
           return problem.backend == All2AllBackend::kLowLatency;
         }),
         "--sum: no case goes by low_latency");
  expect(options.combine_parts == std::vector{0} ||
             some([](const LayerProblem& problem) { return problem.returns_in_parts(); }),
         "--combine-parts: no case goes by high_throughput");
  expect(options.early_rows.empty() ||
             some([](const LayerProblem& problem) { return problem.counts_rows(); }),
         [&] {
           return fmt::format(
               "--early-rows: no case goes by high_throughput with more than {} tokens",
               kMostDecodeTokens);
         });
  const WholeLayer whole = make_whole(options, Stream::cpu(options.threads));
  Harness harness(options, kLayerColumns);
  const int used = std::min(num_ranks, cuda_device_count());
  const std::string gpu = cuda_device_info(0).name;
  const std::string quantization = app::describe(whole.weights.experts.quant);
  harness.fact("device", "cuda");
  harness.fact("gpu", gpu);
  harness.fact("gpus", used);
  harness.fact("group", options.group);
  harness.fact("ranks", num_ranks);
  harness.fact("quantization", quantization);
  harness.fact("experts", whole.weights.config.num_experts);
  harness.fact("topk", whole.weights.config.experts_per_token);
  harness.fact("layer_bytes", whole.cost.total_bytes);
  fmt::print("{} ranks ({}) on {} x {}; {} of {}\n", num_ranks, options.group, used, gpu,
             quantization, app::format_value(whole.cost.total_bytes, Unit::kBytes));
  RankTeam team(group);
  for (const LayerProblem& problem : problems) {
    LayerRun run(team, options, whole, problem);
    harness.fact("tokens", problem.num_tokens);
    harness.fact("asked_microbatches", problem.kernel.microbatches);
    harness.fact("microbatches", run.microbatches());
    harness.fact("asked_combine_parts", problem.kernel.combine_parts);
    harness.fact("combine_parts", run.combine_parts());
    harness.fact("early_rows",
                 problem.kernel.early_rows ? Value(*problem.kernel.early_rows) : Value());
    harness.fact("in_waves", run.in_waves());
    harness.fact("comm_sms", problem.comm_sms);
    harness.fact("pause_ms", options.pause_ms);
    harness.fact("l2_lines", options.l2_lines);
    harness.fact("router_sums", options.router_sums);
    const bool has_sum = problem.backend == All2AllBackend::kLowLatency;
    harness.fact("sum", has_sum ? Value(problem.sum) : Value());
    harness.fact("all2all", std::string(name(problem.backend)));
    harness.fact("launch", problem.replays() ? "graph" : "stream");
    Case c;
    c.problem = fmt::format("{}/{}/{}{}", options.preset, options.quant, problem.num_tokens,
                            problem.replays() ? "_graph" : "");
    const auto add = [&](bool is_told, const std::string& suffix) {
      c.problem += is_told ? suffix : "";
    };
    add(options.experts > 0, fmt::format("_e{}", options.experts));
    add(options.topk > 0, fmt::format("_k{}", options.topk));
    add(!options.all2all.empty(),
        problem.backend == All2AllBackend::kHighThroughput ? "_ht" : "_ll");
    add(problem.kernel.microbatches > 1,
        fmt::format("_m{}of{}", run.microbatches(), problem.kernel.microbatches));
    add(problem.kernel.combine_parts > 0,
        fmt::format("_c{}of{}", run.combine_parts(), problem.kernel.combine_parts));
    add(problem.kernel.early_rows.has_value(),
        fmt::format("_early{}", problem.kernel.early_rows.value_or(0)));
    add(problem.comm_sms > 0, fmt::format("_sms{}", problem.comm_sms));
    add(problem.sum != app::BenchOptions::kSums.front(), "_sum_" + problem.sum);
    add(options.router_sums != "stated", "_router_" + options.router_sums);
    c.impl = run.experts();
    c.num_calls = options.iterations;
    c.call = [&] { run.call(); };
    c.timed_call = [&] { return run.call(); };
    c.difference = [&] { return run.difference(); };
    c.metrics = [&](double seconds) { return run.metrics(seconds); };
    harness.run(c);
  }
  return harness.finish();
}

}  // namespace moebius::bench
