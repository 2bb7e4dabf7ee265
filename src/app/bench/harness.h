// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Harness: runs the cases of a benchmark and reports them.  It checks each case before it times it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "app/bench/cases.h"
#include "app/options.h"
#include "app/report/column.h"
#include "moebius/stream.h"

namespace moebius::bench {

struct Timing {
  int64_t n = 0;
  double median_us = 0;
  double p10_us = 0;
  double p90_us = 0;
};

// Makes two warm-up calls, then `num_calls` timed ones.  If that is 0, it makes calls until they
// have taken `min_time` seconds, but at least 5.  A call returns the seconds that it counts for.
Timing measure(const std::function<double()>& timed_call, double min_time, int64_t num_calls = 0);

// How fast memcpy is on this stream's threads, in GB/s; bytes count when read and when written.
double memcpy_gb_per_s(const Stream& stream);

// Checks cases against `ref` and times them.  For each it prints a table row and keeps a JSON line.
class Harness {
 public:
  Harness(const app::BenchOptions& options, const std::vector<app::Column>& metric_columns);
  ~Harness();

  // Puts a fact about machine or set-up into every JSON line from here on.
  void fact(std::string_view key, const app::Value& value);
  void run(const Case& c);
  // Writes --json and returns the exit code.  Throws InvalidArgument when there was no case.
  int finish() const;

 private:
  void print_header();
  void print_row(const std::vector<std::string>& cells) const;
  void note(const Case& c, const char* what, const std::string& reason);

  const app::BenchOptions& options_;
  const std::vector<app::Column>& columns_;
  struct Facts;
  std::unique_ptr<Facts> facts_;
  std::string json_lines_;
  int64_t num_cases_ = 0;  // printed so far
  int64_t num_wrong_ = 0;
};

}  // namespace moebius::bench
