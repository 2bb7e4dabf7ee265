// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Tensor: a handle on a contiguous row-major array of up to 4 dimensions.
//
// A Tensor is cheap to copy, and copies share the storage.  Storage is either shared (it is freed
// with its last handle) or borrowed (the lender keeps it alive).  A const Tensor is a constant
// handle on data that may change, as with std::shared_ptr.  A default-constructed Tensor is
// undefined and stands for "absent".  A handle may be read-only, and so are the handles made from
// it: calls refuse it as an output.
// Thread-safety: handles are as safe as std::shared_ptr; the data has no protection.
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

#include "moebius/api.h"
#include "moebius/device.h"
#include "moebius/dtype.h"
#include "moebius/error.h"

namespace moebius MOEBIUS_API {

class Stream;

class Shape {
 public:
  static constexpr int kMaxDims = 4;

  Shape() = default;
  // These two throw InvalidArgument beyond 4 dimensions or on a negative one.
  Shape(std::initializer_list<int64_t> dims)
      : Shape(std::span<const int64_t>(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const int64_t> dims) : size_(static_cast<int>(dims.size())) {
    bool fits = size_ <= kMaxDims;
    for (size_t i = 0; fits && i < dims.size(); ++i) {
      fits = dims[i] >= 0;
      dims_[i] = dims[i];
    }
    if (!fits) [[unlikely]] {
      refuse(dims);
    }
  }

  int size() const { return size_; }
  int64_t operator[](int i) const {
    assert(i >= 0 && i < size_);
    return dims_[static_cast<size_t>(i)];
  }
  int64_t back() const { return (*this)[size_ - 1]; }
  // 1 without dimensions; throws InvalidArgument on overflow.
  int64_t numel() const {
    int64_t product = 1;
    bool overflow = false;
    for (int i = 0; i < size_; ++i) {
      overflow |= __builtin_mul_overflow(product, (*this)[i], &product);
    }
    if (overflow) [[unlikely]] {
      refuse_numel();
    }
    return product;
  }
  bool operator==(const Shape& other) const {
    bool same = size_ == other.size_;
    for (size_t i = 0; i < kMaxDims; ++i) {
      same &= dims_[i] == other.dims_[i];
    }
    return same;
  }

 private:
  [[noreturn]] static void refuse(std::span<const int64_t> dims);
  [[noreturn]] void refuse_numel() const;

  std::array<int64_t, kMaxDims> dims_{};  // zeros from size_ on
  int size_ = 0;
};

std::string to_string(const Shape& shape);  // "[32, 7168]"

class Tensor {
 public:
  Tensor() = default;

  // A tensor with storage of its own from the device's allocator (allocator.h), 256-byte aligned;
  // `empty` leaves it uninitialised.  On CUDA the last handle may be destroyed only when the work
  // that uses the storage is done, unless record_stream() has named the streams of that work, and
  // `zeros` returns when the storage is zero.
  // Both throw InvalidArgument (a row of a packed type is no whole number of bytes), Unsupported
  // (this build or machine has no such device) and OutOfMemory.
  static Tensor empty(Shape shape, DType dtype, Device device = {});
  static Tensor zeros(Shape shape, DType dtype, Device device = {});
  // Memory of a lender, who must keep it alive and in place.  borrow() and share() throw
  // InvalidArgument for a null pointer to more than 0 bytes and for a row as above.
  static Tensor borrow(void* data, Shape shape, DType dtype, Device device = {});
  // Memory that `owner` keeps alive, such as a file mapping or another library's tensor.
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
  bool is_read_only() const { return why_read_only_ != nullptr; }
  // Returns what expect_writable() says of the tensor, or null where it is writable.
  const char* why_read_only() const { return why_read_only_; }
  Tensor as_read_only(const char* why = "read-only") const;  // the same storage; a literal

