// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The implementations of the quant stage, and which of them a call uses.
#pragma once

#include <span>
#include <string_view>

#include "core/cpu_features.h"
#include "moebius/support.h"
#include "quant/row_kernels.h"

namespace moebius::quant {

struct Impl {
  std::string_view name;
  Support (*supports)(const CpuFeatures& features);
  const RowKernels* kernels;
};

// Most specialised first, `ref` last.
std::span<const Impl> impls();

// The first that this processor can run, or the one named by MOEBIUS_QUANT.
// Throws InvalidArgument (unknown name) or Unsupported (the named one cannot run here).
const Impl& select_quant_impl();

}  // namespace moebius::quant
