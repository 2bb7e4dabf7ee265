// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <string>
#include <string_view>

#include "moebius/error.h"

namespace moebius::comm {

// Throws CommError with MPI's text unless the call succeeded.  Communicators of groups return
// errors instead of ending the job.
inline void mpi_check(int status, std::string_view call, int rank) {
  if (status != MPI_SUCCESS) {
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(status, text, &length);
    throw CommError("rank " + std::to_string(rank) + ": " + std::string(call) + ": " + text, rank,
                    -1);
  }
}

}  // namespace moebius::comm
