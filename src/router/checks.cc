// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "router/checks.h"

#include <fmt/format.h>

#include "core/ids.h"
#include "core/index_text.h"
#include "moebius/error.h"

namespace moebius::router {

void expect_ids_below(const Tensor& ids, int64_t bound, std::string_view what) {
  const Ids id = Ids::of(ids);
  const int64_t num_ids = ids.numel();
  for (int64_t i = 0; i < num_ids; ++i) {
    if (id[i] < -1 || id[i] >= bound) {
      throw InvalidArgument(fmt::format("{} is {}, expected -1 <= id < {}",
                                        element_name(what, ids.shape(), i), id.value(i), bound));
    }
  }
}

std::string element_name(std::string_view what, const Shape& shape, int64_t index) {
  return fmt::format("{}{}", what, index_text(shape, index));
}

}  // namespace moebius::router
