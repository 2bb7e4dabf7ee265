// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/dlpack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/dlpack_abi.h"
#include "tests/error_text.h"

namespace moebius {
namespace {

using testing::expect_mentions;
using testing::message_of;

constexpr DType kAllTypes[] = {DType::kF32,    DType::kF16,    DType::kBF16,  DType::kF8E4M3,
                               DType::kF8E5M2, DType::kI8,     DType::kU8,    DType::kI32,
                               DType::kI64,    DType::kBool,   DType::kU4,    DType::kE8M0,
                               DType::kF4E2M1, DType::kF6E3M2, DType::kF6E2M3};

// A foreign tensor of either form, which counts how often it is released.
template <typename Managed>
struct Foreign {
  std::array<float, 24> data{};
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  int released = 0;
  Managed managed{};

  Foreign(std::vector<int64_t> dims, std::vector<int64_t> steps, DLDataType type)
      : shape(std::move(dims)), strides(std::move(steps)) {
    std::iota(data.begin(), data.end(), 0.0f);
    DLTensor& t = managed.dl_tensor;
    t.data = data.data();
    t.device = {kDLCPU, 0};
    t.ndim = static_cast<int32_t>(shape.size());
    t.dtype = type;
    t.shape = shape.data();
    t.strides = strides.empty() ? nullptr : strides.data();
    managed.manager_ctx = this;
    managed.deleter = [](Managed* self) { ++static_cast<Foreign*>(self->manager_ctx)->released; };
    if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) {
      managed.version = {1, 0};
    }
  }
};
using Unversioned = Foreign<DLManagedTensor>;
using Versioned = Foreign<DLManagedTensorVersioned>;

constexpr DLDataType kFloat32 = {kDLFloat, 32, 1};

TEST(DLPack, EveryTypeGoesOutAndInWithoutACopy) {
  for (const DType dtype : kAllTypes) {
    const Tensor t = Tensor::zeros({2, 3, 8}, dtype);
    const Tensor back = from_dlpack(to_dlpack(t));
    EXPECT_EQ(back.dtype(), dtype) << name(dtype);
    EXPECT_EQ(back.shape(), t.shape());
    EXPECT_EQ(back.raw(), t.raw());
    EXPECT_FALSE(back.is_read_only());
    const Tensor again = from_dlpack(to_dlpack_versioned(t));
    EXPECT_EQ(again.dtype(), dtype) << name(dtype);
    EXPECT_EQ(again.shape(), t.shape());
    EXPECT_EQ(again.raw(), t.raw());
  }
}

TEST(DLPack, TypesHaveTheCodesOfTheSpecification) {
  const auto code_of = [](DType dtype) {
    const Tensor t = Tensor::zeros({8}, dtype);
    DLManagedTensorVersioned* managed = to_dlpack_versioned(t);
    EXPECT_EQ(managed->version.major, 1u);
    EXPECT_EQ(managed->version.minor, 1u);
    const DLTensor& d = managed->dl_tensor;
    const std::array<int64_t, 4> facts = {d.dtype.code, d.dtype.bits, d.dtype.lanes, d.shape[0]};
    managed->deleter(managed);
    return facts;
  };
  using Facts = std::array<int64_t, 4>;  // code, bits, lanes, shape
  EXPECT_EQ(code_of(DType::kF32), (Facts{2, 32, 1, 8}));
  EXPECT_EQ(code_of(DType::kBF16), (Facts{4, 16, 1, 8}));
  EXPECT_EQ(code_of(DType::kBool), (Facts{6, 8, 1, 8}));
  EXPECT_EQ(code_of(DType::kF8E4M3), (Facts{10, 8, 1, 8}));
  EXPECT_EQ(code_of(DType::kF8E5M2), (Facts{12, 8, 1, 8}));
  EXPECT_EQ(code_of(DType::kE8M0), (Facts{14, 8, 1, 8}));
  EXPECT_EQ(code_of(DType::kF6E2M3), (Facts{15, 6, 4, 2}));
  EXPECT_EQ(code_of(DType::kF6E3M2), (Facts{16, 6, 4, 2}));
  EXPECT_EQ(code_of(DType::kF4E2M1), (Facts{17, 4, 2, 4}));  // torch's float4_e2m1fn_x2
  EXPECT_EQ(code_of(DType::kU4), (Facts{1, 4, 2, 4}));
}

TEST(DLPack, PackedTypesWithOneLaneCountElements) {
  Versioned foreign({3, 8}, {8, 1}, {kDLFloat4_e2m1fn, 4, 1});
  const Tensor t = from_dlpack(&foreign.managed);
  EXPECT_EQ(t.dtype(), DType::kF4E2M1);
  EXPECT_EQ(t.shape(), Shape({3, 8}));
  EXPECT_EQ(t.nbytes(), 12);
  Versioned odd({3, 7}, {7, 1}, {kDLFloat4_e2m1fn, 4, 1});
  expect_mentions(message_of([&] { from_dlpack(&odd.managed); }), {"7", "2"});
  EXPECT_EQ(odd.released, 1);
}

TEST(DLPack, PaddedElementsAreRefused) {
  Versioned foreign({3, 8}, {8, 1}, {kDLFloat6_e2m3fn, 6, 1});
  foreign.managed.flags = dlpack::kIsSubbytePadded;
  expect_mentions(message_of([&] { from_dlpack(&foreign.managed); }), "take a byte each");
  EXPECT_EQ(foreign.released, 1);
}

TEST(DLPack, OtherTypesAreRefusedByName) {
  struct Case {
    DLDataType type;
    std::string_view name;
  };
  for (const Case& c :
       {Case{{kDLFloat, 64, 1}, "float64"}, Case{{kDLInt, 16, 1}, "int16"},
        Case{{kDLUInt, 32, 1}, "uint32"}, Case{{kDLComplex, 64, 1}, "complex64"},
        Case{{kDLFloat8_e4m3, 8, 1}, "float8_e4m3 "},
        Case{{kDLFloat8_e4m3fnuz, 8, 1}, "float8_e4m3fnuz"},
        Case{{kDLFloat8_e5m2fnuz, 8, 1}, "float8_e5m2fnuz"},
        Case{{kDLFloat8_e3m4, 8, 1}, "float8_e3m4"},
        Case{{kDLFloat, 32, 4}, "float32 with 4 lanes"}, Case{{99, 8, 1}, "code 99"}}) {
    Unversioned foreign({2, 3}, {3, 1}, c.type);
    expect_mentions(message_of([&] { from_dlpack(&foreign.managed); }), c.name);
    EXPECT_EQ(foreign.released, 1) << c.name;
  }
}

TEST(DLPack, BytesCanStandForAnyTypeThatTheOtherSideLacks) {
  for (const DType dtype : kAllTypes) {
    const Tensor t = Tensor::zeros({2, 8}, dtype);
    DLManagedTensor* managed = to_dlpack(t.view_as(DType::kU8));
    EXPECT_EQ(managed->dl_tensor.dtype.code, kDLUInt);
    EXPECT_EQ(managed->dl_tensor.shape[1], 8 * bits(dtype) / 8);
    const Tensor back = from_dlpack(managed, {.as = dtype});
    EXPECT_EQ(back.dtype(), dtype);
    EXPECT_EQ(back.shape(), t.shape());
  }
  EXPECT_THROW(from_dlpack(to_dlpack(Tensor::zeros({4}, DType::kF32)), {.as = DType::kI32}),
               InvalidArgument);
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

TEST(DLPack, ImportReleasesWithTheLastHandle) {
  Unversioned foreign({2, 3}, {3, 1}, kFloat32);
  {
    const Tensor t = from_dlpack(&foreign.managed);
    EXPECT_EQ(t.raw(), foreign.data.data());
    const Tensor row = t[1];
    EXPECT_EQ(foreign.released, 0);
  }
  EXPECT_EQ(foreign.released, 1);
  foreign.managed.deleter = nullptr;
  from_dlpack(&foreign.managed);
}

TEST(DLPack, ByteOffsetsAndMissingStridesCount) {
  Unversioned foreign({2, 3}, {}, kFloat32);
  foreign.managed.dl_tensor.byte_offset = 8;
  const Tensor t = from_dlpack(&foreign.managed);
  EXPECT_EQ(t.raw(), foreign.data.data() + 2);
  EXPECT_EQ(t.data<float>()[5], 7.0f);
}

TEST(DLPack, RowsThatAreApartAreCopiedAndReadOnly) {
  Versioned foreign({3, 2}, {5, 1}, kFloat32);  // two columns of five
  const Tensor t = from_dlpack(&foreign.managed);
  EXPECT_EQ(foreign.released, 1);  // nothing of it is needed any more
  EXPECT_EQ(t.shape(), Shape({3, 2}));
  const float expected[] = {0, 1, 5, 6, 10, 11};
  EXPECT_TRUE(std::equal(std::begin(expected), std::end(expected), t.data<float>()));
  EXPECT_TRUE(t.is_read_only());
  EXPECT_TRUE(t.slice(0, 1).is_read_only());
  expect_mentions(message_of([&] {
                    copy(Tensor::zeros({3, 2}, DType::kF32), t, Stream::cpu(1));
                  }),
                  "to [3, 2] is not contiguous, expected contiguous");
}

TEST(DLPack, ACopyOfMisalignedElementsSaysSo) {
  Versioned foreign({2}, {1}, kFloat32);
  foreign.managed.dl_tensor.byte_offset = 2;
  const Tensor t = from_dlpack(&foreign.managed);
  EXPECT_TRUE(t.is_read_only());
  expect_mentions(message_of([&] { expect_writable(t, "output"); }),
                  "output [2] is misaligned, expected at a multiple of the element's size");
}

TEST(DLPack, AnyOrderOfDimensionsIsCopiedRightly) {
  Unversioned transposed({3, 4}, {1, 3}, kFloat32);
  const Tensor t = from_dlpack(&transposed.managed);
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 4; ++j) {
      EXPECT_EQ(t.data<float>()[i * 4 + j], static_cast<float>(j * 3 + i));
    }
  }
  Unversioned broadcast({4, 3}, {0, 1}, kFloat32);
  const Tensor b = from_dlpack(&broadcast.managed);
  EXPECT_EQ(b.data<float>()[11], 2.0f);
  Unversioned blocks({2, 2, 2, 2}, {12, 4, 2, 1}, kFloat32);  // only the first is apart
  const Tensor c = from_dlpack(&blocks.managed);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(c.data<float>()[i], static_cast<float>(i < 8 ? i : i + 4));
  }
  Versioned halves({2, 2}, {3, 1}, {kDLFloat4_e2m1fn, 4, 2});
  EXPECT_EQ(from_dlpack(&halves.managed).shape(), Shape({2, 4}));
}

