// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Values of the C API as those of C++, and back.  All throw InvalidArgument, which names `what`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "moebius/dispatch.h"
#include "moebius/dtype.h"
#include "moebius/quant_config.h"
#include "moebius/stream.h"
#include "moebius/tensor.h"
#include "moebius_c.h"

namespace moebius::c_api {

DType read_dtype(int32_t dtype, std::string_view what);
// Named "device of OWNER", or "device" without an owner.
Device read_device(moebius_device device, std::string_view owner = {});
// The ordinal of a GPU, which is not negative.
int read_cuda_index(int32_t index);
moebius_device device_of(Device device);
QuantFormat read_format(int32_t format, std::string_view what);  // not "not quantized"
std::string read_text(const char* text, std::string_view what);  // null is refused

// Borrows the caller's memory.  A tensor with other strides than those of contiguous rows is copied
// in the order of `stream`, and the copy is read-only, so that it is refused as an output.
Tensor read_tensor(const moebius_tensor* tensor, std::string_view what, const Stream& stream);
// Null stands for an undefined tensor.
Tensor read_optional_tensor(const moebius_tensor* tensor,
                            std::string_view what,
                            const Stream& stream);
// Writes all fields but the size.
void write_tensor(moebius_tensor* out, std::string_view what, const Tensor& tensor);
// Writes dtype, device, shape and the strides of contiguous rows.
void write_shape(moebius_tensor* out, const Shape& shape, DType dtype, Device device);

// The previous event of an input; null is an event that is complete.
Event read_event(void* cuda_event, const Stream& stream);

// Checks an enumeration whose values are 0 to `most`.
int32_t read_choice(int32_t value, int32_t most, std::string_view what);
// 0 or 1.
bool read_flag(int32_t value, std::string_view what);

// Numbers that size tables.  Larger ones than any model and any cluster has are refused, since they
// would take all memory.
int64_t read_num_experts(int64_t num_experts);  // may be 0 or less, which callers refuse
int read_num_ranks(int32_t num_ranks);          // at least 1

// A placement over `num_ranks` ranks; null is the linear one of `num_experts`.
ExpertPlacement read_placement(const moebius_placement* placement,
                               int64_t num_experts,
                               int num_ranks);

}  // namespace moebius::c_api
