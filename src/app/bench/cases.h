// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Cases: the implementations of every stage on named problems.  A case can compare its result with
// that of `ref`.  `moebius verify` runs small problems, `moebius bench` those of real models.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/report/column.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius::bench {

// One implementation on one problem.
struct Case {
  std::string problem;
  std::string impl;
  std::string refusal;  // why the implementation refuses the problem; if set, nothing below is
  std::function<void()> call;
  // Makes one call and returns its seconds.  Empty where that is simply how long `call` takes.
  std::function<double()> timed_call;
  int64_t num_calls = 0;  // calls to time; 0: as many as fit in --min-time
  // Computes the same by `ref`, into buffers of its own, and returns how many seconds that takes
  // for the whole problem.  Empty where `difference` needs no such result.
  std::function<double()> reference;
  // Says how the two results differ by more than is allowed; nullopt when they do not.
  // REQUIRES: `call` and `reference` have been called.
  std::function<std::optional<std::string>()> difference;
  // Makes the values of the stage's columns from the seconds of one call.
  std::function<std::vector<app::Value>(double seconds)> metrics;
};

struct CaseSetup {
  bool is_small = true;
  Stream stream;
  std::string problem;  // only this one and those below it ("name/..."); empty: all
  std::string impl;     // only this one; empty: all
  int ranks = 0;        // only this many; 0: as many as each problem has
  std::function<void(const Case&)> visit;  // the case and its buffers live during the call

  // Whether a case is asked for.  Others are not even set up.
  bool wants(std::string_view a_problem, std::string_view an_impl) const {
    const bool is_below = a_problem.size() > problem.size() && a_problem.starts_with(problem) &&
                          a_problem[problem.size()] == '/';
    return (problem.empty() || problem == a_problem || is_below) &&
           (impl.empty() || impl == an_impl);
  }
};

struct StageCases {
  std::string_view stage;
  std::vector<app::Column> columns;
  void (*run)(const CaseSetup& setup);
};
std::span<const StageCases> stage_cases();

void run_quant_cases(const CaseSetup& setup);
void run_router_cases(const CaseSetup& setup);
void run_experts_cases(const CaseSetup& setup);
void run_dispatch_cases(const CaseSetup& setup);
void run_layer_cases(const CaseSetup& setup);  // small problems only

// Returns the seconds that one call takes.
double seconds_of(const std::function<void()>& call);

// Names the first byte that differs; nullopt when all are equal or `expected` is undefined.
std::optional<std::string> byte_difference(std::string_view what,
                                           const Tensor& actual,
                                           const Tensor& expected);

}  // namespace moebius::bench