TEST(DLPack, CopiesCanBeForbiddenOrDemanded) {
  Versioned apart({3, 2}, {5, 1}, kFloat32);
  expect_mentions(message_of([&] { from_dlpack(&apart.managed, {.copy = DLPackCopy::kNever}); }),
                  {"[3, 2]", "[5, 1]", "row-major"});
  EXPECT_EQ(apart.released, 1);
  Versioned whole({3, 2}, {2, 1}, kFloat32);
  const Tensor own = from_dlpack(&whole.managed, {.copy = DLPackCopy::kAlways});
  EXPECT_EQ(whole.released, 1);
  EXPECT_NE(own.raw(), whole.data.data());
  EXPECT_FALSE(own.is_read_only());
  EXPECT_EQ(own.data<float>()[5], 5.0f);
}

TEST(DLPack, ReadOnlyAndCopiedAreFlags) {
  Versioned foreign({2, 3}, {3, 1}, kFloat32);
  foreign.managed.flags = dlpack::kReadOnly;
  const Tensor t = from_dlpack(&foreign.managed);
  EXPECT_TRUE(t.is_read_only());
  expect_mentions(message_of([&] { expect_writable(t, "output"); }), "output [2, 3] is read-only");
  DLManagedTensorVersioned* out = to_dlpack_versioned(t);
  EXPECT_EQ(out->flags, dlpack::kReadOnly);
  out->deleter(out);
  expect_mentions(message_of([&] { to_dlpack(t); }), {"read-only", "to_dlpack_versioned"});
  out = to_dlpack_versioned(t.clone(), /*is_copied=*/true);
  EXPECT_EQ(out->flags, dlpack::kIsCopied);
  out->deleter(out);
}

