// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// One rank of the jobs that mpi_failure_test.cc starts:
//   mpi_failure_rank CASE GUILTY
// Prints, in one write, "report RANK MILLISECONDS MESSAGE" for the error that ended the case here,
// or "report RANK MILLISECONDS" for none.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/comm/failure_cases.h"

namespace moebius::testing {
namespace {

int run(const std::string& name, int guilty) {
  std::function<void(Group&, int)> body;
  std::chrono::milliseconds timeout = short_timeout(1);
  for (const DeadlyCase& c : deadly_cases()) {
    if (name == c.name) {
      body = c.body;
    }
  }
  if (!body) {
    const FailureCase& c = failure_case(name);
    body = c.body;
    timeout = timeout_of(c, 1);
  }

  const auto group = make_mpi_group({.timeout = timeout});
  const int rank = group->rank();
  const auto begin = std::chrono::steady_clock::now();
  std::string message;
  try {
    body(*group, guilty);
  } catch (const std::exception& error) {
    message = error.what();
    group->abort(message);
  }
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - begin);
  // While the group is alive: the launcher ends all once the first process has gone.
  const std::string line = fmt::format("report {} {} {}\n", rank, took.count(), message);
  return write(STDOUT_FILENO, line.data(), line.size()) > 0 && message.empty() ? 0 : 1;
}

}  // namespace
}  // namespace moebius::testing

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: mpi_failure_rank CASE GUILTY\n");
    return 2;
  }
  return moebius::testing::run(argv[1], std::atoi(argv[2]));
}
