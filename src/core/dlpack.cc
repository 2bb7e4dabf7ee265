// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/dlpack.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "core/cuda/runtime.h"
#include "core/deferred_release.h"
#include "core/dlpack_abi.h"

namespace moebius {

namespace {

struct Known {
  DType dtype;
  DLDataTypeCode code;
};

constexpr Known kKnown[] = {
    {DType::kF32, kDLFloat},
    {DType::kF16, kDLFloat},
    {DType::kBF16, kDLBfloat},
    {DType::kF8E4M3, kDLFloat8_e4m3fn},
    {DType::kF8E5M2, kDLFloat8_e5m2},
    {DType::kI8, kDLInt},
    {DType::kU8, kDLUInt},
    {DType::kI32, kDLInt},
    {DType::kI64, kDLInt},
    {DType::kBool, kDLBool},
    {DType::kF4E2M1, kDLFloat4_e2m1fn},
    {DType::kU4, kDLUInt},
    {DType::kF6E3M2, kDLFloat6_e3m2fn},
    {DType::kF6E2M3, kDLFloat6_e2m3fn},
    {DType::kE8M0, kDLFloat8_e8m0fnu},
};
static_assert(std::size(kKnown) == kNumDTypes);

}  // namespace

DLDataType dlpack::to_dl_type(DType dtype) {
  const auto* known = std::find_if(std::begin(kKnown), std::end(kKnown),
                                   [&](const Known& k) { return k.dtype == dtype; });
  return {known->code, static_cast<uint8_t>(bits(dtype)),
          static_cast<uint16_t>(pack_factor(dtype))};
}

namespace {

using dlpack::to_dl_type;

// As "float64", "float8_e4m3fnuz" or "uint16 with 4 lanes".
std::string describe(DLDataType type) {
  constexpr std::array<std::string_view, 18> kNames = {"int",
                                                       "uint",
                                                       "float",
                                                       "opaque handle",
                                                       "bfloat",
                                                       "complex",
                                                       "bool",
                                                       "float8_e3m4",
                                                       "float8_e4m3",
                                                       "float8_e4m3b11fnuz",
                                                       "float8_e4m3fn",
                                                       "float8_e4m3fnuz",
                                                       "float8_e5m2",
                                                       "float8_e5m2fnuz",
                                                       "float8_e8m0fnu",
                                                       "float6_e2m3fn",
                                                       "float6_e3m2fn",
                                                       "float4_e2m1fn"};
  std::string text = type.code < kNames.size() ? std::string(kNames[type.code])
                                               : fmt::format("code {}, bits ", type.code);
  if (type.code < kDLFloat8_e3m4 || type.code >= kNames.size()) {
    text += fmt::format("{}", type.bits);
  }
  return type.lanes == 1 ? text : text + fmt::format(" with {} lanes", type.lanes);
}

DType from_dl_type(DLDataType type) {
  for (const Known& known : kKnown) {
    if (type.code == known.code && type.bits == bits(known.dtype) &&
        (type.lanes == 1 || type.lanes == pack_factor(known.dtype))) {
      return known.dtype;
    }
  }
  throw InvalidArgument(
      fmt::format("DLPack type {} has no counterpart here, expected f32, f16, bf16, e4m3fn, e5m2, "
                  "i8, u8, i32, i64, bool, e8m0, or packed e2m1, e3m2, e2m3 or u4",
                  describe(type)));
}

Device from_dl_device(DLDevice device) {
  switch (device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
      return Device::cpu();
    case kDLCUDA:
    case kDLCUDAManaged:
      return Device::cuda(device.device_id);
  }
  throw InvalidArgument(fmt::format("DLPack device type {} is neither CPU nor CUDA",
                                    static_cast<int>(device.device_type)));
}

template <typename Managed>
struct Export {
  Tensor tensor;  // keeps the storage alive
  Managed managed{};
  std::array<int64_t, Shape::kMaxDims> shape{};
  std::array<int64_t, Shape::kMaxDims> strides{};
};

// Shapes and strides count vectors that fill whole bytes.
template <typename Managed>
std::unique_ptr<Export<Managed>> make_export(const Tensor& tensor) {
  expect_defined(tensor, "exported tensor");
  const DLDataType type = to_dl_type(tensor.dtype());
  expect(type.lanes == 1 || tensor.num_dims() > 0,
         "an exported tensor of a packed type has no dimensions");
  auto holder = std::make_unique<Export<Managed>>();
  holder->tensor = tensor;
  const int num_dims = tensor.num_dims();
  int64_t stride = 1;
  for (int i = num_dims - 1; i >= 0; --i) {
    const int64_t dim = i == num_dims - 1 ? tensor.dim(i) / type.lanes : tensor.dim(i);
    holder->shape[static_cast<size_t>(i)] = dim;
    holder->strides[static_cast<size_t>(i)] = stride;
    stride *= dim;
  }
  DLTensor& t = holder->managed.dl_tensor;
  t.data = tensor.raw();
  t.device = {tensor.device().is_cpu() ? kDLCPU : kDLCUDA, tensor.device().index};
  t.ndim = num_dims;
  t.dtype = type;
  t.shape = holder->shape.data();
  t.strides = holder->strides.data();
  holder->managed.manager_ctx = holder.get();
  holder->managed.deleter = [](Managed* self) {
    delete static_cast<Export<Managed>*>(self->manager_ctx);
  };
  return holder;
}

// A foreign tensor in units of whole bytes: an element, or the elements of a packed type that share
// bytes.
struct Units {
  Shape shape;  // of elements
  int num_dims = 0;
  std::array<int64_t, Shape::kMaxDims> dims{};
  std::array<int64_t, Shape::kMaxDims> strides{};
  int64_t bytes = 1;  // of a unit
  int64_t num_units = 1;

