// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The implementations of the quant stage, and the choice of the one that a call uses.
#pragma once

#include <span>
#include <string_view>

#include "core/cpu_features.h"
#include "moebius/device.h"
#include "moebius/support.h"
#include "quant/cuda/kernels.h"
#include "quant/row_kernels.h"

namespace moebius::quant {

struct Impl {
  std::string_view name;
  DeviceType device;                                 // of its operands
  Support (*supports)(const CpuFeatures& features);  // whether this machine can run it
  const RowKernels* kernels = nullptr;               // null on a GPU
  const DeviceKernels* device_kernels = nullptr;     // null on the CPU
};

// Most specialised first, `ref` last.
std::span<const Impl> impls();

// The first implementation that can run on this machine with operands on the device, or the one
// that MOEBIUS_QUANT names.  Throws InvalidArgument (unknown name) or Unsupported (it cannot run
// here).
const Impl& select_quant_impl(Device device = {});

}  // namespace moebius::quant
