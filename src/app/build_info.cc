// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/build_info.h"

#include <fmt/format.h>

#include "app/build_config.h"
#include "app/report/page.h"
#include "moebius/version.h"

namespace moebius::app {

std::string_view commit() {
  return MOEBIUS_COMMIT;
}

std::string version_line() {
  return fmt::format("moebius {} ({})", version(), commit());
}

std::vector<std::pair<std::string, std::string>> build_facts() {
  const auto optional = [](std::string_view text) {
    return std::string(text.empty() ? "no" : text);
  };
  return {
      {"compiler", MOEBIUS_COMPILER},
      {"build_type", MOEBIUS_BUILD_TYPE},
      {"sanitizers", optional(MOEBIUS_SANITIZERS)},
      {"MPI", optional(MOEBIUS_MPI_VERSION)},
      {"CUDA", optional(MOEBIUS_CUDA_VERSION)},
      {"NCCL", optional(MOEBIUS_BUILT_NCCL_VERSION)},
      {"report_page", has_page() ? "yes, with ECharts " MOEBIUS_ECHARTS_VERSION : "no"},
      {"fmt", MOEBIUS_FMT_VERSION},
      {"nlohmann-json", MOEBIUS_JSON_VERSION},
      {"CLI11", MOEBIUS_CLI11_VERSION},
  };
}

}  // namespace moebius::app
