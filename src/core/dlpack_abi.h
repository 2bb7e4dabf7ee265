// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The binary interface of DLPack 1.1: names, numbers and layouts as its specification gives them.
// Why not its own header: those of Debian and Ubuntu are older, without version and small floats.
// A file that includes this one may not include <dlpack/dlpack.h>.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moebius/dtype.h"

enum DLDeviceType : int32_t {
  kDLCPU = 1,
  kDLCUDA = 2,
  kDLCUDAHost = 3,     // pinned memory of the host
  kDLCUDAManaged = 13  // memory that the host and all GPUs can read
};

enum DLDataTypeCode : uint8_t {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLOpaqueHandle = 3,
  kDLBfloat = 4,
  kDLComplex = 5,
  kDLBool = 6,
  kDLFloat8_e3m4 = 7,
  kDLFloat8_e4m3 = 8,
  kDLFloat8_e4m3b11fnuz = 9,
  kDLFloat8_e4m3fn = 10,
  kDLFloat8_e4m3fnuz = 11,
  kDLFloat8_e5m2 = 12,
  kDLFloat8_e5m2fnuz = 13,
  kDLFloat8_e8m0fnu = 14,
  kDLFloat6_e2m3fn = 15,
  kDLFloat6_e3m2fn = 16,
  kDLFloat4_e2m1fn = 17,
};

struct DLDevice {
  DLDeviceType device_type;
  int32_t device_id;
};

struct DLDataType {
  uint8_t code;    // a DLDataTypeCode
  uint8_t bits;    // of one lane
  uint16_t lanes;  // of one element
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;    // [ndim], elements
  int64_t* strides;  // [ndim], elements; null: row-major
  uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

struct DLPackVersion {
  uint32_t major;  // the layout
  uint32_t minor;  // the codes
};

struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
};

namespace moebius::dlpack {

inline constexpr DLPackVersion kVersion = {1, 1};
inline constexpr uint64_t kReadOnly = 1 << 0;
inline constexpr uint64_t kIsCopied = 1 << 1;         // nobody else sees what is written
inline constexpr uint64_t kIsSubbytePadded = 1 << 2;  // elements of 4 or 6 bits take a byte each

static_assert(sizeof(void*) == 8, "the layouts below are those of 64 bits");
static_assert(sizeof(DLDevice) == 8 && sizeof(DLDataType) == 4 && sizeof(DLTensor) == 48);
static_assert(offsetof(DLTensor, dtype) == 20 && offsetof(DLTensor, byte_offset) == 40);
static_assert(sizeof(DLManagedTensor) == 64);
static_assert(offsetof(DLManagedTensorVersioned, flags) == 24);
static_assert(offsetof(DLManagedTensorVersioned, dl_tensor) == 32);

// The type as tensors here say it: packed types are vectors that fill whole bytes.
DLDataType to_dl_type(DType dtype);

}  // namespace moebius::dlpack