  bool is_contiguous() const {
    // Strides of a tensor without elements mean nothing: torch has (H, H, 1) for [L, 0, H].
    int64_t expected = 1;
    for (int i = num_dims - 1; i >= 0 && num_units > 0; --i) {
      const auto at = static_cast<size_t>(i);
      if (dims[at] > 1 && strides[at] != expected) {
        return false;
      }
      expected *= dims[at];
    }
    return true;
  }
  std::string strides_text() const {
    return to_string(
        Shape(std::span<const int64_t>(strides.data(), static_cast<size_t>(num_dims))));
  }
};

constexpr int64_t kMostUnitBytes = 8;

Units units_of(const DLTensor& t, DType dtype) {
  expect(t.ndim >= 0 && t.ndim <= Shape::kMaxDims, [&] {
    return fmt::format("DLPack tensor has {} dimensions, expected at most {}", t.ndim,
                       Shape::kMaxDims);
  });
  const int pack = pack_factor(dtype);
  const bool counts_vectors = t.dtype.lanes > 1;
  expect(pack == 1 || t.ndim > 0, "a DLPack tensor of a packed type has no dimensions");
  Units units;
  units.num_dims = t.ndim;
  units.bytes = int64_t{bits(dtype)} * pack / 8;
  std::array<int64_t, Shape::kMaxDims> elements{};
  int64_t row_major = 1;
  int64_t most_bytes = kMostUnitBytes;  // with dimensions of 0 counted as 1
  for (int i = t.ndim - 1; i >= 0; --i) {
    const auto at = static_cast<size_t>(i);
    const bool is_last = i == t.ndim - 1;
    const int64_t dim = t.shape[i];
    const int64_t stride = t.strides == nullptr ? row_major : t.strides[i];
    expect_ge(dim, 0, "DLPack dimension");
    expect_ge(stride, 0, "DLPack stride");
    int64_t reach = 0;
    expect(!__builtin_mul_overflow(most_bytes, std::max<int64_t>(dim, 1), &most_bytes) &&
               (dim <= 1 || (!__builtin_mul_overflow(stride, dim, &reach) &&
                             reach <= std::numeric_limits<int64_t>::max() / kMostUnitBytes)),
           [&] {
             return fmt::format("DLPack dimension of {} elements, {} apart, is larger than memory",
                                dim, stride);
           });
    row_major *= dim;
    units.dims[at] = dim;
    units.strides[at] = dim > 1 ? stride : 0;  // it says nothing, and may be any number
    elements[at] = dim;
    if (pack > 1 && counts_vectors) {
      elements[at] = is_last ? dim * pack : dim;
    } else if (pack > 1 && is_last) {
      expect_multiple_of(dim, pack, "last DLPack dimension of a packed type");
      expect(stride == 1 || dim <= 1, [&] {
        return fmt::format("last DLPack stride of a packed type is {}, expected 1", stride);
      });
      units.dims[at] = dim / pack;
      units.strides[at] = 1;
    } else if (pack > 1) {
      if (dim > 1) {
        expect_multiple_of(stride, pack, "DLPack stride of a packed type");
      }
      units.strides[at] = stride / pack;
    }
    units.num_units *= units.dims[at];
  }
  units.shape = Shape(std::span<const int64_t>(elements.data(), static_cast<size_t>(t.ndim)));
  (void)units.shape.numel();  // throws on overflow
  return units;
}

// Copies the units to contiguous memory, in runs that are contiguous on both sides.
class StridedCopy {
 public:
  StridedCopy(const Units& units, const std::byte* from, const Tensor& to, const Stream* stream)
      : units_(units), from_(from), to_(to.bytes()), stream_(stream) {
    // Dimensions [outer_, num_dims) are one run.
    run_bytes_ = units.bytes;
    outer_ = units.num_dims;
    while (outer_ > 0) {
      const auto at = static_cast<size_t>(outer_ - 1);
      if (units.dims[at] > 1 && units.strides[at] * units.bytes != run_bytes_) {
        break;
      }
      run_bytes_ *= units.dims[at];
      --outer_;
    }
  }

