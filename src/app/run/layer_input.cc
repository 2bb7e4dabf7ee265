// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/run/layer_input.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "app/run/random_tensor.h"
#include "moebius/error.h"
#include "moebius/safetensors.h"

namespace moebius::app {

namespace {

std::string only_tensor(const Safetensors& file, const std::string& path) {
  const auto names = file.names();
  if (names.size() != 1) {
    throw InvalidArgument(
        fmt::format("{}: holds {} tensors, expected 1 or --input-tensor NAME", path, names.size()));
  }
  return names.front();
}

void expect_finite(const Tensor& hidden, const std::string& what) {
  const int64_t columns = hidden.dim(1);
  for (int64_t i = 0; i < hidden.numel(); ++i) {
    const float value = get_float(hidden, i);
    if (!std::isfinite(value)) {
      throw InvalidArgument(fmt::format("{} is {} at token {}, column {}, expected a finite number",
                                        what, value, i / columns, i % columns));
    }
  }
}

// Experts take rows in the model's dtype, whose range may be smaller than that of the file's.
void expect_finite_in(DType dtype, const Tensor& hidden, const std::string& what) {
  if (dtype == hidden.dtype() || dtype == DType::kF32) {
    return;
  }
  const Tensor rounded = convert(hidden, dtype);
  const int64_t columns = hidden.dim(1);
  for (int64_t i = 0; i < hidden.numel(); ++i) {
    if (const float value = get_float(rounded, i); !std::isfinite(value)) {
      throw InvalidArgument(
          fmt::format("{} is {} at token {}, column {}, which is {} in the model's {}, expected a "
                      "finite number",
                      what, get_float(hidden, i), i / columns, i % columns, value, name(dtype)));
    }
  }
}

}  // namespace

LayerInput load_input(const RunOptions& options,
                      int64_t hidden_size,
                      std::optional<DType> model_dtype) {
  if (options.input.empty()) {
    return {random_normal({options.tokens, hidden_size}, model_dtype.value_or(DType::kBF16),
                          options.seed),
            "synthetic", ""};
  }
  if (options.input.ends_with(".json")) {  // Safetensors would read it as an index of shards
    throw InvalidArgument(options.input + ": is JSON, expected FILE.safetensors");
  }
  if (std::error_code error; std::filesystem::is_directory(options.input, error)) {
    throw InvalidArgument(options.input + ": is a folder, expected FILE.safetensors");
  }
  const Safetensors file(options.input);
  const std::string chosen =
      options.input_tensor.empty() ? only_tensor(file, options.input) : options.input_tensor;
  const std::string what = fmt::format("{}: tensor {}", options.input, chosen);
  if (!file.contains(chosen)) {
    throw InvalidArgument(what + " is missing");
  }
  const SafetensorsEntry& entry = file.entry(chosen);
  if (!is_float(entry.dtype)) {
    throw InvalidArgument(
        fmt::format("{} has dtype {}, expected BF16, F16 or F32", what, entry.dtype_name));
  }
  if (entry.shape.size() != 2 || entry.shape[1] != hidden_size) {
    throw InvalidArgument(fmt::format("{} has shape {}, expected [T, {}] as {} has hidden size {}",
                                      what, to_string(entry.shape), hidden_size, options.model,
                                      hidden_size));
  }
  Tensor hidden = file.tensor(chosen);
  expect_finite(hidden, what);
  if (model_dtype) {
    expect_finite_in(*model_dtype, hidden, what);
  }
  return {std::move(hidden), options.input, chosen};
}

}  // namespace moebius::app
