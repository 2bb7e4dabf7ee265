// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "bench/harness.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "app/build_info.h"
#include "app/commands.h"
#include "app/machine.h"
#include "app/output_file.h"
#include "app/statistics.h"
#include "core/parallel.h"
#include "moebius/error.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius::bench {

namespace {

using app::Json;
using Clock = std::chrono::steady_clock;

constexpr int kProblemWidth = 28;
constexpr int kImplWidth = 20;
constexpr int kNumberWidth = 14;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string time_text(double us) {
  return app::format_value(us, app::Unit::kMicros);
}

}  // namespace

Timing measure(const std::function<void()>& call, double min_time) {
  call();
  call();
  std::vector<double> samples;
  const auto start = Clock::now();
  while (samples.size() < 5 || seconds_since(start) < min_time) {
    const auto call_start = Clock::now();
    call();
    samples.push_back(seconds_since(call_start) * 1e6);
  }
  return {static_cast<int64_t>(samples.size()), app::median(samples), app::quantile(samples, 0.1),
          app::quantile(samples, 0.9)};
}

double memcpy_gb_per_s(int num_threads) {
  constexpr int64_t kBytes = int64_t{256} << 20;  // far above any cache
  constexpr int64_t kBlock = int64_t{4} << 20;
  const Tensor from = Tensor::zeros({kBytes}, DType::kU8);
  const Tensor to = Tensor::zeros({kBytes}, DType::kU8);
  const Stream stream = Stream::cpu(num_threads);
  const Timing timing = measure(
      [&] {
        parallel_for(stream, kBytes, kBlock, [&](int64_t begin, int64_t end) {
          std::memcpy(to.bytes() + begin, from.bytes() + begin, static_cast<size_t>(end - begin));
        });
      },
      0.2);
  return 2.0 * kBytes / timing.median_us * 1e-3;
}

Harness::Harness(const app::BenchOptions& options, std::vector<app::Column> metric_columns)
    : options_(options),
      columns_(std::move(metric_columns)),
      cpu_(app::cpu_model()),
      threads_(Stream::cpu(options.threads).num_threads()) {
  fmt::print("{}, {}, {} threads, {}\n", options.stage, cpu_, threads_, app::version_line());
  print_header();
}

bool Harness::wants(const std::string& problem, const std::string& impl) const {
  return (options_.problem.empty() || options_.problem == problem) &&
         (options_.impl.empty() || options_.impl == impl);
}

void Harness::run(const Case& the_case) {
  ++num_cases_;
  Json line = identity(the_case.problem, the_case.impl);
  line["checked"] = options_.check && the_case.check != nullptr;
  if (line["checked"] == true) {
    if (const auto wrong = the_case.check()) {
      ++num_wrong_;
      line["wrong"] = *wrong;
      json_lines_ += line.dump() + '\n';
      print_row({the_case.problem, the_case.impl, "WRONG: " + *wrong});
      return;
    }
  }
  const Timing timing = measure(the_case.call, options_.min_time);
  const auto metrics = the_case.metrics(timing.median_us * 1e-6);
  std::vector<std::string> cells = {the_case.problem,
                                    the_case.impl,
                                    time_text(timing.median_us),
                                    time_text(timing.p10_us),
                                    time_text(timing.p90_us),
                                    std::to_string(timing.n)};
  line["median_us"] = timing.median_us;
  line["p10_us"] = timing.p10_us;
  line["p90_us"] = timing.p90_us;
  line["n"] = timing.n;
  for (size_t i = 0; i < columns_.size(); ++i) {
    line[std::string(columns_[i].key)] = metrics[i];
    cells.push_back(app::format_value(metrics[i], columns_[i].unit));
  }
  json_lines_ += line.dump() + '\n';
  print_row(cells);
}

void Harness::skip(const std::string& problem, const std::string& impl, const std::string& reason) {
  ++num_cases_;
  Json line = identity(problem, impl);
  line["refused"] = reason;
  json_lines_ += line.dump() + '\n';
  print_row({problem, impl, "refused: " + reason});
}

int Harness::finish() const {
  if (num_cases_ == 0) {
    throw InvalidArgument(fmt::format("bench {}: nothing is named --problem {} --impl {}",
                                      options_.stage,
                                      options_.problem.empty() ? "(any)" : options_.problem,
                                      options_.impl.empty() ? "(any)" : options_.impl));
  }
  app::write_text(options_.json, json_lines_);
  return num_wrong_ > 0 ? app::kCheckFailed : app::kOk;
}

void Harness::print_header() const {
  std::vector<std::string> cells = {"problem", "impl", "median", "p10", "p90", "n"};
  for (const app::Column& column : columns_) {
    cells.emplace_back(column.header);
  }
  print_row(cells);
}

void Harness::print_row(const std::vector<std::string>& cells) const {
  std::string line = fmt::format("{:<{}} {:<{}}", cells[0], kProblemWidth, cells[1], kImplWidth);
  for (size_t i = 2; i < cells.size(); ++i) {
    line += cells.size() == 3 ? " " + cells[i] : fmt::format(" {:>{}}", cells[i], kNumberWidth);
  }
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

Json Harness::identity(const std::string& problem, const std::string& impl) const {
  Json line = Json::object();
  line["stage"] = options_.stage;
  line["problem"] = problem;
  line["impl"] = impl;
  line["commit"] = std::string(app::commit());
  line["cpu"] = cpu_;
  line["threads"] = threads_;
  return line;
}

}  // namespace moebius::bench
