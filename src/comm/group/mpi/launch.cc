// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Questions about MPI that every build answers, with or without MPI.
#include "comm/group/mpi/job.h"
#include "moebius/error.h"
#include "moebius/group.h"

#ifdef MOEBIUS_HAVE_MPI
#include <mpi.h>
#endif

namespace moebius {

bool mpi_available() {
#ifdef MOEBIUS_HAVE_MPI
  return true;
#else
  return false;
#endif
}

bool launched_by_mpi() {
  if (comm::launched_job()) {
    return true;
  }
#ifdef MOEBIUS_HAVE_MPI
  int is_initialized = 0;
  MPI_Initialized(&is_initialized);
  return is_initialized != 0;
#else
  return false;
#endif
}

#ifndef MOEBIUS_HAVE_MPI
std::unique_ptr<Group> make_mpi_group(const MpiGroupOptions&) {
  throw Unsupported(
      "this build has no mpi group: install libopenmpi-dev (or another MPI) and "
      "configure again with -DMOEBIUS_MPI=ON");
}
#endif

}  // namespace moebius
