// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "app/bench/benches.h"
#include "app/bench/harness.h"
#include "app/bench/layer_cycle.h"
#include "app/bench/machine_peak.h"
#include "app/bench/probes.h"
#include "app/machine.h"
#include "app/run/layer_cost.h"
#include "app/run/rank_run.h"
#include "checkpoint/random_fill.h"
#include "core/loop_times.h"
#include "moebius/profile.h"
#include "moebius/workspace.h"
#include "problems/statistics.h"

namespace moebius::bench {

namespace {

using app::Unit;
using app::Value;
using checkpoint::ValueTable;

const std::vector<app::Column> kColumns = {
    {"tokens_per_s", "rate", Unit::kTokensPerSecond},
    {"gflops", "products", Unit::kGflops},
    {"peak_gflops", "peak", Unit::kGflops},
    {"of_peak", "of peak", Unit::kPercent},
    {"touched_bytes", "weights", Unit::kBytes},
    {"read_gb_per_s", "read", Unit::kGigabytesPerSecond},
    {"of_read_bandwidth", "of read", Unit::kPercent},
    {"roofline_us", "roofline", Unit::kMicros},
    {"times_roofline", "x roof", Unit::kDecimals},
    {"router_share", "router", Unit::kPercent},
    {"prepare_share", "prepare", Unit::kPercent},
    {"experts_share", "experts", Unit::kPercent},
    {"finalize_share", "finalize", Unit::kPercent},
    {"shared_share", "shared", Unit::kPercent},
    {"serial_share", "serial", Unit::kPercent},
    {"start_share", "start", Unit::kPercent},
    {"stalled_share", "stalled", Unit::kPercent},
    {"end_share", "end", Unit::kPercent},
};

constexpr std::string_view kWholeCall = "call";

// The case of one number of tokens.  Every call gets other hidden states, and so another routing.
class LayerCase {
 public:
  LayerCase(LayerCycle& cycle, PeakBursts& bursts, int64_t num_tokens, const Stream& stream)
      : cycle_(cycle),
        bursts_(bursts),
        num_tokens_(num_tokens),
        layer_(&cycle.first()),
        table_(ValueTable::normal(layer_->config().in_dtype, [](float x) { return x; })),
        hidden_(Tensor::empty({num_tokens, layer_->config().hidden}, layer_->config().in_dtype)),
        output_(Tensor::empty(hidden_.shape(), hidden_.dtype())) {
    context_.stream = stream;
    context_.workspaces = &workspaces_;
    context_.profile = &profile_;
  }

  // Makes one call and returns its seconds.  The first call goes through layer 0 and has the probes
  // among its tokens.
  double call() {
    prepare();
    const LoopClock clock;
    const double seconds = seconds_of([&] {
      const Profile::Span span(&profile_, kWholeCall);
      layer_->forward(hidden_, output_, context_);
    });
    record(clock.times());
    return seconds;
  }

  double reference_seconds() const {
    return cycle_.reference_seconds() * static_cast<double>(num_tokens_) /
           static_cast<double>(LayerCycle::kNumProbes);
  }

  std::optional<std::string> difference() const {
    return probe_difference(output_, cycle_.expected(), cycle_.tolerance());
  }

  std::vector<Value> metrics(double seconds) const {
    const double us = seconds * 1e6;
    const double flops = app::median(flops_);
    const double bytes = app::median(bytes_);
    const double peak_gflops = app::median(peaks_);
    const double read_gb_per_s = app::median(reads_);
    const double peak_us = flops / peak_gflops * 1e-3;
    const double read_us = bytes / read_gb_per_s * 1e-3;
    const double bound_us = std::max(peak_us, read_us);
    std::vector<Value> values = {static_cast<double>(num_tokens_) / seconds,
                                 flops / seconds * 1e-9,
                                 peak_gflops,
                                 peak_us / us,
                                 bytes,
                                 read_gb_per_s,
                                 read_us / us,
                                 bound_us,
                                 us / bound_us};
    for (const std::vector<double>& shares : shares_) {
      values.push_back(app::median(shares));
    }
    for (const std::vector<double>& shares : loop_shares_) {
      values.push_back(app::median(shares));
    }
    return values;
  }

 private:
  void prepare() {
    const PeakBursts::Rates rates = bursts_.next();
    peaks_.push_back(rates.gflops);
    reads_.push_back(rates.read_gb_per_s);
    table_.fill({hidden_.bytes(), static_cast<size_t>(hidden_.nbytes())}, 0, num_calls_,
                context_.stream);
    if (num_calls_ == 0 && cycle_.probes()) {
      put_probes(cycle_.probes(), hidden_);
    }
    layer_ = num_calls_++ == 0 ? &cycle_.first() : &cycle_.next();
    profile_.clear();
  }

