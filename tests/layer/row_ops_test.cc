// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Operations on ids and on rows in use.  cuda_rows_test.cc checks that a GPU gives the same bits.
#include "layer/rows/row_ops.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/layer/tensors.h"

namespace moebius::testing {
namespace {

TEST(RowOps, CountsIdsThatAreNotMaskedOnTopOfTheTotal) {
  const Tensor total = Tensor::zeros({1}, DType::kI64);
  count_selections(ids_of({2, 3}, {4, -1, 0, -1, -1, 7}), total, Stream());
  EXPECT_EQ(total.data<int64_t>()[0], 3);
  count_selections(ids_of({1, 1}, {2}), total, Stream());
  count_selections(Tensor::empty({0, 3}, DType::kI32), total, Stream());
  EXPECT_EQ(total.data<int64_t>()[0], 4);
}

TEST(RowOps, MapsIdsAndMasksThoseOutsideTheMap) {
  const Tensor local = Tensor::empty({2, 3}, DType::kI32);
  map_ids(ids_of({2, 3}, {0, 1, 2, -1, 3, 99}), ids_of({3}, {5, -1, 0}), local, Stream());
  expect_same_bits(local, ids_of({2, 3}, {5, -1, 0, -1, -1, -1}));
}

TEST(RowOps, NarrowsIdsAndMasksThoseOfNoExpert) {
  const Tensor ids = Tensor::empty({2, 3}, DType::kI64);
  const int64_t values[] = {0, 4, 5, -1, -7, (int64_t{1} << 32) + 2};
  std::copy_n(values, 6, ids.data<int64_t>());
  const Tensor narrow = Tensor::empty({2, 3}, DType::kI32);
  narrow_ids(ids, 5, narrow, Stream());
  expect_same_bits(narrow, ids_of({2, 3}, {0, 4, -1, -1, -1, -1}));
}

TEST(RowOps, ClearsRowsThatAreNotInUse) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int32_t num_rows : {-1, 0, 3, 5, 999}) {
      SCOPED_TRACE(num_rows);
      const Tensor before = random_tensor({5, 13}, dtype, 1);
      const Tensor rows = before.clone();
      clear_rows_after(rows, ids_of({1}, {num_rows}), Stream());
      const int64_t used = std::clamp<int64_t>(num_rows, 0, 5);
      expect_same_bits(rows.slice(0, used), before.slice(0, used));
      expect_same_bits(rows.slice(used, 5), Tensor::zeros({5 - used, 13}, dtype));
    }
  }
}

}  // namespace
}  // namespace moebius::testing
