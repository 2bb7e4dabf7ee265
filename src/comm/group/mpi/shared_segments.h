// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Shared memory of Open MPI, which it keeps in files of /dev/shm.
#pragma once

namespace moebius::comm {

// Removes those files that this process has mapped, which are its own and those of its neighbours
// in the job.  Whoever has mapped them can still use them.  MPI_Finalize removes them, too, and so
// does mpirun; this is for a process that ends without the one, since a rank that died or stopped
// would be waited for, and perhaps without the other.  REQUIRES: no rank of this machine is still
// in MPI_Init, where ranks open each other's files.  It allocates nothing and ignores failures.
void remove_shared_segments() noexcept;

}  // namespace moebius::comm
