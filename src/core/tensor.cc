// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/tensor.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "core/allocate.h"
#include "core/cuda/runtime.h"
#include "core/deferred_release.h"
#include "core/ordered_lease.h"
#include "moebius/stream.h"

namespace moebius {

namespace {

// Here and below messages are formatted only for a failure, because a call on a GPU makes dozens of
// tensors.
int64_t checked_nbytes(const Shape& shape, DType dtype) {
  const int width = bits(dtype);
  if (width < 8 && shape.size() > 0 && shape.back() % pack_factor(dtype) != 0) {
    expect_multiple_of(shape.back(), pack_factor(dtype),
                       fmt::format("last dimension of a {} tensor", name(dtype)));
  }
  const int64_t numel = shape.numel();
  if (numel > std::numeric_limits<int64_t>::max() / width) {
    expect(false, fmt::format("shape {} has too many elements", to_string(shape)));
  }
  return numel * width / 8;
}

}  // namespace

void Shape::refuse(std::span<const int64_t> dims) {
  expect_le(static_cast<int64_t>(dims.size()), kMaxDims, "number of dimensions");
  for (size_t i = 0; i < dims.size(); ++i) {
    expect_ge(dims[i], 0, fmt::format("dimension {}", i));
  }
  std::abort();  // not reached
}

void Shape::refuse_numel() const {
  throw InvalidArgument(fmt::format("shape {} has too many elements", to_string(*this)));
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  }
  return text + "]";
}

Tensor Tensor::empty(Shape shape, DType dtype, Device device) {
  auto storage = allocate(checked_nbytes(shape, dtype), device);
  void* data = storage.get();
  Tensor result = share(std::move(storage), data, shape, dtype, device);
  result.is_allocated_ = true;
  return result;
}

Tensor Tensor::zeros(Shape shape, DType dtype, Device device) {
  Tensor result = empty(shape, dtype, device);
  if (device.is_cuda()) {
    cuda::fill_zero_now(result.raw(), result.nbytes(), device.index);
  } else {
    std::memset(result.raw(), 0, static_cast<size_t>(result.nbytes()));
  }
  return result;
}

Tensor Tensor::borrow(void* data, Shape shape, DType dtype, Device device) {
  return share(nullptr, data, shape, dtype, device);
}

Tensor Tensor::share(
    std::shared_ptr<void> owner, void* data, Shape shape, DType dtype, Device device) {
  const int64_t nbytes = checked_nbytes(shape, dtype);
  if (data == nullptr && nbytes > 0) {
    expect(false, fmt::format("a tensor of {} bytes has no data pointer", nbytes));
  }
  Tensor result;
  result.owner_ = std::move(owner);
  result.data_ = data;
  result.shape_ = shape;
  result.dtype_ = dtype;
  result.device_ = device;
  result.defined_ = true;
  return result;
}

int64_t Tensor::nbytes() const {
  return defined_ ? numel() * bits(dtype_) / 8 : 0;
}

Tensor Tensor::as_read_only(const char* why) const {
  Tensor result = *this;
  result.why_read_only_ = defined() ? why : nullptr;
  return result;
}

void Tensor::record_stream(const Stream& stream) {
  expect_defined(*this, "the tensor of a recorded stream");
  if (nbytes() == 0) {
    return;  // there is nothing that work could use
  }
  expect(!is_borrowed(), [&] {
    return fmt::format("a borrowed tensor {} records no stream: its lender keeps the storage",
                       to_string(shape_));
  });
  if (stream.device().is_cpu()) {
    return;  // its work is done when a call returns
  }
  // One owner in another, where several streams are recorded.
  std::shared_ptr<void> noted = OrderedLease::note(owner_, stream);
  owner_ = noted != nullptr ? std::move(noted) : released_after(std::move(owner_), stream);
}

Tensor Tensor::slice(int64_t begin, int64_t end) const {
  expect_ge(num_dims(), 1, "dimensions of a sliced tensor");
  if (begin < 0 || begin > end || end > dim(0)) {
    expect(false, fmt::format("slice [{}, {}) is outside dimension 0 of {}", begin, end,
                              to_string(shape_)));
  }
  std::array<int64_t, Shape::kMaxDims> dims{};
  int64_t inner = 1;
  for (int i = 0; i < num_dims(); ++i) {
    dims[static_cast<size_t>(i)] = dim(i);
    inner *= i == 0 ? 1 : dim(i);
  }
  expect_multiple_of(begin * inner, pack_factor(dtype_), "first element of a packed slice");
  dims[0] = end - begin;
  Tensor result = *this;
  result.shape_ = Shape(std::span<const int64_t>(dims.data(), static_cast<size_t>(num_dims())));
  if (data_ != nullptr) {
    result.data_ = bytes() + begin * inner * bits(dtype_) / 8;
  }
  return result;
}

