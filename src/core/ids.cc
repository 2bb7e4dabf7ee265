// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/ids.h"

#include <fmt/format.h>

#include "moebius/dtype.h"
#include "moebius/error.h"
#include "moebius/tensor.h"

namespace moebius {

namespace {

int words_of(const Tensor& ids) {
  return ids && ids.dtype() == DType::kI64 ? 2 : 1;
}

}  // namespace

Ids Ids::of(const Tensor& ids) {
  return {static_cast<const int32_t*>(ids.raw()), words_of(ids)};
}

IdsOut IdsOut::of(const Tensor& ids) {
  return {static_cast<int32_t*>(ids.raw()), words_of(ids)};
}

void expect_id_dtype(const Tensor& ids, std::string_view what, Where where) {
  expect_defined(ids, what, where);
  if (ids.dtype() != DType::kI32 && ids.dtype() != DType::kI64) {
    expect(false, fmt::format("{} dtype is {}, expected i32 or i64", what, name(ids.dtype())),
           where);
  }
}

}  // namespace moebius
