// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/report/roofline.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/bench/machine_peak.h"
#include "app/run/layer_cost.h"
#include "app/run/run_report.h"
#include "comm/group/failure.h"
#include "comm/group/shared_device.h"
#include "moebius/error.h"

namespace moebius::app {

namespace {

struct Bound {
  double compute_us;
  double read_us;
  double roofline_us;
  double times_roofline;  // the time that it took, divided by roofline_us
};

Bound bound_of(const Work& work, double us, const MachinePeak& machine) {
  Bound bound{};
  bound.compute_us = static_cast<double>(work.flops) / machine.gflops * 1e-3;
  bound.read_us = static_cast<double>(work.bytes) / machine.read_gb_per_s * 1e-3;
  bound.roofline_us = std::max(bound.compute_us, bound.read_us);
  bound.times_roofline = bound.roofline_us > 0 ? us / bound.roofline_us : 0;
  return bound;
}

bench::Operand operand_of(const LayerCost& cost) {
  return cost.multiplies_int8  ? bench::Operand::kInt8
         : cost.multiplies_fp8 ? bench::Operand::kFp8
                               : bench::Operand::kBF16;
}

// The peaks of one rank, as it sends them to the others.
struct RankPeak {
  comm::FixedText<256> missing;
  comm::FixedText<32> name;
  double gflops = 0;
  double read_gb_per_s = 0;
};

RankPeak measure_rank(const LayerCost& cost, const Stream& stream, const Group* group) {
  RankPeak peak;
  const bool is_alone = group == nullptr || group->size() == 1;
  const auto take = is_alone ? bench::Take::kBest : bench::Take::kMedian;
  const int num_ranks = is_alone ? 1
                        : group->shares_address_space()
                            ? group->size()
                            : group->topology().node_size(group->topology().node());
  try {
    const bench::ComputePeak compute = bench::compute_peak(operand_of(cost), stream, take);
    peak.name = std::string_view(compute.name);
    peak.gflops = compute.gflops;
    peak.read_gb_per_s = bench::read_gb_per_s(stream, take, num_ranks);
  } catch (const std::exception& error) {  // such as out of memory, after a run that has succeeded
    peak.missing = std::string_view(error.what());
  }
  return peak;
}

}  // namespace

MachinePeak measure_machine(const LayerCost& cost, const Stream& stream, Group* group) {
  if (group == nullptr) {
    const RankPeak own = measure_rank(cost, stream, nullptr);
    return {std::string(own.missing.view()), std::string(own.name.view()), own.gflops,
            own.read_gb_per_s};
  }
  const bool measures = comm::ranks_on_this_gpu(*group).front() == group->rank();
  group->barrier("begin of the machine's peaks");
  const RankPeak own = measures ? measure_rank(cost, stream, group) : RankPeak();
  std::vector<RankPeak> peaks(static_cast<size_t>(group->size()));
  all_gather_bytes(*group, "peaks of the machine", &own, sizeof(own), peaks.data());
  MachinePeak all{"", std::string(peaks.front().name.view()), 0, 0};
  for (const RankPeak& peak : peaks) {
    if (all.missing.empty()) {
      all.missing = peak.missing.view();
    }
    all.gflops += peak.gflops;
    all.read_gb_per_s += peak.read_gb_per_s;
  }
  return all;
}

void add_roofline(Report& report, const MachinePeak& machine, const RunResult& result) {
  if (!machine.missing.empty()) {
    report.line("roofline", "roofline", "not measured: {missing}", {{"missing", machine.missing}});
    return;
  }
  const CallWork work =
      call_work(result.run.cost, result.run.expert_load, result.input.hidden.dim(0));
  const Work all = work.all();
  const Bound call = bound_of(all, result.call_us, machine);
  report.line("roofline", "roofline", "{roofline_us}, the call takes {times_roofline} times that",
              {{"roofline_us", call.roofline_us, Unit::kMicros},
               {"times_roofline", call.times_roofline, Unit::kDecimals}});
  report.line("roofline", "", "computing {compute_us} at {peak_gflops} ({peak})",
              {{"compute_us", call.compute_us, Unit::kMicros},
               {"peak_gflops", machine.gflops, Unit::kGflops},
               {"peak", machine.name},
               {"flops", all.flops}});
  report.line("roofline", "", "reading {read_us} at {read_gb_per_s}",
              {{"read_us", call.read_us, Unit::kMicros},
               {"read_gb_per_s", machine.read_gb_per_s, Unit::kGigabytesPerSecond},
               {"bytes", all.bytes}});
  std::vector<std::vector<Json>> rows;
  for (const auto& [stage, us] : result.stages_us) {
    const Work* part = stage == "router"    ? &work.router
                       : stage == "experts" ? &work.experts
                       : stage == "shared"  ? &work.shared
                                            : nullptr;
    if (part != nullptr && part->flops > 0) {
      const Bound b = bound_of(*part, us, machine);
      rows.push_back({stage, us, part->flops, part->bytes, b.compute_us, b.read_us, b.roofline_us,
                      b.times_roofline});
    }
  }
  report.table("roofline", "stages",
               {{"stage", "stage"},
                {"us", "time", Unit::kMicros},
                {"flops", "operations"},
                {"bytes", "weights", Unit::kBytes},
                {"compute_us", "computing", Unit::kMicros},
                {"read_us", "reading", Unit::kMicros},
                {"roofline_us", "roofline", Unit::kMicros},
                {"times_roofline", "x roofline", Unit::kDecimals}},
               rows);
}

}  // namespace moebius::app
