// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// DeviceKernels: what an implementation of the quant stage on a GPU consists of.  They take whole
// matrices, since a launch costs as much as a row; nothing in them waits for the device.
// All arguments are validated (quantize.cc) and on the stream's device.
#pragma once

#include "moebius/quantize.h"

namespace moebius::quant {

struct DeviceKernels {
  // given_scale: f32 [1] used in place of the tensor's maximum, or undefined.
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
