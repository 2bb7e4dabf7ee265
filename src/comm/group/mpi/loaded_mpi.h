// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "comm/group/mpi/mpi_api.h"

namespace moebius::comm {

// The table of libmoebius_mpi.so, which the first call opens.  It is looked for beside libmoebius
// (or where the program's own search path says), unless MOEBIUS_MPI_LIBRARY names it.
// Throws Unsupported where it cannot be opened, with the reason.  Thread-safety: any thread.
const MpiApi& mpi();

// Says that a message is under way whose memory may be gone: this process must not call MPI any
// more, in whichever group.  Thread-safety: any thread.
void poison_mpi();
bool is_mpi_poisoned();
// Messages say this then, of a rank or of the process.
inline constexpr std::string_view kIsPoisoned =
    "calls MPI no more, since a message was under way whose memory may be gone";

// Throws CommError with MPI's text unless the call succeeded.
void mpi_check(int status, std::string_view call, int rank);

}  // namespace moebius::comm