  void record(const LoopTimes& loops) {
    const app::Work work = app::call_work(cycle_.cost(), layer_->expert_load(), num_tokens_).all();
    flops_.push_back(static_cast<double>(work.flops));
    bytes_.push_back(static_cast<double>(work.bytes));
    for (size_t s = 0; s < app::kStages.size(); ++s) {
      shares_[s].push_back(app::stage_us(profile_, app::kStages[s]) /
                           app::stage_us(profile_, kWholeCall));
    }
    const double call_us = app::stage_us(profile_, kWholeCall);
    const auto share = [&](LoopTimes::Time time) {
      return static_cast<double>(time.count()) * 1e-3 / call_us;
    };
    loop_shares_[0].push_back(context_.stream.num_threads() > 1 ? 1.0 - share(loops.total()) : 0.0);
    loop_shares_[1].push_back(share(loops.start));
    loop_shares_[2].push_back(share(loops.stalled));
    loop_shares_[3].push_back(share(loops.end));
  }

  LayerCycle& cycle_;
  PeakBursts& bursts_;
  int64_t num_tokens_;
  MoeLayer* layer_;
  ValueTable table_;
  Tensor hidden_;
  Tensor output_;
  uint64_t num_calls_ = 0;
  WorkspacePool workspaces_;
  Profile profile_;
  CallContext context_;
  std::vector<double> peaks_;  // GFLOP/s, measured before each call
  std::vector<double> reads_;  // GB/s, likewise
  std::vector<double> flops_;
  std::vector<double> bytes_;
  std::array<std::vector<double>, app::kStages.size()> shares_;
  // These are the shares of a call that are spent outside of parallel loops, and within them until
  // threads begin, where tasks wait for each other, and until all threads have ended.
  std::array<std::vector<double>, 4> loop_shares_;
};

Operand operand_of(const std::string& quant) {
  return quant.starts_with("int8_w8a8") ? Operand::kInt8 : Operand::kBF16;
}

void report_set_up(Harness& harness, const PeakBursts& bursts, const LayerCycle& cycle) {
  const int64_t cache = app::last_level_cache_bytes();
  const int64_t cycled = cycle.num_layers() * cycle.cost().total_bytes;
  harness.fact("quantization", cycle.quantization());
  harness.fact("peak", std::string(bursts.name()));
  harness.fact("layers", cycle.num_layers());
  harness.fact("layer_bytes", cycle.cost().total_bytes);
  harness.fact("resident_bytes", app::resident_memory_bytes());
  harness.fact("last_level_cache_bytes", cache);
  fmt::print("peak     {}, measured before each call, as is reading\n", bursts.name());
  fmt::print(
      "weights  {}: {} layers of {}, {} in all ({} resident); last-level cache "
      "{}\n",
      cycle.quantization(), cycle.num_layers(),
      app::format_value(cycle.cost().total_bytes, Unit::kBytes),
      app::format_value(cycled, Unit::kBytes),
      app::format_value(app::resident_memory_bytes(), Unit::kBytes),
      app::format_value(cache, Unit::kBytes));
}

}  // namespace

int run_layer_bench(const app::BenchOptions& options) {
  const Stream stream = Stream::cpu(options.threads);
  LayerCycle cycle({options.preset, options.quant, options.impl, options.check}, stream);
  PeakBursts bursts(operand_of(options.quant), stream);
  Harness harness(options, kColumns);
  report_set_up(harness, bursts, cycle);
  const auto& tokens = options.tokens.empty() ? app::BenchOptions::kLayerTokens : options.tokens;
  for (const int64_t num_tokens : tokens) {
    LayerCase layer_case(cycle, bursts, num_tokens, stream);
    Case c;
    c.problem = fmt::format("{}/{}/{}", options.preset, options.quant, num_tokens);
    c.impl = cycle.first().kernel().experts().name();
    c.call = [&] { layer_case.call(); };
    c.timed_call = [&] { return layer_case.call(); };
    c.reference = [&] { return layer_case.reference_seconds(); };
    c.difference = [&] { return layer_case.difference(); };
    c.metrics = [&](double seconds) { return layer_case.metrics(seconds); };
    harness.run(c);
  }
  return harness.finish();
}

}  // namespace moebius::bench
