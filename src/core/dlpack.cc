// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/dlpack.h"

#include <dlpack/dlpack.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>

namespace moebius {

namespace {

struct Known {
  DType dtype;
  DLDataTypeCode code;
};

constexpr Known kKnown[] = {
    {DType::kF32, kDLFloat}, {DType::kF16, kDLFloat}, {DType::kBF16, kDLBfloat},
    {DType::kI8, kDLInt},    {DType::kI32, kDLInt},   {DType::kI64, kDLInt},
    {DType::kU8, kDLUInt},
};

// Types that DLPack lacks are exported as bytes.
DLDataType to_dl_type(DType dtype) {
  for (const Known& known : kKnown) {
    if (known.dtype == dtype) {
      return {static_cast<uint8_t>(known.code), static_cast<uint8_t>(bits(dtype)), 1};
    }
  }
  return to_dl_type(DType::kU8);
}

DType from_dl_type(DLDataType type) {
  for (const Known& known : kKnown) {
    if (type.lanes == 1 && type.code == known.code && type.bits == bits(known.dtype)) {
      return known.dtype;
    }
  }
  throw InvalidArgument(
      fmt::format("DLPack type code {}, {} bits, {} lanes has no counterpart here", type.code,
                  type.bits, type.lanes));
}

struct Export {
  Tensor tensor;  // keeps the storage alive
  DLManagedTensor managed{};
  std::array<int64_t, Shape::kMaxDims> shape{};
  std::array<int64_t, Shape::kMaxDims> strides{};
};

using ManagedPtr = std::unique_ptr<DLManagedTensor, void (*)(DLManagedTensor*)>;

void release(DLManagedTensor* managed) {
  if (managed->deleter != nullptr) {
    managed->deleter(managed);
  }
}

Device from_dl_device(DLDevice device) {
  switch (device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
      return Device::cpu();
    case kDLCUDA:
      return Device::cuda(device.device_id);
    default:
      throw InvalidArgument(fmt::format("DLPack device type {} is neither CPU nor CUDA",
                                        static_cast<int>(device.device_type)));
  }
}

void expect_row_major(const DLTensor& t) {
  // Strides of a tensor without elements mean nothing: torch has (H, H, 1) for [L, 0, H].
  const bool is_empty = std::find(t.shape, t.shape + t.ndim, 0) != t.shape + t.ndim;
  if (t.strides == nullptr || is_empty) {
    return;
  }
  int64_t expected = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    expect(t.shape[i] <= 1 || t.strides[i] == expected, [&] {
      return fmt::format("DLPack stride {} is {}, expected {} (row-major)", i, t.strides[i],
                         expected);
    });
    expected *= t.shape[i];
  }
}

}  // namespace

DLManagedTensor* to_dlpack(const Tensor& tensor) {
  expect_defined(tensor, "exported tensor");
  auto holder = std::make_unique<Export>();
  const DLDataType type = to_dl_type(tensor.dtype());
  const bool as_bytes = tensor.num_dims() > 0 && bits(tensor.dtype()) < type.bits;
  holder->tensor = as_bytes ? tensor.view_as(DType::kU8) : tensor;
  const Shape& shape = holder->tensor.shape();
  int64_t stride = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    holder->shape[static_cast<size_t>(i)] = shape[i];
    holder->strides[static_cast<size_t>(i)] = stride;
    stride *= shape[i];
  }
  DLTensor& t = holder->managed.dl_tensor;
  t.data = tensor.raw();
  t.device = {tensor.device().is_cpu() ? kDLCPU : kDLCUDA, tensor.device().index};
  t.ndim = shape.size();
  t.dtype = type;
  t.shape = holder->shape.data();
  t.strides = holder->strides.data();
  holder->managed.manager_ctx = holder.get();
  holder->managed.deleter = [](DLManagedTensor* self) {
    delete static_cast<Export*>(self->manager_ctx);
  };
  return &holder.release()->managed;
}

Tensor from_dlpack(DLManagedTensor* managed, std::optional<DType> as) {
  expect(managed != nullptr, "DLPack tensor is null");
  ManagedPtr guard(managed, release);
  const DLTensor& t = managed->dl_tensor;
  const DType dtype = from_dl_type(t.dtype);
  const Device device = from_dl_device(t.device);
  expect(t.ndim >= 0 && t.ndim <= Shape::kMaxDims, [&] {
    return fmt::format("DLPack tensor has {} dimensions, expected at most {}", t.ndim,
                       Shape::kMaxDims);
  });
  expect_row_major(t);
  const Shape shape(std::span<const int64_t>(t.shape, static_cast<size_t>(t.ndim)));
  void* data = static_cast<std::byte*>(t.data) + t.byte_offset;
  std::shared_ptr<void> owner(guard.release(),
                              [](void* p) { release(static_cast<DLManagedTensor*>(p)); });
  Tensor tensor = Tensor::share(std::move(owner), data, shape, dtype, device);
  if (as && *as != dtype) {
    expect_dtype(dtype, DType::kU8, "DLPack tensor to be reinterpreted");
    tensor = tensor.view_as(*as);
  }
  return tensor;
}

}  // namespace moebius
