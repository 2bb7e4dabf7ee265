// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/bench/harness.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/build_info.h"
#include "app/commands.h"
#include "app/machine.h"
#include "app/output_file.h"
#include "app/report/report.h"
#include "core/parallel.h"
#include "moebius/error.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"
#include "problems/statistics.h"

namespace moebius::bench {

namespace {

using app::Json;

constexpr int kProblemWidth = 42;
constexpr int kImplWidth = 14;

// The width of a column: that of its widest number or of its header.
int column_width(const app::Column& column) {
  const bool is_short = column.unit == app::Unit::kPercent || column.unit == app::Unit::kDecimals ||
                        column.unit == app::Unit::kPlain;
  const int numbers = column.unit == app::Unit::kTokensPerSecond ? 16 : is_short ? 7 : 12;
  return std::max(numbers, static_cast<int>(column.header.size()));
}

const std::vector<app::Column> kTimingColumns = {{"median_us", "median", app::Unit::kMicros},
                                                 {"p10_us", "p10", app::Unit::kMicros},
                                                 {"p90_us", "p90", app::Unit::kMicros},
                                                 {"n", "n"},
                                                 {"times_ref", "x ref", app::Unit::kDecimals}};

}  // namespace

struct Harness::Facts {
  Json json;
};

Timing measure(const std::function<double()>& timed_call, double min_time, int64_t num_calls) {
  timed_call();
  timed_call();
  std::vector<double> samples;
  double total = 0;
  const auto is_enough = [&] {
    const auto n = static_cast<int64_t>(samples.size());
    return num_calls > 0 ? n == num_calls : n >= 5 && total >= min_time;
  };
  while (!is_enough()) {
    samples.push_back(timed_call() * 1e6);
    total += samples.back() * 1e-6;
  }
  return {static_cast<int64_t>(samples.size()), app::median(samples), app::quantile(samples, 0.1),
          app::quantile(samples, 0.9)};
}

double memcpy_gb_per_s(const Stream& stream) {
  constexpr int64_t kBytes = int64_t{256} << 20;  // far more than any cache holds
  constexpr int64_t kBlock = int64_t{4} << 20;
  const Tensor from = Tensor::zeros({kBytes}, DType::kU8);
  const Tensor to = Tensor::zeros({kBytes}, DType::kU8);
  const Timing timing = measure(
      [&] {
        return seconds_of([&] {
          parallel_for(stream, kBytes, kBlock, [&](int64_t begin, int64_t end) {
            std::memcpy(to.bytes() + begin, from.bytes() + begin, static_cast<size_t>(end - begin));
          });
        });
      },
      0.2);
  return 2.0 * kBytes / timing.median_us * 1e-3;
}

Harness::Harness(const app::BenchOptions& options, const std::vector<app::Column>& metric_columns)
    : options_(options), columns_(metric_columns), facts_(std::make_unique<Facts>()) {
  fact("commit", std::string(app::commit()));
  fact("cpu", app::cpu_model());
  fact("threads", Stream::cpu(options.threads).num_threads());
}

Harness::~Harness() = default;

void Harness::fact(std::string_view key, const app::Value& value) {
  facts_->json[std::string(key)] = app::json_of(value);
}

void Harness::print_header() {
  const Json& facts = facts_->json;
  const std::string machine = facts.contains("gpu")
                                  ? facts["gpu"].get<std::string>()
                                  : fmt::format("{}, {} threads", facts["cpu"].get<std::string>(),
                                                facts["threads"].get<int>());
  fmt::print("{}, {}, {}\n", options_.stage, machine, app::version_line());
  std::vector<std::string> cells = {"problem", "impl"};
  for (const auto* columns : {&kTimingColumns, &columns_}) {
    for (const app::Column& column : *columns) {
      cells.emplace_back(column.header);
    }
  }
  print_row(cells);
}

void Harness::run(const Case& c) {
  if (num_cases_++ == 0) {
    print_header();
  }
  if (!c.refusal.empty()) {
    note(c, "refused", c.refusal);
    return;
  }
  std::optional<double> reference_us;
  if (options_.check) {
    c.call();
    if (c.reference) {
      reference_us = c.reference() * 1e6;
    }
    if (const auto wrong = c.difference()) {
      ++num_wrong_;
      note(c, "wrong", *wrong);
      return;
    }
  }
  const auto call = [&] { return seconds_of(c.call); };
  const Timing timing = measure(c.timed_call ? c.timed_call : std::function<double()>(call),
                                options_.min_time, c.num_calls);
  const app::Value times_ref =
      reference_us ? app::Value(*reference_us / timing.median_us) : app::Value();
  const auto metrics = c.metrics(timing.median_us * 1e-6);

  Json line = {{"stage", options_.stage}, {"problem", c.problem}, {"impl", c.impl}};
  line.update(facts_->json);
  line["checked"] = options_.check;
  std::vector<std::string> cells = {c.problem, c.impl};
  const auto add = [&](const std::vector<app::Column>& columns,
                       const std::vector<app::Value>& values) {
    for (size_t i = 0; i < columns.size(); ++i) {
      line[std::string(columns[i].key)] = app::json_of(values[i]);
      cells.push_back(app::format_value(values[i], columns[i].unit));
    }
  };
  add(kTimingColumns, {timing.median_us, timing.p10_us, timing.p90_us, timing.n, times_ref});
  add(columns_, metrics);
  json_lines_ += line.dump() + '\n';
  print_row(cells);
}

void Harness::note(const Case& c, const char* what, const std::string& reason) {
  Json line = {{"stage", options_.stage}, {"problem", c.problem}, {"impl", c.impl}};
  line.update(facts_->json);
  line[what] = reason;
  json_lines_ += line.dump() + '\n';
  print_row({c.problem, c.impl, fmt::format("{}: {}", what, reason)});
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

void Harness::print_row(const std::vector<std::string>& cells) const {
  std::string line = fmt::format("{:<{}} {:<{}}", cells[0], kProblemWidth, cells[1], kImplWidth);
  if (cells.size() == 3) {
    line += " " + cells[2];
  }
  const size_t num_timing = kTimingColumns.size();
  for (size_t i = 2; cells.size() > 3 && i < cells.size(); ++i) {
    const size_t column = i - 2;
    line += fmt::format(
        " {:>{}}", cells[i],
        column_width(column < num_timing ? kTimingColumns[column] : columns_[column - num_timing]));
  }
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

}  // namespace moebius::bench
