// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Harness: runs the cases of a benchmark, each checked before it is timed, and reports them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "app/options.h"
#include "app/report.h"

namespace moebius::bench {

struct Timing {
  int64_t n = 0;
  double median_us = 0;
  double p10_us = 0;
  double p90_us = 0;
};

// Two warm-up calls, then calls until `min_time` seconds have passed, at least 5.
Timing measure(const std::function<void()>& call, double min_time);

// Bytes that one large memcpy reads and writes per second on this many threads, in GB/s.
double memcpy_gb_per_s(int num_threads);

// One implementation on one problem.
struct Case {
  std::string problem;
  std::string impl;
  std::function<void()> call;
  // Why the result is wrong; nullopt when it agrees with the reference.  May be empty.
  std::function<std::optional<std::string>()> check;
  // Columns after the times, from the median in seconds.
  std::function<std::vector<app::Json>(double seconds)> metrics;
};

// Prints a table row per case and keeps a JSON object per case.
class Harness {
 public:
  Harness(const app::BenchOptions& options, std::vector<app::Column> metric_columns);

  // Whether --problem and --impl ask for it.
  bool wants(const std::string& problem, const std::string& impl) const;
  void run(const Case& the_case);
  // A row without times: why an implementation was not run.
  void skip(const std::string& problem, const std::string& impl, const std::string& reason);
  // Writes --json; the exit code.  Throws InvalidArgument when nothing matched --problem or --impl.
  int finish() const;

 private:
  void print_header() const;
  void print_row(const std::vector<std::string>& cells) const;
  app::Json identity(const std::string& problem, const std::string& impl) const;

  const app::BenchOptions& options_;
  std::vector<app::Column> columns_;
  std::string cpu_;
  int threads_;
  std::string json_lines_;
  int64_t num_cases_ = 0;
  int64_t num_wrong_ = 0;
};

}  // namespace moebius::bench
