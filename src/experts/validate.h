// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The public boundary of the experts stage.  Each function throws InvalidArgument naming the tensor
// and both values.
#pragma once

#include "moebius/experts.h"

namespace moebius {

// Rows of w1 after which block scales restart: those of gate, then those of up.
inline int64_t gate_rows(const ExpertsDesc& desc) {
  return desc.activation.interleaved ? desc.w1_rows() : desc.intermediate;
}

void validate_activation(const ActivationSpec& spec);
void validate_experts_desc(const ExpertsDesc& desc);

// On `device`, or on the host.
void validate_weights_device(const ExpertWeights& weights, Device device);

struct RowOrder;
// The adapters of the rows in `order`; names row, id and A.
void validate_lora_ids(const ExpertsDesc& desc, const Tensor& lora_ids, const RowOrder& order);

// Everything about a call on `device` but the values of ids and counts.
void validate_call(const Experts& experts,
                   const ExpertsInput& input,
                   const Tensor& output,
                   const Tensor& intermediate,
                   const Tensor& scratch,
                   const Stream& stream,
                   Device device);

}  // namespace moebius
