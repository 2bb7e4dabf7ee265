// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "c_api/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "c_api/structs.h"
#include "core/dlpack_abi.h"
#include "moebius/dlpack.h"

namespace moebius::c_api {

namespace {

// The numbers in moebius_c.h are those of the C++ enumerations.
static_assert(MOEBIUS_F32 == static_cast<int>(DType::kF32));
static_assert(MOEBIUS_BOOL == static_cast<int>(DType::kBool));
static_assert(MOEBIUS_E8M0 == static_cast<int>(DType::kE8M0) && MOEBIUS_E8M0 + 1 == kNumDTypes);
static_assert(MOEBIUS_FP8 == static_cast<int>(QuantFormat::kFp8) + 1);
static_assert(MOEBIUS_NVFP4 == static_cast<int>(QuantFormat::kNvfp4) + 1);

bool is_contiguous(const moebius_tensor& tensor) {
  const int64_t* strides = tensor.strides;
  if (std::all_of(strides, strides + tensor.num_dims, [](int64_t s) { return s == 0; })) {
    return true;
  }
  int64_t expected = 1;
  for (int i = tensor.num_dims - 1; i >= 0; --i) {
    if (tensor.shape[i] > 1 && strides[i] != expected) {
      return false;
    }
    expected *= tensor.shape[i];
  }
  return true;
}

Tensor copy_of_strided(const moebius_tensor& tensor,
                       DType dtype,
                       Device device,
                       const Stream& stream) {
  std::array<int64_t, Shape::kMaxDims> shape{};
  std::array<int64_t, Shape::kMaxDims> strides{};
  const int pack = pack_factor(dtype);  // DLPack counts vectors that fill whole bytes
  for (int i = 0; i < tensor.num_dims; ++i) {
    const bool is_last = i == tensor.num_dims - 1;
    expect_multiple_of(is_last ? tensor.shape[i] : tensor.strides[i], pack,
                       is_last ? "last dimension of a packed type" : "stride of a packed type");
    shape[static_cast<size_t>(i)] = is_last ? tensor.shape[i] / pack : tensor.shape[i];
    strides[static_cast<size_t>(i)] = is_last ? tensor.strides[i] : tensor.strides[i] / pack;
  }
  // It may be released after the call, in the order of the stream; the memory is only borrowed.
  auto view = std::make_unique<DLManagedTensorVersioned>();
  view->version = dlpack::kVersion;
  view->deleter = [](DLManagedTensorVersioned* self) { delete self; };
  view->dl_tensor = {.data = tensor.data,
                     .device = {device.is_cuda() ? kDLCUDA : kDLCPU, device.index},
                     .ndim = tensor.num_dims,
                     .dtype = dlpack::to_dl_type(dtype),
                     .shape = shape.data(),
                     .strides = strides.data(),
                     .byte_offset = 0};
  DLPackImport import;
  if (device.is_cuda()) {
    import.stream = stream;
  }
  return from_dlpack(view.release(), import);
}

}  // namespace

DType read_dtype(int32_t dtype, std::string_view what) {
  expect(dtype >= 0 && dtype < kNumDTypes, [&] {
    return fmt::format("dtype of {} is {}, expected 0 to {}", what, dtype, kNumDTypes - 1);
  });
  return static_cast<DType>(dtype);
}

Device read_device(moebius_device device, std::string_view owner) {
  // Formatted only for a failure, because each call reads tensors.
  const auto name = [&] {
    return owner.empty() ? std::string("device") : fmt::format("device of {}", owner);
  };
  if (device.type == MOEBIUS_CUDA) {
    return Device::cuda(read_cuda_index(device.index));
  }
  expect(device.type == MOEBIUS_CPU, [&] {
    return fmt::format("{} is {}, expected 0 to {}", name(), device.type, MOEBIUS_CUDA);
  });
  expect(device.index == 0, [&] {
    return fmt::format("index of {}, which is the CPU, is {}, expected 0", name(), device.index);
  });
  return Device::cpu();
}

int read_cuda_index(int32_t index) {
  expect_ge(index, 0, "index of the GPU");
  return index;
}

moebius_device device_of(Device device) {
  return {device.is_cuda() ? MOEBIUS_CUDA : MOEBIUS_CPU, device.index};
}

QuantFormat read_format(int32_t format, std::string_view what) {
  expect_ge(format, MOEBIUS_FP8, what);
  return static_cast<QuantFormat>(read_choice(format, MOEBIUS_NVFP4, what) - MOEBIUS_FP8);
}

std::string read_text(const char* text, std::string_view what) {
  expect(text != nullptr, [&] { return fmt::format("{} is null, expected a text", what); });
  return text;
}

Tensor read_tensor(const moebius_tensor* given, std::string_view what, const Stream& stream) {
  const moebius_tensor tensor = read_struct(given, what);
  const DType dtype = read_dtype(tensor.dtype, what);
  const Device device = read_device(tensor.device, what);
  if (tensor.num_dims < 0 || tensor.num_dims > Shape::kMaxDims) {
    const std::string dims = fmt::format("num_dims of {}", what);
    expect_ge(tensor.num_dims, 0, dims);
    expect_le(tensor.num_dims, Shape::kMaxDims, dims);
  }
  expect((tensor.flags & ~uint32_t{MOEBIUS_READ_ONLY}) == 0, [&] {
    return fmt::format("flags of {} are {:#x}, expected 0 or MOEBIUS_READ_ONLY", what,
                       tensor.flags);
  });
  const Shape shape(std::span(tensor.shape, static_cast<size_t>(tensor.num_dims)));
  const int64_t num_elements = shape.numel();  // throws for more than an int64_t can count
  expect(tensor.data != nullptr || num_elements == 0, [&] {
    return fmt::format("data of {} is null, expected {} elements", what, num_elements);
  });
  if (num_elements > 0 && !is_contiguous(tensor)) {
    return copy_of_strided(tensor, dtype, device, stream);
  }
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  const int64_t alignment = pack_factor(dtype) > 1 ? 1 : bits(dtype) / 8;
  expect(address % static_cast<uintptr_t>(alignment) == 0, [&] {
    return fmt::format("address of {} is {:#x}, expected a multiple of {}", what, address,
                       alignment);
  });
  const Tensor result = Tensor::borrow(tensor.data, shape, dtype, device);
  return (tensor.flags & MOEBIUS_READ_ONLY) != 0 ? result.as_read_only() : result;
}

Tensor read_optional_tensor(const moebius_tensor* tensor,
                            std::string_view what,
                            const Stream& stream) {
  return tensor == nullptr ? Tensor() : read_tensor(tensor, what, stream);
}

void write_shape(moebius_tensor* out, const Shape& shape, DType dtype, Device device) {
  out->dtype = static_cast<int32_t>(dtype);
  out->device = device_of(device);
  out->num_dims = shape.size();
  int64_t stride = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    out->shape[i] = shape[i];
    out->strides[i] = std::exchange(stride, stride * shape[i]);
  }
}

