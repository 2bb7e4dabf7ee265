// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs parallel loops on the threads of an OpenMP runtime that something else in the process has
// loaded, as torch has.  Why: the threads of such a runtime spin for milliseconds after each of its
// loops, and so do ours.  Beside each other each team takes the CPUs from the other; as one team
// they find the threads awake.
// Thread-safety: as ParallelExecutor says.
#pragma once

#include <memory>

#include "moebius/parallel_executor.h"

namespace moebius {

// Takes GNU's runtime, or another one that has its functions (LLVM's, Intel's).  Nothing is loaded
// for it.  Null where the process has loaded none.
std::shared_ptr<ParallelExecutor> find_openmp_executor();
// Throws Unsupported in place of null.
std::shared_ptr<ParallelExecutor> make_openmp_executor();

}  // namespace moebius
