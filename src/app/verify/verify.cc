// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "app/bench/cases.h"
#include "app/build_info.h"
#include "app/commands.h"
#include "app/machine.h"
#include "app/output_file.h"
#include "app/report/report.h"
#include "moebius/stream.h"
#include "problems/layer_matrix.h"

namespace moebius::app {

namespace {

// The results by case and implementation, in the order of the stage's lists.
struct Matrix {
  std::vector<std::string> impls;
  std::vector<std::pair<std::string, std::map<std::string, std::string>>> cases;
  struct Note {
    std::string impl, result, reason;
    std::vector<std::string> cases;
  };
  std::vector<Note> notes;  // one per implementation, result and reason

  void add(const bench::Case& c, const std::string& result, const std::string& reason) {
    if (std::find(impls.begin(), impls.end(), c.impl) == impls.end()) {
      impls.push_back(c.impl);
    }
    auto row = std::find_if(cases.begin(), cases.end(),
                            [&](const auto& entry) { return entry.first == c.problem; });
    if (row == cases.end()) {
      row = cases.insert(row, {c.problem, {}});
    }
    row->second[c.impl] = result;
    if (reason.empty()) {
      return;
    }
    auto note = std::find_if(notes.begin(), notes.end(), [&](const Note& n) {
      return n.impl == c.impl && n.result == result && n.reason == reason;
    });
    if (note == notes.end()) {
      note = notes.insert(note, {c.impl, result, reason, {}});
    }
    note->cases.push_back(c.problem);
  }
};

struct Counts {
  int64_t ok = 0;
  int64_t refused = 0;
  int64_t failed = 0;
};

Matrix verify_stage(const bench::StageCases& stage,
                    const VerifyOptions& options,
                    const Stream& stream,
                    Counts& counts) {
  Matrix matrix;
  bench::CaseSetup setup;
  setup.stream = stream;
  setup.problem = options.problem;
  setup.visit = [&](const bench::Case& c) {
    if (!c.refusal.empty()) {
      ++counts.refused;
      matrix.add(c, "refused", c.refusal);
      return;
    }
    c.call();
    if (c.reference) {
      c.reference();
    }
    const auto difference = c.difference();
    ++(difference ? counts.failed : counts.ok);
    matrix.add(c, difference ? "FAILED" : "ok", difference.value_or(""));
  };
  stage.run(setup);
  return matrix;
}

void tell(const bench::StageCases& stage, const Matrix& matrix, Report& report) {
  std::vector<Column> columns = {{"case", "case"}};
  for (const std::string& impl : matrix.impls) {
    columns.push_back({impl, impl});
  }
  std::vector<std::vector<Json>> rows;
  for (const auto& [problem, results] : matrix.cases) {
    std::vector<Json> row = {problem};
    for (const std::string& impl : matrix.impls) {
      const auto result = results.find(impl);
      row.push_back(result == results.end() ? Json() : Json(result->second));
    }
    rows.push_back(std::move(row));
  }
  report.heading(fmt::format("{} against {}", stage.stage,
                             stage.stage == "layer" ? "one rank, row by row" : "ref"));
  report.table(stage.stage, "cases", columns, rows);
  rows.clear();
  for (const Matrix::Note& note : matrix.notes) {
    const bool is_one = note.cases.size() == 1;
    rows.push_back({note.impl, note.result,
                    is_one ? note.cases[0] : fmt::format("{} cases", note.cases.size()),
                    note.reason});
  }
  if (!rows.empty()) {
    report.table(stage.stage, "reasons",
                 {{"implementation", "implementation"},
                  {"result", "result"},
                  {"cases", "cases"},
                  {"reason", "reason"}},
                 rows);
  }
}

}  // namespace

int run_subcommand(const VerifyOptions& options) {
  expect_writable("--json", options.json);
  if (options.markdown) {
    fmt::print("{}", testing::layer_matrix_page());
    return kOk;
  }
  const Stream stream = Stream::cpu(options.threads);
  Report report;
  report.line(
      "verify", "verify", "{version} on {cpu}, {threads} threads",
      {{"version", version_line()}, {"cpu", cpu_model()}, {"threads", stream.num_threads()}});
  Counts counts;
  for (const auto& stage : bench::stage_cases()) {
    if (options.stage.empty() || options.stage == stage.stage) {
      const Matrix matrix = verify_stage(stage, options, stream, counts);
      if (!matrix.cases.empty()) {
        tell(stage, matrix, report);
      }
    }
  }
  expect(counts.ok + counts.refused + counts.failed > 0,
         [&] { return fmt::format("--problem {}: no such case", options.problem); });
  report.heading("");
  report.line("verify", "result", "{ok} ok, {refused} refused, {failed} failed",
              {{"ok", counts.ok}, {"refused", counts.refused}, {"failed", counts.failed}});
  write_text(options.json, json_text(report.json(), 2) + "\n");
  fmt::print("{}", report.text());
  return counts.failed > 0 ? kCheckFailed : kOk;
}

}  // namespace moebius::app
