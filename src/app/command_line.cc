// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <exception>
#include <iostream>
#include <optional>
#include <string>
#include <variant>

#include "app/commands.h"
#include "app/failure.h"
#include "app/forced_setting.h"
#include "comm/group/mpi/job.h"
#include "moebius/error.h"

namespace moebius::app {

namespace {

template <typename Options>
int dispatch(const Options& options) {
  std::optional<ForcedSetting> forced;
  if constexpr (requires { options.threads; }) {
    if (options.threads > 0) {  // also for streams that name no number, such as those that load
      forced.emplace("MOEBIUS_THREADS", std::to_string(options.threads));
    }
  }
  std::optional<ForcedSetting> numa;
  if constexpr (requires { options.numa; }) {
    if (!options.numa.empty()) {
      numa.emplace("MOEBIUS_NUMA", options.numa);
    }
  }
  return run_subcommand(options);
}

int report_unprinted() {
  return report_failure(Error("cannot write to standard output"));
}

}  // namespace

int run_command_line(int argc, const char* const* argv) {
  static const comm::Presence presence(comm::kStart);  // stays until the process ends
  try {
    const auto parsed = parse_command_line(argc, argv);
    const int* exit_code = std::get_if<int>(&parsed);  // set after --help
    const int code = exit_code != nullptr
                         ? *exit_code
                         : std::visit([](const auto& options) { return dispatch(options); },
                                      std::get<Options>(parsed));
    std::cout.flush();
    if (!std::cout || std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      return report_unprinted();
    }
    return code;
  } catch (const Reported& reported) {
    return reported.exit_code;
  } catch (const std::exception& error) {
    // The error that fmt throws then does not say which file it could not write to.
    return std::ferror(stdout) != 0 ? report_unprinted() : report_failure(error);
  }
}

}  // namespace moebius::app
