// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "moebius/device.h"
#include "moebius/experts.h"

namespace moebius {

// The implementation that make_experts() would make on a stream of this device; nothing is made.
// Throws as make_experts() does where none accepts or the forced one does not.
// REQUIRES: desc and weights are valid, except that weights may hold fewer experts than desc says.
const ExpertsImpl& choose_experts(const ExpertsDesc& desc,
                                  const ExpertWeights& weights,
                                  Device device,
                                  std::string_view implementation = {});

}  // namespace moebius
