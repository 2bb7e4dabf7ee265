// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/ids.h"

#include <fmt/format.h>

namespace moebius {

void expect_id_dtype(const Tensor& ids, std::string_view what, Where where) {
  expect_defined(ids, what, where);
  if (ids.dtype() != DType::kI32 && ids.dtype() != DType::kI64) {
    expect(false, fmt::format("{} dtype is {}, expected i32 or i64", what, name(ids.dtype())),
           where);
  }
}

}  // namespace moebius
