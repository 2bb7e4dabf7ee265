// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// DLPack 1.1: tensors in and out of other libraries, without a copy where that is possible.
//
// Types.  f32, f16, bf16, i8, u8, i32, i64, bool, e4m3fn and e5m2, and e8m0 have codes of their
// own.  Packed types travel as vectors that fill whole bytes, 2 lanes of 4 bits or 4 lanes of 6
// bits, as torch's float4_e2m1fn_x2 does; shapes there count vectors.  One lane is also taken:
// shapes then count elements.  A consumer that knows none of these codes gets
// tensor.view_as(DType::kU8), and `as` is the way back.  All other types are refused by name,
// float64 among them.
//
// Devices.  CPU and CUDA; pinned memory of the host is taken as the CPU's, managed memory as that
// of the GPU which it names.  Nothing here waits or orders streams: what a producer has enqueued is
// complete, or ordered before the consumer's stream, when the tensor changes hands.  (In Python the
// consumer passes its stream to __dlpack__.)  A consumer that drops a tensor while its stream still
// reads calls Tensor::record_stream() first.
//
// Ownership.  An exported tensor keeps the storage alive until its deleter is called, and the
// receiver calls that once.  Storage of a borrowed tensor is not kept alive: its lender still has
// to do that.  An imported tensor calls the producer's deleter when its last handle is gone.
// Thread-safety: all functions may be called from any thread; a deleter is called by whichever
// thread drops the last handle.
#pragma once

#include <cstdint>
#include <optional>

#include "moebius/api.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"

struct DLManagedTensor;           // <dlpack/dlpack.h>
struct DLManagedTensorVersioned;  // the same, from version 1.0 on

namespace moebius MOEBIUS_API {

// Throw InvalidArgument for an undefined tensor.  The unversioned form has no flags, so it refuses
// a read-only tensor, too.  With `is_copied` the receiver learns that nobody else sees the storage;
// that is the caller's to know, for instance after clone().
DLManagedTensor* to_dlpack(const Tensor& tensor);
DLManagedTensorVersioned* to_dlpack_versioned(const Tensor& tensor, bool is_copied = false);

// A Tensor is contiguous.  An import whose rows are apart (a slice of columns, padded rows) or
// whose dimensions lie in another order is copied, unless the caller forbids it.  The copy is
// read-only, because what is written there would not reach the producer.
enum class DLPackCopy : uint8_t {
  kIfNeeded,
  kNever,   // throws InvalidArgument instead, naming the strides
  kAlways,  // for a tensor that is to outlive the producer's; it may be written
};

struct DLPackImport {
  std::optional<DType> as = std::nullopt;  // reinterprets uint8 bytes as another type
  DLPackCopy copy = DLPackCopy::kIfNeeded;
  // For a copy on a GPU: it is enqueued here, and the producer's tensor is released after it.  A
  // copy on the CPU, or without a stream, is complete when the call returns.
  std::optional<Stream> stream = std::nullopt;
};

// Take ownership.  A tensor with the flag READ_ONLY is read-only here.  Throw InvalidArgument (a
// version other than 1, more than 4 dimensions, a negative stride, an unknown type or device,
// elements of 4 or 6 bits that take a byte each, an address that does not fit the type, sizes that
// do not match) and what a copy throws; the deleter has then been called.
Tensor from_dlpack(DLManagedTensor* managed, const DLPackImport& import = {});
Tensor from_dlpack(DLManagedTensorVersioned* managed, const DLPackImport& import = {});

}  // namespace moebius