  void run() { copy_dims(0, 0); }

 private:
  void copy_dims(int dim, int64_t offset) {
    if (dim == outer_) {
      copy_runs(from_ + offset, 0, 1);
      return;
    }
    const auto at = static_cast<size_t>(dim);
    const int64_t step = units_.strides[at] * units_.bytes;
    if (dim == outer_ - 1) {
      copy_runs(from_ + offset, step, units_.dims[at]);
      return;
    }
    for (int64_t i = 0; i < units_.dims[at]; ++i) {
      copy_dims(dim + 1, offset + i * step);
    }
  }

  void copy_runs(const std::byte* from, int64_t step, int64_t count) {
    if (stream_ != nullptr) {
      cuda::copy_rows(to_, from, step, run_bytes_, count, stream_->native_handle(),
                      stream_->device().index);
    } else {
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(to_ + i * run_bytes_, from + i * step, static_cast<size_t>(run_bytes_));
      }
    }
    to_ += count * run_bytes_;
  }

  const Units& units_;
  const std::byte* from_;
  std::byte* to_;
  const Stream* stream_;  // of a GPU, or null
  int outer_ = 0;
  int64_t run_bytes_ = 0;
};

Tensor copied(const Units& units,
              const std::byte* from,
              DType dtype,
              Device device,
              std::shared_ptr<void> owner,
              const std::optional<Stream>& given) {
  const Tensor to = Tensor::empty(units.shape, dtype, device);
  if (device.is_cpu()) {
    if (units.num_units > 0) {
      StridedCopy(units, from, to, nullptr).run();
    }
    return to;
  }
  const Stream stream = given ? *given : Stream::cuda(device.index);
  expect(stream.device() == device, [&] {
    return fmt::format("the stream of the import is of {}, the DLPack tensor on {}",
                       to_string(stream.device()), to_string(device));
  });
  if (units.num_units > 0) {
    StridedCopy(units, from, to, &stream).run();
  }
  if (given) {
    release_after(std::move(owner), stream);
  } else {
    stream.synchronize();
  }
  return to;
}

Tensor import_tensor(const DLTensor& t,
                     std::shared_ptr<void> owner,
                     bool is_read_only,
                     const DLPackImport& import) {
  const DType dtype = from_dl_type(t.dtype);
  const Device device = from_dl_device(t.device);
  const Units units = units_of(t, dtype);
  auto* data = t.data == nullptr ? nullptr : static_cast<std::byte*>(t.data) + t.byte_offset;
  expect(data != nullptr || units.num_units == 0, [&] {
    return fmt::format("DLPack tensor {} has no data pointer", to_string(units.shape));
  });
  const int64_t alignment = pack_factor(dtype) > 1 ? 1 : units.bytes;
  const auto address = reinterpret_cast<uintptr_t>(data);
  const bool fits = units.is_contiguous() && static_cast<int64_t>(address) % alignment == 0;
  if (!fits && import.copy == DLPackCopy::kNever) {
    expect(units.is_contiguous(), [&] {
      return fmt::format("DLPack strides of {} are {}, expected row-major ones without a copy",
                         to_string(units.shape), units.strides_text());
    });
    expect(false, fmt::format("DLPack address {:#x} is no multiple of {}, which {} needs", address,
                              alignment, name(dtype)));
  }
  const char* why_read_only = is_read_only ? "read-only" : nullptr;
  Tensor tensor;
  if (fits && import.copy != DLPackCopy::kAlways) {
    tensor = Tensor::share(std::move(owner), data, units.shape, dtype, device);
  } else {
    tensor = copied(units, data, dtype, device, std::move(owner), import.stream);
    why_read_only = import.copy == DLPackCopy::kAlways ? nullptr
                    : units.is_contiguous()
                        ? "misaligned, expected at a multiple of the element's size"
                        : "not contiguous, expected contiguous";
  }
  if (import.as && *import.as != dtype) {
    expect_dtype(dtype, DType::kU8, "DLPack tensor to be reinterpreted");
    tensor = tensor.view_as(*import.as);
  }
  return why_read_only != nullptr ? tensor.as_read_only(why_read_only) : tensor;
}

// Calls the deleter with the last handle.
template <typename Managed>
std::shared_ptr<void> own(Managed* managed) {
  expect(managed != nullptr, "DLPack tensor is null");
  return {managed, [](void* p) {
            auto* const self = static_cast<Managed*>(p);
            if (self->deleter != nullptr) {
              self->deleter(self);
            }
          }};
}

}  // namespace

