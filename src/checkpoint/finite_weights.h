// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// NaN and infinity in the weights of a layer.  A load looks at every element once, when it has just
// been copied.  It refuses what is not finite, or, if LoadOptions::allow_nonfinite says so, makes
// the outputs of that expert NaN.
// Why the outputs of the whole expert: a NaN in w1 reaches every output anyway, but quantizing the
// intermediate would hide it, as most codes cannot say NaN.
// Thread-safety: copy() may run for different destinations at the same time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "checkpoint/expert_source.h"
#include "moebius/checkpoint.h"
#include "moebius/moe_layer.h"

namespace moebius::checkpoint {

// Whether a load lets NaN and infinity through: what the caller chose, or else the setting.
bool allows_nonfinite(const LoadOptions& options);

// Throws InvalidArgument, which names file, tensor, index and value, unless every element of the
// tensor, which is f32, bf16 or f16, is finite.  With `masks`, minus infinity is allowed.
void expect_finite_tensor(const Safetensors& files, const std::string& tensor, bool masks);

class FiniteWeights {
 public:
  FiniteWeights(bool allows, const ExpertIds& experts);

  // Does what from.copy_to() does, looks at the copied elements, which have the type `dtype`, and
  // releases the pages of the source.
  // Throws InvalidArgument as expect_finite_tensor() does, unless the load lets them through.
  // expert: counted over all ranks.
  void copy(const StoredMatrix& from,
            DType dtype,
            Range rows,
            Range cols,
            std::byte* to,
            int64_t stride,
            int64_t expert);

  // REQUIRES: everything is copied.  Makes the outputs of experts that have NaN or infinity NaN,
  // where weights are quantized; unquantized weights keep what they have.
  void mark(ExpertWeights& weights) const;
  bool found(int64_t local_expert) const { return found_[static_cast<size_t>(local_expert)]; }

 private:
  bool allows_;
  ExpertIds experts_;
  std::unique_ptr<std::atomic<bool>[]> found_;  // by local expert
};

}  // namespace moebius::checkpoint
