// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions of MPI that groups use, as a table.  Every MPI has handles of its own, so only
// mpi_module.cc sees mpi.h.  It becomes a library of its own, libmoebius_mpi.so, which is
// opened when MPI is asked for: so libmoebius starts on machines without MPI.
// Functions return 0 or an error code of MPI, for which error_text() has the words.  Sizes are in
// bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moebius::comm {

// A communicator and a request of MPI, as the module keeps them.
struct MpiComm {
  uint64_t bits = 0;
};
struct MpiRequest {
  uint64_t bits = 0;

  bool operator==(const MpiRequest&) const = default;
};

struct MpiApi {
  size_t table_bytes;           // of this struct in the module
  const char* moebius_version;  // that the module belongs to
  MpiComm world;                // MPI_COMM_WORLD
  MpiRequest no_request;        // MPI_REQUEST_NULL: of a transfer that is over

  int (*initialized)(int* answer);
  int (*finalized)(int* answer);
  // Asks for MPI_THREAD_SERIALIZED, and says whether MPI gives it.
  int (*init)(int* is_serialized);
  int (*finalize)();
  int (*error_text)(int status, char* text, size_t room);  // ends with a zero

  // Takes the MPI_Comm at `user_comm`.  `refusal` is null where it can be used, else the reason.
  int (*comm_of_user)(const void* user_comm, MpiComm* comm, const char** refusal);
  int (*rank)(MpiComm comm, int* rank);
  int (*size)(MpiComm comm, int* size);
  // Writes the rank in MPI_COMM_WORLD of each rank of `comm`, -1 for processes that are not in it.
  int (*ranks_in_world)(MpiComm comm, int size, int* ranks);
  int (*split)(MpiComm comm, int color, int key, MpiComm* part);  // color < 0: no part
  int (*split_by_machine)(MpiComm comm, int key, MpiComm* part);
  int (*free)(MpiComm* comm);
  int (*return_errors)(MpiComm comm);  // failing calls return, instead of ending the job

  // These wait for all ranks without a deadline.
  int (*broadcast)(MpiComm comm, void* data, size_t bytes, int root);
  int (*all_gather)(MpiComm comm, const void* in, size_t bytes, void* out);
  // Goes through `num_barriers` barriers, one after the other, as far as it gets without waiting.
  // MPI cannot cancel a barrier: where the caller gives up, the next one with this communicator
  // goes on from there.
  int (*pass_barriers)(MpiComm comm, int num_barriers, int* have_passed);

  // `bytes` is at most INT_MAX.
  int (*isend)(
      MpiComm comm, const void* data, size_t bytes, int peer, int tag, MpiRequest* request);
  int (*irecv)(MpiComm comm, void* data, size_t bytes, int peer, int tag, MpiRequest* request);
  int (*recv)(MpiComm comm, void* data, size_t bytes, int peer, int tag);
  // Looks for a message with the tag, of any rank; `peer` is then its sender, else -1.
  int (*probe)(MpiComm comm, int tag, int* peer);
  // `request` becomes no_request when its transfer is over.
  int (*test)(MpiRequest* request, int* is_over);
  int (*test_all)(int count, MpiRequest* requests, int* are_over);
  // Writes the indices of the transfers that have ended since the last call.
  int (*test_some)(int count, MpiRequest* requests, int* num_over, int* indices);
  int (*cancel)(MpiRequest* request);
};

// The function that the module has, by its name.
inline constexpr const char* kMpiApiName = "moebius_mpi_api";
using MpiApiFunction = const MpiApi*();

}  // namespace moebius::comm
