// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The scalar specification of the experts stage, in both precisions and formats.
#pragma once

#include <memory>

#include "moebius/experts.h"

namespace moebius::ref {

Support supports(const ExpertsDesc& desc, const ExpertWeights& weights);
std::unique_ptr<Experts> make(const ExpertsDesc& desc, ExpertWeights weights, const Stream& stream);

}  // namespace moebius::ref