Tensor Tensor::operator[](int64_t i) const {
  Tensor row = slice(i, i + 1);
  std::array<int64_t, Shape::kMaxDims> dims{};
  for (int d = 1; d < num_dims(); ++d) {
    dims[static_cast<size_t>(d - 1)] = dim(d);
  }
  row.shape_ = Shape(std::span<const int64_t>(dims.data(), static_cast<size_t>(num_dims() - 1)));
  return row;
}

Tensor Tensor::view(Shape shape) const {
  if (shape.numel() != numel()) {
    expect(false, fmt::format("cannot view {} as {}", to_string(shape_), to_string(shape)));
  }
  checked_nbytes(shape, dtype_);
  Tensor result = *this;
  result.shape_ = shape;
  return result;
}

Tensor Tensor::view_as(DType dtype) const {
  expect_ge(num_dims(), 1, "dimensions of a tensor viewed as another type");
  std::array<int64_t, Shape::kMaxDims> dims{};
  for (int i = 0; i < num_dims(); ++i) {
    dims[static_cast<size_t>(i)] = dim(i);
  }
  const int64_t row_bits = shape_.back() * bits(dtype_);
  expect_multiple_of(row_bits, bits(dtype), "bits of a row viewed as another type");
  dims[static_cast<size_t>(num_dims() - 1)] = row_bits / bits(dtype);
  return reinterpret(dtype,
                     Shape(std::span<const int64_t>(dims.data(), static_cast<size_t>(num_dims()))));
}

Tensor Tensor::reinterpret(DType dtype, Shape shape) const {
  if (const int64_t bytes = checked_nbytes(shape, dtype); bytes != nbytes()) {
    expect_eq(
        bytes, nbytes(),
        fmt::format("bytes of {} as {} {}", to_string(shape_), name(dtype), to_string(shape)));
  }
  Tensor result = *this;
  result.dtype_ = dtype;
  result.shape_ = shape;
  return result;
}

Tensor Tensor::clone() const {
  Tensor result = empty(shape_, dtype_, device_);
  if (device_.is_cuda()) {
    cuda::copy_now(result.raw(), data_, nbytes(), device_.index);
  } else if (nbytes() > 0) {
    std::memcpy(result.raw(), data_, static_cast<size_t>(nbytes()));
  }
  return result;
}

void copy(const Tensor& from, const Tensor& to, const Stream& stream) {
  expect_defined(from, "from");
  expect_dtype(to, from.dtype(), "to");
  expect_shape(to, from.shape(), "to");
  expect_writable(to, "to");
  if (from.device().is_cpu() && to.device().is_cpu()) {
    stream.synchronize();  // the stream may still write to `from`
    if (from.nbytes() > 0) {
      std::memcpy(to.raw(), from.raw(), static_cast<size_t>(from.nbytes()));
    }
    return;
  }
  const Device at = stream.device();
  expect(at.is_cuda() && (at == from.device() || at == to.device()), [&] {
    return fmt::format(
        "a copy from {} to {} needs a stream of one of them that is a GPU, not of {}",
        to_string(from.device()), to_string(to.device()), to_string(at));
  });
  if (from.device().is_cuda() && to.device().is_cuda()) {
    cuda::copy_between(to.raw(), to.device().index, from.raw(), from.device().index, from.nbytes(),
                       stream.native_handle(), at.index);
  } else {
    cuda::copy(to.raw(), from.raw(), from.nbytes(), stream.native_handle(), at.index);
  }
}

Tensor to_device(const Tensor& tensor, Device device, const Stream& stream) {
  expect_defined(tensor, "tensor");
  if (tensor.device() == device) {
    return tensor;
  }
  Tensor result = Tensor::empty(tensor.shape(), tensor.dtype(), device);
  if (device.is_cpu()) {
    // Why it waits before the copy: a copy to pageable memory waits inside the driver and may hold
    // up other threads there, although this stream's kernels may be waiting for the ranks of these
    // threads.
    stream.synchronize();
  }
  copy(tensor, result, stream);
  if (device.is_cpu()) {
    stream.synchronize();
  }
  return result;
}

void expect_shape(const Tensor& tensor, const Shape& expected, std::string_view what, Where where) {
  expect_defined(tensor, what, where);
  if (tensor.shape() != expected) {
    expect_eq(to_string(tensor.shape()), to_string(expected), fmt::format("shape of {}", what),
              where);
  }
}

void expect_dtype(const Tensor& tensor, DType expected, std::string_view what, Where where) {
  expect_defined(tensor, what, where);
  expect_dtype(tensor.dtype(), expected, what, where);
}

void expect_defined(const Tensor& tensor, std::string_view what, Where where) {
  if (!tensor.defined()) {
    expect(false, fmt::format("{} is missing", what), where);
  }
}

void expect_writable(const Tensor& tensor, std::string_view what, Where where) {
  expect(
      !tensor.is_read_only(),
      [&] {
        return fmt::format("{} {} is {}", what, to_string(tensor.shape()), tensor.why_read_only());
      },
      where);
}

}  // namespace moebius
