// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// DeviceKernels: the functions that make up an implementation of the quant stage on a GPU.  They
// take whole matrices, because a launch costs as much as a row.  None of them waits for the device.
// REQUIRES: quantize.cc has validated all arguments, and they are on the stream's device.
#pragma once

#include "moebius/quantize.h"

namespace moebius::quant {

struct DeviceKernels {
  // given_scale: f32 [1], which replaces the scale from the tensor's maximum, or undefined.
  void (*quantize)(const Tensor& x,
                   const QuantizeSpec& spec,
                   const Quantized& out,
                   const Tensor& given_scale,
                   const Stream& stream);
  void (*dequantize)(const Quantized& q,
                     const QuantizeSpec& spec,
                     const Tensor& out,
                     const Stream& stream);
  void (*quantize_dequantize)(const Tensor& x,
                              const QuantizeSpec& spec,
                              const Tensor& out,
                              const Tensor& given_scale,
                              const Stream& stream);
};

extern const DeviceKernels cuda_kernels;

namespace device {

void dequantize(const Quantized& q,
                const QuantizeSpec& spec,
                const Tensor& out,
                const Stream& stream);

}  // namespace device

}  // namespace moebius::quant