DLManagedTensor* to_dlpack(const Tensor& tensor) {
  expect(!tensor.is_read_only(), [&] {
    return fmt::format("tensor {} is read-only, which only to_dlpack_versioned() can say",
                       to_string(tensor.shape()));
  });
  return &make_export<DLManagedTensor>(tensor).release()->managed;
}

DLManagedTensorVersioned* to_dlpack_versioned(const Tensor& tensor, bool is_copied) {
  auto holder = make_export<DLManagedTensorVersioned>(tensor);
  holder->managed.version = dlpack::kVersion;
  holder->managed.flags =
      (tensor.is_read_only() ? dlpack::kReadOnly : 0) | (is_copied ? dlpack::kIsCopied : 0);
  return &holder.release()->managed;
}

Tensor from_dlpack(DLManagedTensor* managed, const DLPackImport& import) {
  auto owner = own(managed);
  return import_tensor(managed->dl_tensor, std::move(owner), false, import);
}

Tensor from_dlpack(DLManagedTensorVersioned* managed, const DLPackImport& import) {
  auto owner = own(managed);
  // Of another layout only the deleter may be called.
  expect_eq(managed->version.major, dlpack::kVersion.major, "major version of a DLPack tensor");
  expect((managed->flags & dlpack::kIsSubbytePadded) == 0 || managed->dl_tensor.dtype.bits >= 8,
         "elements of a DLPack tensor take a byte each, expected packed ones");
  return import_tensor(managed->dl_tensor, std::move(owner),
                       (managed->flags & dlpack::kReadOnly) != 0, import);
}

}  // namespace moebius