void write_tensor(moebius_tensor* out, std::string_view what, const Tensor& tensor) {
  expect_struct(out, out == nullptr ? 0 : out->struct_size, sizeof(moebius_tensor), what);
  write_shape(out, tensor.shape(), tensor.dtype(), tensor.device());
  out->data = tensor.raw();
  out->flags = tensor.is_read_only() ? MOEBIUS_READ_ONLY : 0;
}

Event read_event(void* cuda_event, const Stream& stream) {
  if (cuda_event == nullptr) {
    return {};
  }
  expect(stream.device().is_cuda(), "previous_cuda_event is given, expected none on the CPU");
  return Event::wrap_cuda(cuda_event, stream.device().index);
}

int32_t read_choice(int32_t value, int32_t most, std::string_view what) {
  expect(value >= 0 && value <= most,
         [&] { return fmt::format("{} is {}, expected 0 to {}", what, value, most); });
  return value;
}

bool read_flag(int32_t value, std::string_view what) {
  return read_choice(value, 1, what) == 1;
}

int64_t read_num_experts(int64_t num_experts) {
  expect_le(num_experts, int64_t{1} << 20, "num_experts");
  return num_experts;
}

int read_num_ranks(int32_t num_ranks) {
  expect_ge(num_ranks, 1, "num_ranks");
  expect_le(num_ranks, 1024, "num_ranks");
  return num_ranks;
}

ExpertPlacement read_placement(const moebius_placement* given, int64_t num_experts, int num_ranks) {
  if (given == nullptr) {
    return ExpertPlacement::linear(read_num_experts(num_experts), num_ranks);
  }
  const moebius_placement placement = read_struct(given, "placement");
  expect_ge(read_num_experts(placement.num_experts), 1, "num_experts of the placement");
  expect(placement.rank_of != nullptr, "rank_of of the placement is null");
  if (num_experts != 0) {
    expect_eq(placement.num_experts, num_experts, "num_experts of the placement");
  }
  return ExpertPlacement::from_ranks(
      std::vector<int>(placement.rank_of, placement.rank_of + placement.num_experts), num_ranks);
}

}  // namespace moebius::c_api
