// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The threaded CPU experts: `cpu_portable` multiplies by the dot products of kernels.h alone,
// `cpu_onednn` gives full tiles of rows to oneDNN.  A row's result under cpu_portable does not
// depend on the other rows of the call (unless quantization does).
#pragma once

#include <memory>

#include "moebius/experts.h"

namespace moebius::cpu {

Support portable_supports(const ExpertsDesc& desc, const ExpertWeights& weights);
std::unique_ptr<Experts> make_portable(const ExpertsDesc& desc,
                                       ExpertWeights weights,
                                       const Stream& stream);

#ifdef MOEBIUS_HAVE_ONEDNN
Support onednn_supports(const ExpertsDesc& desc, const ExpertWeights& weights);
std::unique_ptr<Experts> make_onednn(const ExpertsDesc& desc,
                                     ExpertWeights weights,
                                     const Stream& stream);
#endif

}  // namespace moebius::cpu