  // Lets this handle, and those that are copied or made from it afterwards, be dropped at any time,
  // for instance by a garbage collector, although the stream still uses the storage: the storage is
  // released once the work that the stream has when the last of them is dropped is done.  No host
  // waits; the release happens when memory is next allocated, trimmed or released.  Several streams
  // may be recorded.  It works for all storage that has an owner, and does nothing for a CPU
  // stream.  REQUIRES: the stream is not being captured when the last handle is dropped, and a
  // wrapped stream lives until then.  Throws InvalidArgument for a borrowed or undefined tensor.
  void record_stream(const Stream& stream);
  // Whether nobody else can reach the elements: empty(), zeros() or clone() made the storage, and
  // this is its only handle.
  bool is_exclusive() const { return is_allocated_ && owner_.use_count() == 1; }

  // The elements.  REQUIRES: holds<T>(dtype()), which debug builds check.
  template <typename T>
  T* data() const {
    assert(holds<std::remove_const_t<T>>(dtype_));
    return static_cast<T*>(data_);
  }
  std::byte* bytes() const { return static_cast<std::byte*>(data_); }
  void* raw() const { return data_; }

  // The following functions return handles on the same storage, except for clone().  They throw
  // InvalidArgument, which names shapes and bounds; clone() throws as empty() does.
  // Rows [begin, end) of the first dimension; rows of packed types begin at a whole byte.
  Tensor slice(int64_t begin, int64_t end) const;
  // Element i of the first dimension, without that dimension.
  Tensor operator[](int64_t i) const;
  // The same elements in another shape of equal numel, whose packed rows are whole bytes.
  Tensor view(Shape shape) const;
  // The same bytes as another type; the last dimension is scaled to the new element size.
  Tensor view_as(DType dtype) const;
  // The same bytes as another type and shape of equal nbytes.
  Tensor reinterpret(DType dtype, Shape shape) const;
  // A copy with storage of its own on the same device; it is complete when the call returns.
  Tensor clone() const;

 private:
  std::shared_ptr<void> owner_;
  void* data_ = nullptr;
  Shape shape_;
  DType dtype_ = DType::kF32;
  Device device_;
  bool defined_ = false;
  const char* why_read_only_ = nullptr;  // null: it is writable
  bool is_allocated_ = false;            // the storage comes from empty()
};

// Copies all bytes between tensors of equal dtype and shape that do not overlap.  When either side
// is on a GPU, the copy is enqueued on `stream`, a stream of that GPU, and host memory must stay
// unchanged until the stream has done the copy.  Throws InvalidArgument, also for a read-only `to`,
// and CudaError.
void copy(const Tensor& from, const Tensor& to, const Stream& stream);
// Returns the tensor itself when it is on the device already, else a copy.  A copy from a GPU to
// the CPU is complete when the call returns; other copies are enqueued as by copy().
Tensor to_device(const Tensor& tensor, Device device, const Stream& stream);

// Checks for public boundaries.  They throw InvalidArgument; `what` names the tensor, as in "shape
// of w1 is [8, 96, 128], expected ...".
void expect_shape(const Tensor& tensor,
                  const Shape& expected,
                  std::string_view what,
                  Where where = Where::current());
void expect_dtype(const Tensor& tensor,
                  DType expected,
                  std::string_view what,
                  Where where = Where::current());
void expect_defined(const Tensor& tensor, std::string_view what, Where where = Where::current());
// For outputs: the handle is not read-only.
void expect_writable(const Tensor& tensor, std::string_view what, Where where = Where::current());

// One element of any dtype as float, for tests and references.
// REQUIRES: a CPU tensor, as for the functions below; 0 <= index < numel().
float get_float(const Tensor& tensor, int64_t index);
// Stores with the dtype's conversion: floats of 8, 6 and 4 bits saturate, integers are rounded to
// the nearest, ties to even, and clamped.
void set_float(const Tensor& tensor, int64_t index, float value);
// A copy that is converted element by element through float.
Tensor convert(const Tensor& tensor, DType dtype);

}  // namespace moebius
