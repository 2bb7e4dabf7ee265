// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tensor: a handle on a contiguous row-major array of up to 4 dimensions.
//
// A Tensor is cheap to copy; copies share the storage.  Storage is either shared (freed with its
// last handle) or borrowed (the lender keeps it alive).  Constness is the handle's, not the data's,
// as with std::shared_ptr.  A default-constructed Tensor is undefined and stands for "absent".
// Thread-safety: handles like std::shared_ptr; the data has none of its own.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "moebius/device.h"
#include "moebius/dtype.h"

namespace moebius {

class Stream;

class Shape {
 public:
  static constexpr int kMaxDims = 4;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);  // throws beyond 4 dimensions or on a negative one
  explicit Shape(std::span<const int64_t> dims);

  int size() const { return size_; }
  int64_t operator[](int i) const {
    assert(i >= 0 && i < size_);
    return dims_[static_cast<size_t>(i)];
  }
  int64_t back() const { return (*this)[size_ - 1]; }
  int64_t numel() const;  // 1 without dimensions; throws InvalidArgument on overflow
  bool operator==(const Shape&) const = default;

 private:
  std::array<int64_t, kMaxDims> dims_{};
  int size_ = 0;
};

std::string to_string(const Shape& shape);  // "[32, 7168]"

class Tensor {
 public:
  Tensor() = default;

  // Storage of its own, 256-byte aligned; `empty` leaves it uninitialised.  On CUDA the last handle
  // may go only when the work that uses the storage is done, and `zeros` returns when it is zero.
  // Throw InvalidArgument (a row of a packed type that is no whole number of bytes), Unsupported
  // (no such device in this build or machine), Error (out of memory, with the bytes; on a GPU its
  // CudaError).
  static Tensor empty(Shape shape, DType dtype, Device device = {});
  static Tensor zeros(Shape shape, DType dtype, Device device = {});
  // Memory of somebody else, who must keep it alive and may not move it.  This and share() throw
  // InvalidArgument: no pointer to some bytes, a row as above.
  static Tensor borrow(void* data, Shape shape, DType dtype, Device device = {});
  // Memory kept alive by `owner` (a file mapping, another library's tensor).
  static Tensor share(
      std::shared_ptr<void> owner, void* data, Shape shape, DType dtype, Device device = {});

  bool defined() const { return defined_; }
  explicit operator bool() const { return defined(); }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  const Shape& shape() const { return shape_; }
  int num_dims() const { return shape_.size(); }
  int64_t dim(int i) const { return shape_[i]; }
  int64_t numel() const { return shape_.numel(); }
  int64_t nbytes() const;
  bool is_borrowed() const { return defined() && owner_ == nullptr; }

  // The elements.  REQUIRES: holds<T>(dtype()) (checked in debug builds).
  template <typename T>
  T* data() const {
    assert(holds<std::remove_const_t<T>>(dtype_));
    return static_cast<T*>(data_);
  }
  std::byte* bytes() const { return static_cast<std::byte*>(data_); }
  void* raw() const { return data_; }

  // All of these but clone(), which throws as empty(), share the storage and throw InvalidArgument
  // naming shapes and bounds.
  // Rows [begin, end) of the first dimension; of packed types they begin at a whole byte.
  Tensor slice(int64_t begin, int64_t end) const;
  // Element i of the first dimension, without that dimension.
  Tensor operator[](int64_t i) const;
  // The same elements in another shape (equal numel; packed rows stay whole).
  Tensor view(Shape shape) const;
  // The same bytes as another type; the last dimension is scaled to the new element size.
  Tensor view_as(DType dtype) const;
  // The same bytes as another type and shape of equal nbytes.
  Tensor reinterpret(DType dtype, Shape shape) const;
  // A copy with storage of its own, on the same device; done on return.
  Tensor clone() const;

 private:
  std::shared_ptr<void> owner_;
  void* data_ = nullptr;
  Shape shape_;
  DType dtype_ = DType::kF32;
  Device device_;
  bool defined_ = false;
};

// Copies all bytes between tensors of equal dtype and shape that do not overlap.  With a GPU on
// either side it is enqueued on `stream`, one of that GPU; host memory must then stay as it is
// until the stream has done it.
void copy(const Tensor& from, const Tensor& to, const Stream& stream);
// The tensor itself where it is on the device already, else a copy.  From a GPU to the CPU: done on
// return; otherwise as copy().
Tensor to_device(const Tensor& tensor, Device device, const Stream& stream);

// Checks for public boundaries; `what` names the tensor: "w1 has shape [8, 96, 128], expected ...".
void expect_shape(const Tensor& tensor,
                  const Shape& expected,
                  std::string_view what,
                  Where where = Where::current());
void expect_dtype(const Tensor& tensor,
                  DType expected,
                  std::string_view what,
                  Where where = Where::current());
void expect_defined(const Tensor& tensor, std::string_view what, Where where = Where::current());

// One element as float (f32, f16, bf16, fp8, integers, e8m0, packed); for tests and references.
// REQUIRES: a CPU tensor (as for all that follow); 0 <= index < numel().
float get_float(const Tensor& tensor, int64_t index);
// Stores with the dtype's conversion (saturating for the 8-, 6- and 4-bit floats; integers round to
// nearest even and clamp).
void set_float(const Tensor& tensor, int64_t index, float value);
// A copy converted element by element through float.
Tensor convert(const Tensor& tensor, DType dtype);

}  // namespace moebius
