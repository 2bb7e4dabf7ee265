// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "moebius/error.h"
#include "moebius/quantize.h"
#include "tests/error_text.h"

namespace moebius {
namespace {

using testing::expect_mentions;
using testing::message_of;

TEST(FiniteWeight, IsRefusedWithItsPlaceAndValue) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Tensor w = Tensor::zeros({3, 300, 1000}, dtype);
    expect_finite_weight(w, "w1", Stream::cpu(2));
    set_float(w, (2 * 300 + 299) * 1000 + 7, -std::numeric_limits<float>::infinity());
    expect_mentions(message_of([&] { expect_finite_weight(w, "w1", Stream::cpu(2)); }),
                    "w1 is -inf at [2, 299, 7], expected a finite number");
    set_float(w, 1000, std::numeric_limits<float>::quiet_NaN());
    expect_mentions(message_of([&] { expect_finite_weight(w, "w1"); }), "w1 is NaN at [0, 1, 0]");
  }
  expect_mentions(message_of([] { expect_finite_weight({}, "w1"); }), "w1 is missing");
  expect_mentions(message_of([] { expect_finite_weight(Tensor::zeros({4}, DType::kI8), "w1"); }),
                  "w1 is i8, expected f32, bf16 or f16");
}

}  // namespace
}  // namespace moebius