TEST(DLPack, AnotherMajorVersionIsReleasedUnread) {
  Versioned foreign({2, 3}, {3, 1}, kFloat32);
  foreign.managed.version = {2, 0};
  foreign.managed.dl_tensor.ndim = 77;
  expect_mentions(message_of([&] { from_dlpack(&foreign.managed); }), {"major version", "2", "1"});
  EXPECT_EQ(foreign.released, 1);
  Versioned later({2, 3}, {3, 1}, kFloat32);
  later.managed.version = {1, 9};
  EXPECT_NO_THROW(from_dlpack(&later.managed));
}

TEST(DLPack, WhatCannotBeATensorIsRefusedAndReleased) {
  const auto refuse = [](auto change, testing::Parts parts) {
    Unversioned foreign({2, 3}, {3, 1}, kFloat32);
    change(foreign.managed.dl_tensor);
    expect_mentions(message_of([&] { from_dlpack(&foreign.managed); }), parts);
    EXPECT_EQ(foreign.released, 1);
  };
  refuse([](DLTensor& t) { t.device.device_type = static_cast<DLDeviceType>(10); }, {"10"});
  refuse([](DLTensor& t) { t.ndim = 5; }, {"5", "4"});
  refuse([](DLTensor& t) { t.ndim = -1; }, {"-1", "4"});
  refuse([](DLTensor& t) { t.strides[1] = -1; }, {"stride", "-1"});
  refuse([](DLTensor& t) { t.shape[0] = -2; }, {"dimension", "-2"});
  refuse([](DLTensor& t) { t.data = nullptr; }, {"no data pointer"});
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max() / 2;
  refuse([](DLTensor& t) { t.shape[0] = t.shape[1] = kHuge; }, {"larger than memory"});
  refuse([](DLTensor& t) { t.strides[0] = kHuge; }, {"dimension of 2", "larger than memory"});
  EXPECT_THROW(from_dlpack(static_cast<DLManagedTensor*>(nullptr)), InvalidArgument);
  EXPECT_THROW(to_dlpack(Tensor()), InvalidArgument);
}

