// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <variant>

#include "app/commands.h"
#include "app/not_built.h"
#include "moebius/error.h"

namespace {

using namespace moebius::app;

struct Dispatch {
  int operator()(const RunOptions& options) const { return run(options); }
  int operator()(const MakeModelOptions& options) const { return make_model(options); }
  int operator()(const BenchOptions& options) const { return bench(options); }
  int operator()(const VerifyOptions& options) const { return verify(options); }
  int operator()(const InfoOptions& options) const { return info(options); }
  int operator()(const PlanOptions&) const { refuse_plan(); }
};

int fail(ExitCode code, std::string message) {
  for (char& c : message) {
    if (c == '\n') {
      c = ' ';
    }
  }
  std::fflush(stdout);
  std::fprintf(stderr, "moebius: %s\n", message.c_str());
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto parsed = parse_command_line(argc, argv);
    if (const int* exit_code = std::get_if<int>(&parsed)) {
      return *exit_code;
    }
    const int code = std::visit(Dispatch(), std::get<Options>(parsed));
    if (std::fflush(stdout) != 0) {
      return fail(kRunFailed, "cannot write to standard output");
    }
    return code;
  } catch (const moebius::InvalidArgument& error) {
    return fail(kBadInput, error.what());
  } catch (const moebius::Unsupported& error) {
    return fail(kBadInput, error.what());
  } catch (const std::bad_alloc&) {
    return fail(kRunFailed, "out of memory");
  } catch (const std::exception& error) {
    return fail(kRunFailed, error.what());
  }
}
