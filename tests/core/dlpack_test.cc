// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/dlpack.h"

#include <dlpack/dlpack.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace moebius {
namespace {

TEST(DLPack, RoundTripSharesTheData) {
  for (const DType dtype :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kU8, DType::kI32, DType::kI64}) {
    const Tensor t = Tensor::zeros({2, 3, 4}, dtype);
    const Tensor back = from_dlpack(to_dlpack(t));
    EXPECT_EQ(back.dtype(), dtype) << name(dtype);
    EXPECT_EQ(back.shape(), t.shape());
    EXPECT_EQ(back.raw(), t.raw());
  }
}

TEST(DLPack, TypesWithoutACodeTravelAsBytes) {
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2, DType::kF4E2M1, DType::kU4,
                            DType::kF6E3M2, DType::kF6E2M3, DType::kE8M0, DType::kBool}) {
    const Tensor t = Tensor::zeros({2, 8}, dtype);
    DLManagedTensor* managed = to_dlpack(t);
    EXPECT_EQ(managed->dl_tensor.dtype.code, kDLUInt);
    EXPECT_EQ(managed->dl_tensor.shape[1], 8 * bits(dtype) / 8);
    const Tensor back = from_dlpack(managed, dtype);
    EXPECT_EQ(back.dtype(), dtype);
    EXPECT_EQ(back.shape(), t.shape());
  }
}

TEST(DLPack, ExportKeepsStorageAlive) {
  DLManagedTensor* managed = nullptr;
  {
    const Tensor t = Tensor::zeros({4}, DType::kF32);
    t.data<float>()[3] = 5.0f;
    managed = to_dlpack(t);
  }
  const Tensor back = from_dlpack(managed);
  EXPECT_EQ(back.data<float>()[3], 5.0f);
}

// A foreign tensor that counts how often it is released.
struct Foreign {
  std::array<float, 6> data{};
  std::array<int64_t, 2> shape{2, 3};
  std::array<int64_t, 2> strides{3, 1};
  int released = 0;
  DLManagedTensor managed{};

  Foreign() {
    DLTensor& t = managed.dl_tensor;
    t.data = data.data();
    t.device = {kDLCPU, 0};
    t.ndim = 2;
    t.dtype = {kDLFloat, 32, 1};
    t.shape = shape.data();
    t.strides = strides.data();
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensor* self) {
      ++static_cast<Foreign*>(self->manager_ctx)->released;
    };
  }
};

TEST(DLPack, ImportReleasesOnceWithTheLastHandle) {
  Foreign foreign;
  {
    Tensor t = from_dlpack(&foreign.managed);
    const Tensor row = t[1];
    t = Tensor();
    EXPECT_EQ(foreign.released, 0);
    EXPECT_EQ(row.raw(), foreign.data.data() + 3);
  }
  EXPECT_EQ(foreign.released, 1);
}

TEST(DLPack, ByteOffsetIsHonoured) {
  Foreign foreign;
  foreign.managed.dl_tensor.byte_offset = 12;
  foreign.shape = {1, 3};
  EXPECT_EQ(from_dlpack(&foreign.managed).raw(), foreign.data.data() + 3);
}

// These are the strides that torch gives a [4, 0, 3] tensor.
TEST(DLPack, StridesOfNoElementsAreNotRead) {
  Foreign foreign;
  std::array<int64_t, 3> shape{4, 0, 3};
  std::array<int64_t, 3> strides{3, 3, 1};
  DLTensor& t = foreign.managed.dl_tensor;
  t.ndim = 3;
  t.shape = shape.data();
  t.strides = strides.data();
  t.data = nullptr;
  EXPECT_EQ(from_dlpack(&foreign.managed).shape(), (Shape{4, 0, 3}));
  EXPECT_EQ(foreign.released, 1);
}

TEST(DLPack, RefusalsReleaseToo) {
  Foreign transposed;
  transposed.strides = {1, 2};
  EXPECT_THROW(from_dlpack(&transposed.managed), InvalidArgument);
  EXPECT_EQ(transposed.released, 1);

  Foreign complex_type;
  complex_type.managed.dl_tensor.dtype = {kDLComplex, 64, 1};
  EXPECT_THROW(from_dlpack(&complex_type.managed), InvalidArgument);
  EXPECT_EQ(complex_type.released, 1);

  Foreign elsewhere;
  elsewhere.managed.dl_tensor.device = {kDLMetal, 0};
  EXPECT_THROW(from_dlpack(&elsewhere.managed), InvalidArgument);
  EXPECT_EQ(elsewhere.released, 1);

  Foreign wrong_as;  // f32 cannot be reinterpreted, only bytes can
  EXPECT_THROW(from_dlpack(&wrong_as.managed, DType::kF8E4M3), InvalidArgument);
  EXPECT_EQ(wrong_as.released, 1);
}

}  // namespace
}  // namespace moebius
