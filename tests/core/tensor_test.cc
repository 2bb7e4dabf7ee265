// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/error_text.h"

namespace moebius {
namespace {

using testing::expect_mentions;
using testing::message_of;

TEST(Tensor, DefaultIsUndefined) {
  const Tensor t;
  EXPECT_FALSE(t.defined());
  EXPECT_EQ(t.nbytes(), 0);
}

TEST(Tensor, OwnsAlignedStorage) {
  const Tensor t = Tensor::zeros({3, 5}, DType::kF32);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(t.raw()) % 256, 0u);
  EXPECT_EQ(t.nbytes(), 60);
  EXPECT_FALSE(t.is_borrowed());
  for (int64_t i = 0; i < 15; ++i) {
    EXPECT_EQ(t.data<float>()[i], 0.0f);
  }
}

TEST(Tensor, OnlyTheLastHandleOnOurStorageIsExclusive) {
  Tensor t = Tensor::zeros({3, 5}, DType::kF32);
  EXPECT_TRUE(t.is_exclusive());
  Tensor row = t[1];
  EXPECT_FALSE(t.is_exclusive());
  EXPECT_FALSE(row.is_exclusive());
  t = {};
  EXPECT_TRUE(row.is_exclusive());
  EXPECT_FALSE(Tensor().is_exclusive());
  EXPECT_FALSE(Tensor::borrow(row.raw(), {5}, DType::kF32).is_exclusive());
  EXPECT_FALSE(Tensor::share(std::make_shared<int>(), row.raw(), {5}, DType::kF32).is_exclusive());
}

TEST(Tensor, ZeroRowsAreDefined) {
  const Tensor t = Tensor::empty({0, 8}, DType::kBF16);
  EXPECT_TRUE(t.defined());
  EXPECT_EQ(t.numel(), 0);
  EXPECT_EQ(t.slice(0, 0).dim(0), 0);
}

TEST(Tensor, SliceAndIndexShareStorage) {
  const Tensor t = Tensor::zeros({4, 2, 3}, DType::kI32);
  t.slice(1, 3)[1].data<int32_t>()[5] = 7;  // row 2, last element
  EXPECT_EQ(t.data<int32_t>()[2 * 6 + 5], 7);
  EXPECT_EQ(t[2].shape(), Shape({2, 3}));
}

TEST(Tensor, CopiesKeepStorageAlive) {
  Tensor row;
  {
    const Tensor t = Tensor::zeros({2, 2}, DType::kF32);
    t.data<float>()[3] = 4.0f;
    row = t[1];
  }
  EXPECT_EQ(row.data<float>()[1], 4.0f);
}

TEST(Tensor, ShareRunsTheOwnersDeleterLast) {
  bool freed = false;
  int value[2] = {1, 2};
  {
    std::shared_ptr<void> owner(value, [&](void*) { freed = true; });
    Tensor t = Tensor::share(std::move(owner), value, {2}, DType::kI32);
    const Tensor copy = t.slice(1, 2);
    t = Tensor();
    EXPECT_FALSE(freed);
    EXPECT_EQ(copy.data<int32_t>()[0], 2);
  }
  EXPECT_TRUE(freed);
}

TEST(Tensor, PackedTypesCountElements) {
  const Tensor u4 = Tensor::zeros({3, 6}, DType::kU4);
  EXPECT_EQ(u4.nbytes(), 9);
  EXPECT_EQ(u4[1].raw(), u4.bytes() + 3);
  const Tensor f6 = Tensor::zeros({2, 8}, DType::kF6E3M2);
  EXPECT_EQ(f6.nbytes(), 12);
  EXPECT_THROW(Tensor::empty({3, 5}, DType::kF4E2M1), InvalidArgument);
  EXPECT_THROW(Tensor::empty({3, 6}, DType::kF6E2M3), InvalidArgument);
}

TEST(Tensor, ViewAsScalesTheLastDimension) {
  const Tensor words = Tensor::zeros({2, 3}, DType::kI32);
  EXPECT_EQ(words.view_as(DType::kU4).shape(), Shape({2, 24}));
  EXPECT_EQ(words.view_as(DType::kU8).view_as(DType::kI32).shape(), Shape({2, 3}));
  EXPECT_THROW(Tensor::zeros({2, 3}, DType::kI8).view_as(DType::kI32), InvalidArgument);
}

TEST(Tensor, ErrorsNameBothValues) {
  const Tensor t = Tensor::zeros({2, 3}, DType::kF32);
  expect_mentions(message_of([&] { t.view({7}); }), "cannot view [2, 3] as [7]");
  expect_mentions(message_of([&] { t.slice(1, 4); }), "[1, 4)");
  expect_mentions(message_of([&] {
                    expect_shape(t, {2, 4}, "w1");
                  }),
                  {"shape of w1 is [2, 3], expected [2, 4]", "tensor_test.cc:"});
  expect_mentions(message_of([&] { expect_dtype(t, DType::kBF16, "x"); }),
                  "x dtype is f32, expected bf16");
  expect_mentions(message_of([] { expect_defined({}, "w2"); }), "w2 is missing");
}

TEST(Tensor, RefusesImpossibleShapes) {
  EXPECT_THROW(Shape({1, 2, 3, 4, 5}), InvalidArgument);
  EXPECT_THROW(Shape({-1}), InvalidArgument);
  const int64_t big = std::numeric_limits<int64_t>::max() / 2;
  EXPECT_THROW(Shape({big, 4}).numel(), InvalidArgument);
  EXPECT_THROW(Tensor::borrow(nullptr, {1}, DType::kF32), InvalidArgument);
  char byte = 0;
  for (const DType dtype : {DType::kI64, DType::kF32, DType::kBF16, DType::kU8, DType::kU4}) {
    const int64_t most = std::numeric_limits<int64_t>::max() / bits(dtype) / 2 * 2;
    EXPECT_EQ(Tensor::borrow(&byte, {most}, dtype).nbytes(), most * bits(dtype) / 8) << name(dtype);
    EXPECT_THROW(Tensor::borrow(&byte, {most + 2}, dtype), InvalidArgument) << name(dtype);
  }
}

TEST(Tensor, CudaAllocationIsRefusedWithoutAGpu) {
  if (cuda_device_count() > 0) {
    GTEST_SKIP() << "there is a GPU";
  }
  EXPECT_THROW(Tensor::empty({1}, DType::kF32, Device::cuda(0)), Unsupported);
}

TEST(Element, RoundTripsEveryCodeOfTheSmallTypes) {
  struct Case {
    DType dtype;
    int codes;
  };
  for (const auto& [dtype, codes] : {Case{DType::kF4E2M1, 16}, Case{DType::kU4, 16},
                                     Case{DType::kF6E3M2, 64}, Case{DType::kF6E2M3, 64}}) {
    // Each code has other codes beside it, so that packing mistakes show.
    const Tensor a = Tensor::zeros({codes * 4}, dtype);
    for (int64_t i = 0; i < a.nbytes(); ++i) {
      a.data<uint8_t>()[i] = static_cast<uint8_t>(37 * i + 11);
    }
    const Tensor b = Tensor::zeros({codes * 4}, dtype);
    for (int64_t i = a.numel() - 1; i >= 0; --i) {
      set_float(b, i, get_float(a, i));
    }
    for (int64_t i = 0; i < a.nbytes(); ++i) {
      EXPECT_EQ(a.data<uint8_t>()[i], b.data<uint8_t>()[i]) << name(dtype) << " byte " << i;
    }
  }
}

TEST(Element, IntegersRoundToEvenAndClamp) {
  const Tensor t = Tensor::zeros({6}, DType::kI8);
  const float in[] = {2.5f, 3.5f, -2.5f, 1000.0f, -1000.0f, NAN};
  const int8_t expected[] = {2, 4, -2, 127, -128, 0};
  for (int64_t i = 0; i < 6; ++i) {
    set_float(t, i, in[i]);
    EXPECT_EQ(t.data<int8_t>()[i], expected[i]);
  }
}

TEST(Element, PowersOfTwoSaturate) {
  const Tensor t = Tensor::zeros({1}, DType::kE8M0);
  const float inf = std::numeric_limits<float>::infinity();
  for (const auto& [value, code] : {std::pair{1.0f, 127},
                                    {0x1.8p127f, 254},
                                    {std::numeric_limits<float>::max(), 254},
                                    {inf, 254},
                                    {0.0f, 0},
                                    {-inf, 0},
                                    {NAN, 255}}) {
    set_float(t, 0, value);
    EXPECT_EQ(t.data<uint8_t>()[0], code) << value;
  }
}

TEST(Element, ConvertKeepsShape) {
  const Tensor t = Tensor::zeros({2, 2}, DType::kF32);
  t.data<float>()[2] = 1.00390625f;  // halfway between two bf16 values: to even
  const Tensor b = convert(t, DType::kBF16);
  EXPECT_EQ(b.shape(), t.shape());
  EXPECT_EQ(get_float(b, 2), 1.0f);
}

}  // namespace
}  // namespace moebius
