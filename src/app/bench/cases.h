// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Cases: every stage's implementations on named problems, each able to compare itself with `ref`.
// `moebius verify` runs them small, `moebius bench` at the sizes of real models.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/report/report.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

namespace moebius::bench {

// One implementation on one problem.
struct Case {
  std::string problem;
  std::string impl;
  std::string refusal;  // why the implementation does not take the problem; then nothing below
  std::function<void()> call;
  // Seconds of one call, where that is not the time `call` takes from here.
  std::function<double()> timed_call;
  int64_t num_calls = 0;  // to time; 0: as many as --min-time takes
  // The same by `ref`, into buffers of its own; how many seconds that takes for the whole problem.
  // Empty where `difference` needs no such result.
  std::function<double()> reference;
  // After both: how the results differ beyond what is allowed; nullopt when they do not.
  std::function<std::optional<std::string>()> difference;
  // The stage's columns, from the seconds of one call.
  std::function<std::vector<app::Json>(double seconds)> metrics;
};

struct CaseSetup {
  bool is_small = true;
  Stream stream;
  std::string problem;                     // only this one and those below it; empty: all
  std::string impl;                        // only this one; empty: all
  int ranks = 0;                           // only this many; 0: those of the stage's problems
  std::function<void(const Case&)> visit;  // the case and its buffers live during the call

  // What is not asked for is not even set up.
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
void run_layer_cases(const CaseSetup& setup);  // small only

// Seconds of one call.
double seconds_of(const std::function<void()>& call);

// Names the first byte that differs; nullopt when all are equal or `expected` is undefined.
std::optional<std::string> byte_difference(std::string_view what,
                                           const Tensor& actual,
                                           const Tensor& expected);

}  // namespace moebius::bench
