// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads quantization_config of compressed-tensors: groups of modules, each with the types, bits and
// strategy of its weights and activations.
#pragma once

#include <string>

#include "checkpoint/quant_rules.h"

namespace moebius::checkpoint {

// Throws as read_quant_rules().  Nothing here depends on the expert_dtype.
QuantRules read_compressed_tensors(const ConfigFields& fields, const std::string& expert_dtype);

}  // namespace moebius::checkpoint
