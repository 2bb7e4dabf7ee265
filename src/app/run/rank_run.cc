// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/run/rank_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <tuple>

#include "app/machine.h"
#include "app/run/subject.h"
#include "app/run/time_calls.h"
#include "moebius/moe_layer.h"
#include "problems/statistics.h"
#include "quant/impls.h"

namespace moebius::app {

namespace {

using Clock = std::chrono::steady_clock;

MoeLayerOptions layer_options(const RunOptions& options,
                              All2AllBackend backend,
                              const Group* group) {
  MoeLayerOptions chosen;
  chosen.format =
      options.format == "batched" ? ActivationFormat::kBatched : ActivationFormat::kStandard;
  chosen.experts = options.experts;
  chosen.kernel = options.kernel;
  chosen.monolithic = options.monolithic;
  chosen.comm_sms = options.comm_sms;
  chosen.low_latency_sum = low_latency_sum_of(options.sum);
  const int num_nodes = group == nullptr ? 1 : group->topology().num_nodes();
  chosen.capacity = capacity_of(options, backend, num_nodes);
  return chosen;
}

LoadOptions load_options(const RunOptions& options, const ParallelConfig& parallel) {
  return {.quant = options.quant,
          .ep_size = parallel.ep_size,
          .ep_rank = parallel.ep_rank,
          .tp_size = parallel.tp_size,
          .tp_rank = parallel.tp_rank};
}

// Router and experts name in their messages what does not fit.  This adds model and layer.
std::unique_ptr<MoeLayer> make_layer(const RunOptions& options,
                                     int64_t layer,
                                     MoeLayerWeights weights,
                                     const Stream& stream,
                                     Group* group,
                                     std::shared_ptr<Transports> transports) {
  weights.router_config.logit_sums = logit_sums_of(options.router_sums);
  try {
    auto chosen = layer_options(options, weights.config.parallel.backend, group);
    chosen.transports = std::move(transports);
    return std::make_unique<MoeLayer>(std::move(weights), chosen, stream, group);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: layer {}: {}", options.model, layer, error.what()));
  }
}

// Returns the rows of all local experts, by rank.  own: i64 [L].
std::vector<std::vector<int64_t>> gather_expert_rows(const LayerRun& run,
                                                     const Tensor& own,
                                                     Group* group) {
  std::vector<int64_t> counts;
  for (const RankFigures& rank : run.ranks) {
    counts.push_back(rank.num_experts);
  }
  Tensor all = own;
  if (group != nullptr) {
    all = Tensor::empty({std::accumulate(counts.begin(), counts.end(), int64_t{0})}, DType::kI64);
    all_gatherv(*group, "rows of the experts", own, counts, all, Stream());
  }
  std::vector<std::vector<int64_t>> rows;
  const int64_t* next = all.data<int64_t>();
  for (const int64_t count : counts) {
    rows.emplace_back(next, next + count);
    next += count;
  }
  return rows;
}

// Returns [from rank][to rank].  own: the bytes that this rank sent, by receiver.
std::vector<std::vector<int64_t>> gather_link_bytes(const std::vector<int64_t>& own, Group& group) {
  const size_t size = own.size();
  std::vector<int64_t> all(size * size);
  all_gather_bytes(group, "bytes of the links", own.data(),
                   static_cast<int64_t>(size * sizeof(int64_t)), all.data());
  std::vector<std::vector<int64_t>> rows;
  for (auto from = all.begin(); from != all.end(); from += static_cast<ptrdiff_t>(size)) {
    rows.emplace_back(from, from + static_cast<ptrdiff_t>(size));
  }
  return rows;
}

}  // namespace

double stage_us(const Profile& profile, std::string_view stage) {
  double us = 0;
  for (const Profile::Stage& each : profile.stages()) {
    us += each.name == stage ? microseconds(each.total) : 0.0;
  }
  return us;
}

LowLatencySum low_latency_sum_of(std::string_view option) {
  return option == "ranks" ? LowLatencySum::kRanks : LowLatencySum::kSelections;
}

LogitSums logit_sums_of(std::string_view option) {
  return option == "tensor" ? LogitSums::kTensorCores : LogitSums::kStated;
}

std::optional<int64_t> capacity_of(const RunOptions& options,
                                   All2AllBackend backend,
                                   int num_nodes) {
  if (options.capacity || !options.graph || backend != All2AllBackend::kHighThroughput ||
      num_nodes > 1) {  // across nodes the layer refuses and says why
    return options.capacity;
  }
  return 0;
}

Stream make_stream(const RunOptions& options, const RankPlan& plan, const Group* group) {
  if (options.device == "cuda") {
    return Stream::cuda(group == nullptr ? 0 : group->device().index);
  }
  const bool shares_process = group != nullptr && group->shares_address_space();
  const int all_threads =
      options.threads > 0 || !shares_process ? options.threads : Stream::cpu().num_threads();
  return Stream::cpu(shares_process ? std::max(1, all_threads / plan.ranks) : all_threads);
}

LayerRun run_layer(const RunOptions& options,
                   const Checkpoint& checkpoint,
                   int64_t layer_idx,
                   const Tensor& hidden,
                   const RankPlan& plan,
                   Group* group) {
  const int rank = group == nullptr ? 0 : group->rank();
  const ParallelConfig parallel = plan.parallel(rank);
  if (parallel.ep_size > checkpoint.info().num_experts) {
    throw InvalidArgument(fmt::format(
        "{} ranks, but {} has {} experts: some would hold none (--no-ep shards every expert)",
        parallel.ep_size, options.model, checkpoint.info().num_experts));
  }
  LayerRun run;
  const int64_t disk_before = disk_bytes();
  const auto load_start = Clock::now();
  MoeLayerWeights weights = checkpoint.load_layer(layer_idx, load_options(options, parallel));
  weights.config.parallel = parallel;
  run.cost = layer_cost(weights);
  run.quantization = describe(weights.experts.quant);
  run.weight_format = describe_weights(weights.experts);
  const Stream stream = make_stream(options, plan, group);
  run.threads = stream.num_threads();
  run.device = stream.device().is_cpu() ? "cpu" : cuda_device_info(stream.device().index).name;
  const auto transports = group == nullptr ? nullptr : std::make_shared<Transports>(*group);
  const auto made = make_layer(options, layer_idx, std::move(weights), stream, group, transports);
  MoeLayer& layer = *made;
  run.load_us = microseconds(Clock::now() - load_start);
  run.implementations = {
      {"router", std::string(layer.router()->implementation())},
      {"prepare", std::string(layer.kernel().prepare_finalize().name())},
      {"experts", std::string(layer.kernel().experts().name())},
      {"quant", std::string(quant::select_quant_impl(stream.device()).name)},
  };
  run.format = name(layer.kernel().experts().desc().format);
  if (layer.router()->config().logit_sums == LogitSums::kTensorCores) {
    run.implementations.emplace_back("router_sums", "tensor_cores");
  }

  // Data-parallel ranks take the rows in order; where these do not divide, the first ranks take one
  // more.
  std::vector<int64_t> counts;
  for (int r = 0; r < plan.ranks; ++r) {
    const int64_t share = expert_range(hidden.dim(0), plan.dp, plan.dp_rank(r)).size();
    counts.push_back(plan.leads_tp_group(r) ? share : 0);
  }
  const ExpertRange own = expert_range(hidden.dim(0), plan.dp, plan.dp_rank(rank));
  const Shape shape{own.size(), hidden.dim(1)};
  const Tensor computed = Tensor::empty(shape, DType::kF32, stream.device());
  TimedCalls calls = time_calls(
      options, layer, to_device(hidden.slice(own.begin, own.end), stream.device(), stream),
      computed, stream, group);
  RankFigures figures = calls.figures;
  figures.tokens = own.size();
  figures.transport_bytes = transports == nullptr ? 0 : transports->bytes();
  const Tensor output = to_device(computed, Device::cpu(), stream);

  if (!options.trace.empty()) {
    run.trace = gather_trace(std::move(calls.trace), group);
  }
  run.microbatches = layer.last_microbatches();
  run.combine_parts = layer.kernel().last_combine_parts();
  run.in_waves = layer.kernel().last_rows_came_in_waves();
  run.expert_load = layer.expert_load();
  run.weight_bytes = run.cost.total_bytes;
  run.read_so_far = checkpoint.tensors().bytes_read();
  run.disk_bytes = disk_bytes() - disk_before;
  if (group == nullptr) {
    run.output = output;
    run.ranks = {figures};
    run.expert_rows = gather_expert_rows(run, layer.local_expert_load(), nullptr);
    return run;
  }
  figures.node = group->topology().node();
  run.ranks.resize(static_cast<size_t>(plan.ranks));
  all_gather_bytes(*group, "figures of the ranks", &figures, sizeof(figures), run.ranks.data());
  // All ranks have loaded their part now.
  run.read_so_far = checkpoint.tensors().bytes_read();
  run.disk_bytes = disk_bytes() - disk_before;
  run.link_bytes = gather_link_bytes(calls.sent_bytes, *group);
  run.expert_rows = gather_expert_rows(run, layer.local_expert_load(), group);
  // Without a backend every rank of a TP group has routed the same tokens, so only one counts them.
  if (plan.backend == All2AllBackend::kNone && !plan.leads_tp_group(rank)) {
    std::fill_n(run.expert_load.data<int64_t>(), run.expert_load.numel(), 0);
  }
  all_reduce_sum(*group, "load of the experts",
                 {run.expert_load.data<int64_t>(), static_cast<size_t>(run.expert_load.numel())});
  if (rank > 0 && group->shares_address_space()) {  // rank 0 has counted for all threads
    run.read_so_far = run.disk_bytes = 0;
  }
  std::array<int64_t, 3> bytes = {run.weight_bytes, run.read_so_far, run.disk_bytes};
  all_reduce_sum(*group, "bytes of the weights", bytes);
  std::tie(run.weight_bytes, run.read_so_far, run.disk_bytes) =
      std::tie(bytes[0], bytes[1], bytes[2]);
  run.output = Tensor::empty(hidden.shape(), DType::kF32);
  all_gatherv(*group, "rows of the output", output.slice(0, counts[static_cast<size_t>(rank)]),
              counts, run.output, stream);
  return run;
}

}  // namespace moebius::app
