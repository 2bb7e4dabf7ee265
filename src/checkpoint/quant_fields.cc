// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/quant_fields.h"

#include <fmt/format.h>

#include <utility>

#include "checkpoint/safetensors_header.h"

namespace moebius::checkpoint {

void leave_out(QuantRules& rules,
               const ConfigFields& fields,
               std::string_view key,
               MakeNames names) {
  if (!fields.has(key)) {
    return;
  }
  for (const std::string& entry : fields.strings(key)) {
    const std::string label = fmt::format("{} {}", key, in_quotes(entry));
    rules.add(
        {names(entry, fields.place(key) + " " + in_quotes(entry)), left_out_by(label), label});
  }
}

GroupShape read_group_size(const ConfigFields& fields, int64_t bits) {
  if (fields.integer("group_size", -1, kMaxBlock) == -1) {
    return GroupShape::per_token();
  }
  const int64_t size = fields.integer("group_size", 1, kMaxBlock);
  if (bits == 4 && size % 2 != 0) {
    fields.unsupported("group_size", "multiples of 2");
  }
  return {1, size};
}

std::string bits_name(std::string_view method, int64_t bits) {
  return fmt::format("{} int{}", method, bits);
}

QuantFormat int_format(int64_t bits) {
  return bits == 4 ? QuantFormat::kInt4 : QuantFormat::kInt8;
}

WeightScheme mxfp8(std::string name, bool quantizes_activations) {
  return {.stored = WeightFormat::kMxfp8,
          .name = std::move(name),
          .format = QuantFormat::kMxfp8,
          .group = kMxGroup,
          .activations = quantizes_activations ? ActivationScheme::kMx : ActivationScheme::kNone};
}

WeightScheme mxfp4(WeightFormat stored, std::string name) {
  return {
      .stored = stored, .name = std::move(name), .format = QuantFormat::kMxfp4, .group = kMxGroup};
}

}  // namespace moebius::checkpoint
