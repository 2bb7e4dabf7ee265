// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/run/time_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "layer/overlap.h"
#include "layer/rows/row_ops.h"
#include "moebius/error.h"
#include "moebius/graph.h"
#include "moebius/profile.h"
#include "moebius/tolerance.h"
#include "moebius/workspace.h"
#include "problems/statistics.h"

namespace moebius::app {

namespace {

using Clock = std::chrono::steady_clock;

// Records the call as a graph, whose first launch must give the same output as the call before.
Graph record_call(const MoeLayer& layer,
                  const std::function<void()>& call,
                  const Tensor& output,
                  const Stream& stream,
                  Group* group) {
  if (const Support support = layer.can_be_captured(); !support.ok) {
    throw Unsupported(fmt::format("--graph: {}", support.reason));
  }
  const Tensor expected = to_device(output, Device::cpu(), stream);
  Graph graph(stream, call);
  fill(output, std::numeric_limits<float>::quiet_NaN(), stream);
  if (group != nullptr) {
    group->barrier("graphs are made");
  }
  graph.launch();
  const Tensor actual = to_device(output, Device::cpu(), stream);
  if (std::memcmp(actual.raw(), expected.raw(), static_cast<size_t>(actual.nbytes())) != 0) {
    throw Error(
        fmt::format("--graph: a replay differs from the call it recorded, relative error {}",
                    relative_error(actual, expected)));
  }
  return graph;
}

// Puts the group's waits and bytes into a profile while this object lives.
class Listening {
 public:
  Listening(Group* group, Profile& profile) : group_(group) {
    if (group_ != nullptr) {
      group_->set_profile(&profile);
    }
  }
  ~Listening() {
    if (group_ != nullptr) {
      group_->set_profile(nullptr);
    }
  }
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;

 private:
  Group* group_;
};

}  // namespace

TimedCalls time_calls(const RunOptions& options,
                      MoeLayer& layer,
                      const Tensor& hidden,
                      const Tensor& output,
                      const Stream& stream,
                      Group* group) {
  TimedCalls result;
  RankFigures& figures = result.figures;
  WorkspacePool workspaces;
  Profile profile(Profile::Keep::kIntervals);
  const Listening listening(group, profile);
  CallContext context;
  context.stream = stream;
  context.workspaces = &workspaces;
  const bool on_gpu = stream.device().is_cuda();
  const auto call = [&] { layer.forward(hidden, output, context); };
  const auto profiled_call = [&] {
    profile.clear();
    context.profile = &profile;
    {
      const Profile::Span span(&profile, kCall);
      call();
      stream.synchronize();
    }
    context.profile = nullptr;
    layer.check();  // or a failure of the last such call would go unnoticed
  };
  call();
  std::optional<Graph> graph;
  if (options.graph) {
    call();  // makes the second set of buffers of low latency, see Graph
    graph = record_call(layer, call, output, stream, group);
  }

  stream.synchronize();  // a GPU only counts calls that have finished
  const auto before_calls = layer.kernel().prepare_finalize().statistics();
  std::vector<double> calls;
  std::vector<double> waits;
  std::vector<double> travels;
  std::vector<double> hidden_times;
  std::array<std::vector<double>, kStages.size()> stages;
  for (int i = 0; i < options.repeat; ++i) {
    Traffic before;
    Clock::duration waited_before{};
    if (group != nullptr) {
      group->barrier("start of a timed call");
      before = group->traffic();
      waited_before = group->waited();
    }
    stream.synchronize();
    const auto start = Clock::now();
    if (on_gpu) {
      graph ? graph->launch() : call();
      stream.synchronize();
    } else {
      profiled_call();
    }
    calls.push_back(microseconds(Clock::now() - start));
    layer.check();
    if (group != nullptr) {
      const Traffic after = group->traffic();
      waits.push_back(microseconds(group->waited() - waited_before));
      figures.intra_node_bytes = after.intra_node_bytes - before.intra_node_bytes;
      figures.inter_node_bytes = after.inter_node_bytes - before.inter_node_bytes;
      result.sent_bytes.clear();
      for (size_t r = 0; r < after.to_rank.size(); ++r) {
        result.sent_bytes.push_back(after.to_rank[r] - before.to_rank[r]);
      }
    }
    if (on_gpu) {
      if (group != nullptr) {
        group->barrier("start of a profiled call");
      }
      profiled_call();
    }
    for (size_t s = 0; s < kStages.size(); ++s) {
      stages[s].push_back(stage_us(profile, kStages[s]));
    }
    const std::vector<Profile::Interval> intervals = profile.intervals();
    const Overlap overlap = measure_overlap(intervals);
    travels.push_back(microseconds(overlap.travel));
    hidden_times.push_back(microseconds(overlap.hidden));
    if (!options.trace.empty()) {
      for (const Profile::Interval& interval : intervals) {
        result.trace.push_back(make_trace_event(interval, i));
      }
    }
  }
  figures.call_us = median(calls);
  figures.waited_us = waits.empty() ? 0 : median(waits);
  figures.travel_us = median(travels);
  figures.hidden_us = median(hidden_times);
  for (size_t s = 0; s < kStages.size(); ++s) {
    figures.stage_us[s] = median(stages[s]);
  }
  figures.workspace_bytes = workspaces.bytes();
  if (const auto after = layer.kernel().prepare_finalize().statistics()) {  // all calls are alike
    const int num_calls = options.repeat * (on_gpu ? 2 : 1);
    figures.selections = (after->selections - before_calls->selections) / num_calls;
    figures.copies = (after->copies - before_calls->copies) / num_calls;
    figures.node_copies = (after->node_copies - before_calls->node_copies) / num_calls;
  }
  const Tensor rows = layer.local_expert_load();
  figures.num_experts = rows.numel();
  for (int64_t l = 0; l < rows.numel(); ++l) {
    figures.rows += rows.data<int64_t>()[l];
    figures.max_expert_rows = std::max(figures.max_expert_rows, rows.data<int64_t>()[l]);
  }
  return result;
}

}  // namespace moebius::app
