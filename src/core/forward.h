// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Public classes by name, for headers of kernels.  Why: nvcc parses what a source includes three
// times, and the headers of these classes bring <chrono>, <functional> and <memory>.
#pragma once

#include "moebius/api.h"

namespace moebius MOEBIUS_API {

class CommError;
class Stream;
class Tensor;

}  // namespace MOEBIUS_API
