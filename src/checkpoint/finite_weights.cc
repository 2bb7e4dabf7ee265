// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/finite_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/finite.h"
#include "core/index_text.h"
#include "moebius/error.h"
#include "moebius/settings.h"

namespace moebius::checkpoint {

namespace {

constexpr const char* kSetting = "MOEBIUS_ALLOW_NONFINITE";
// So many bytes are still in the L2 cache when they are looked at.
constexpr int64_t kBytesAtATime = 1 << 17;

[[noreturn]] void refuse(const Safetensors& files,
                         const std::string& tensor,
                         DType dtype,
                         int64_t i,
                         std::string_view advice) {
  const int64_t element = bits(dtype) / 8;
  // Why a copy: the file may hold it at an odd address.
  const Tensor one = Tensor::empty({1}, dtype);
  std::copy_n(files.bytes(tensor).bytes() + i * element, element, one.bytes());
  const float value = get_float(one, 0);
  throw InvalidArgument(fmt::format("{} is {} at {}, expected a finite number{}",
                                    tensor_label(files, tensor),
                                    std::isnan(value) ? "NaN" : fmt::format("{}", value),
                                    index_text(files.entry(tensor).shape, i), advice));
}

bool is_minus_infinity(const Tensor& floats, int64_t i) {
  return get_float(floats, i) == -std::numeric_limits<float>::infinity();
}

}  // namespace

bool allows_nonfinite(const LoadOptions& options) {
  return options.allow_nonfinite.value_or(setting_int(kSetting).value_or(0) == 1);
}

void expect_finite_tensor(const Safetensors& files, const std::string& tensor, bool masks) {
  const Tensor values = files.tensor(tensor);
  const int64_t element = bits(values.dtype()) / 8;
  for (int64_t i = 0; i < values.numel(); ++i) {
    const auto next =
        first_nonfinite(values.dtype(), values.bytes() + i * element, values.numel() - i);
    if (!next) {
      return;
    }
    i += *next;
    if (!masks || !is_minus_infinity(values, i)) {
      refuse(files, tensor, values.dtype(), i, "");
    }
  }
}

FiniteWeights::FiniteWeights(bool allows, const ExpertIds& experts)
    : allows_(allows),
      experts_(experts),
      found_(std::make_unique<std::atomic<bool>[]>(static_cast<size_t>(experts.size()))) {}

void FiniteWeights::copy(const StoredMatrix& from,
                         DType dtype,
                         Range rows,
                         Range cols,
                         std::byte* to,
                         int64_t stride,
                         int64_t expert) {
  const int64_t element = bits(from.dtype) / 8;
  // A transposed matrix is read as a whole, since every one of its rows lies in all of its pages.
  const int64_t rows_at_a_time =
      from.is_transposed ? rows.size()
                         : std::max<int64_t>(1, kBytesAtATime / (cols.size() * element));
  for (int64_t first = rows.begin; first < rows.end; first += rows_at_a_time) {
    const Range part{first, std::min(rows.end, first + rows_at_a_time)};
    from.copy_to(to, stride, part, cols);
    for (int64_t r = part.begin; r < part.end; ++r, to += stride) {
      const auto c = first_nonfinite(dtype, to, cols.size());
      if (!c) {
        continue;
      }
      if (!allows_) {
        refuse(*from.files, from.tensor, dtype, from.index(r, cols.begin + *c),
               fmt::format("; with {}=1 the expert's outputs are NaN", kSetting));
      }
      found_[static_cast<size_t>(experts_.local(expert))].store(true, std::memory_order_relaxed);
    }
  }
  from.release(rows, cols);
}

void FiniteWeights::mark(ExpertWeights& weights) const {
  QuantDesc& w2 = weights.quant.w2;
  if (!w2.format) {
    return;
  }
  // The accumulators of nvfp4 have a factor that can say NaN on every path; scales of the other
  // formats can.
  const Tensor& factors = w2.format == QuantFormat::kNvfp4 ? w2.alpha_or_gscale : w2.scale;
  const int64_t of_expert = factors.numel() / experts_.size();
  for (int64_t l = 0; l < experts_.size(); ++l) {
    for (int64_t i = l * of_expert; found(l) && i < (l + 1) * of_expert; ++i) {
      set_float(factors, i, std::numeric_limits<float>::quiet_NaN());
    }
  }
}

}  // namespace moebius::checkpoint