TEST(DLPack, OddAddressesAreCopied) {
  Unversioned foreign({2, 3}, {3, 1}, kFloat32);
  foreign.managed.dl_tensor.byte_offset = 2;
  const Tensor t = from_dlpack(&foreign.managed);
  EXPECT_EQ(std::memcmp(t.raw(), reinterpret_cast<std::byte*>(foreign.data.data()) + 2, 24), 0);
  Unversioned other({2, 3}, {3, 1}, kFloat32);
  other.managed.dl_tensor.byte_offset = 2;
  expect_mentions(message_of([&] { from_dlpack(&other.managed, {.copy = DLPackCopy::kNever}); }),
                  {"address", "multiple of 4"});
}

// torch has strides (H, H, 1) for [L, 0, H].
TEST(DLPack, StridesOfEmptyTensorsMeanNothing) {
  Unversioned foreign({2, 0, 3}, {3, 3, 1}, kFloat32);
  foreign.managed.dl_tensor.data = nullptr;
  const Tensor t = from_dlpack(&foreign.managed, {.copy = DLPackCopy::kNever});
  EXPECT_EQ(t.shape(), Shape({2, 0, 3}));
}

TEST(DLPack, PinnedMemoryIsTheCpus) {
  Unversioned foreign({2, 3}, {3, 1}, kFloat32);
  foreign.managed.dl_tensor.device.device_type = kDLCUDAHost;
  EXPECT_EQ(from_dlpack(&foreign.managed).device(), Device::cpu());
}

}  // namespace
}  // namespace moebius
