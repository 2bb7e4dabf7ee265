// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The checks at the public boundary of the experts stage.  Each function throws InvalidArgument
// naming the tensor and both values.
#pragma once

#include <string_view>

#include "moebius/experts.h"

namespace moebius {

// The number of rows of w1 after which block scales restart: the rows of gate come before those of
// up.
inline int64_t gate_rows(const ExpertsDesc& desc) {
  return desc.activation.interleaved ? desc.w1_rows() : desc.intermediate;
}

void validate_activation(const ActivationSpec& spec);
void validate_experts_desc(const ExpertsDesc& desc);

// The part of validate_expert_weights() that is about "w1" and its rows, or about "w2" and its
// rows.
void validate_side(const ExpertsDesc& desc, const ExpertWeights& weights, std::string_view name);

// Checks that all weights are on `device` or, unless they are lent, on the host.
void validate_weights_device(const ExpertsDesc& desc, const ExpertWeights& weights, Device device);

struct RowOrder;
// Checks the adapters of the rows in `order`; the message names row, id and A.
void validate_lora_ids(const ExpertsDesc& desc, const Tensor& lora_ids, const RowOrder& order);
// Checks that a2_scale is given, in this shape, where the calls of the experts bring it, and
// nowhere else.
void expect_a2_scale(const Experts& experts, const Tensor& a2_scale, const Shape& shape);
// Checks the static scales of the rows in `order`; the message names row and scale.
void validate_a2_scale(const Tensor& a2_scale, const RowOrder& order);

// Checks everything about a call on `device` but its stream and the values of ids and counts.
void validate_call(const Experts& experts,
                   const ExpertsInput& input,
                   const Tensor& output,
                   const Tensor& intermediate,
                   const Tensor& scratch,
                   Device device);

}  // namespace moebius
