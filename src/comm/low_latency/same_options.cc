// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/low_latency/same_options.h"

#include <cstdint>
#include <string>

#include "comm/group/same_values.h"
#include "comm/routing/same_placement.h"

namespace moebius {

void expect_same_options(Group& group,
                         const ExpertPlacement& placement,
                         const LowLatencyOptions& options) {
  expect_same_placement(group, "low latency", placement);
  expect_same_values(group, "low latency options", "low latency",
                     {{"hidden", options.hidden},
                      {"topk", options.topk},
                      {"max_tokens", options.max_tokens},
                      {"in_dtype", static_cast<int64_t>(options.in_dtype),
                       [](int64_t dtype) { return std::string(name(static_cast<DType>(dtype))); }},
                      {"sum", static_cast<int64_t>(options.sum)},
                      {"excludes_missing", options.excludes_missing ? 1 : 0}});
}

}  // namespace moebius
