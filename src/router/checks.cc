// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "router/checks.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/index_text.h"
#include "moebius/error.h"

namespace moebius::router {

void expect_ids_below(const Tensor& ids, int64_t bound, std::string_view what) {
  const int32_t* data = ids.data<int32_t>();
  const int32_t* end = data + ids.numel();
  const int32_t* bad =
      std::find_if(data, end, [bound](int32_t id) { return id < -1 || id >= bound; });
  if (bad != end) {
    throw InvalidArgument(fmt::format("{} is {}, expected -1 <= id < {}",
                                      element_name(what, ids.shape(), bad - data), *bad, bound));
  }
}

std::string element_name(std::string_view what, const Shape& shape, int64_t index) {
  return fmt::format("{}{}", what, index_text(shape, index));
}

}  // namespace moebius::router
