// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The implementations of the quant stage, and which of them a call uses.
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
  DeviceType device;                                 // where its operands are
  Support (*supports)(const CpuFeatures& features);  // by this machine
  const RowKernels* kernels = nullptr;               // on the CPU
  const DeviceKernels* device_kernels = nullptr;     // on a GPU
};

// Most specialised first, `ref` last.
std::span<const Impl> impls();

// The first that this machine can run on operands there, or the one named by MOEBIUS_QUANT.
// Throws InvalidArgument (unknown name) or Unsupported (the named one cannot run here).
const Impl& select_quant_impl(Device device = {});

}  // namespace moebius::quant
