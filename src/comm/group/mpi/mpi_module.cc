// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// libmoebius_mpi.so: one MPI behind the table of mpi_api.h.  It calls nothing of libmoebius, and
// its only symbol is moebius_mpi_api().
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "comm/group/mpi/mpi_api.h"
#include "moebius/version.h"

namespace moebius::comm {
namespace {

// MPI's handles are pointers in Open MPI and ints in MPICH.
template <typename Box, typename Handle>
Box boxed(Handle handle) {
  static_assert(sizeof(Handle) <= sizeof(Box));
  Box box;
  std::memcpy(&box.bits, &handle, sizeof(handle));
  return box;
}
template <typename Handle, typename Box>
Handle handle_in(const Box& box) {
  Handle handle;
  std::memcpy(&handle, &box.bits, sizeof(handle));
  return handle;
}
MPI_Comm of(MpiComm comm) {
  return handle_in<MPI_Comm>(comm);
}

// Calls use(count, handles, first) with some handles at a time, where `first` is the index of the
// first of them, and puts back what it made of them.  It allocates nothing, since failures are told
// when there may be no memory left.
template <typename Use>
int with_handles(int count, MpiRequest* requests, Use use) {
  constexpr int kAtATime = 64;
  std::array<MPI_Request, kAtATime> handles;
  int status = MPI_SUCCESS;
  for (int first = 0; first < count && status == MPI_SUCCESS; first += kAtATime) {
    const int num = std::min(kAtATime, count - first);
    for (int i = 0; i < num; ++i) {
      handles[static_cast<size_t>(i)] = handle_in<MPI_Request>(requests[first + i]);
    }
    status = use(num, handles.data(), first);
    for (int i = 0; i < num; ++i) {
      requests[first + i] = boxed<MpiRequest>(handles[static_cast<size_t>(i)]);
    }
  }
  return status;
}

int init(int* is_serialized) {
  int provided = 0;
  const int status = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  *is_serialized = provided >= MPI_THREAD_SERIALIZED ? 1 : 0;
  return status;
}

int error_text(int status, char* text, size_t room) {
  std::array<char, MPI_MAX_ERROR_STRING> words{};
  int length = 0;
  const int own_status = MPI_Error_string(status, words.data(), &length);
  const size_t taken = std::min(room - 1, static_cast<size_t>(length));
  std::memcpy(text, words.data(), taken);
  text[taken] = '\0';
  return own_status;
}

int comm_of_user(const void* user_comm, MpiComm* comm, const char** refusal) {
  const MPI_Comm given = *static_cast<const MPI_Comm*>(user_comm);
  *comm = boxed<MpiComm>(given);
  *refusal = nullptr;
  if (given == MPI_COMM_NULL) {
    *refusal = "the communicator is MPI_COMM_NULL";
    return MPI_SUCCESS;
  }
  int is_inter = 0;
  const int status = MPI_Comm_test_inter(given, &is_inter);
  if (is_inter != 0) {
    *refusal = "the communicator joins two groups of processes, expected an intracommunicator";
  }
  return status;
}

int ranks_in_world(MpiComm comm, int size, int* ranks) {
  MPI_Group own = MPI_GROUP_NULL;
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Comm_group(of(comm), &own);
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  std::vector<int> own_ranks(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    own_ranks[static_cast<size_t>(rank)] = rank;
  }
  const int status = MPI_Group_translate_ranks(own, size, own_ranks.data(), world, ranks);
  MPI_Group_free(&own);
  MPI_Group_free(&world);
  std::replace(ranks, ranks + size, MPI_UNDEFINED, -1);
  return status;
}

int split(MpiComm comm, int color, int key, MpiComm* part) {
  MPI_Comm made = MPI_COMM_NULL;
  const int status = MPI_Comm_split(of(comm), color < 0 ? MPI_UNDEFINED : color, key, &made);
  *part = boxed<MpiComm>(made);
  return status;
}

int split_by_machine(MpiComm comm, int key, MpiComm* part) {
  MPI_Comm made = MPI_COMM_NULL;
  const int status = MPI_Comm_split_type(of(comm), MPI_COMM_TYPE_SHARED, key, MPI_INFO_NULL, &made);
  *part = boxed<MpiComm>(made);
  return status;
}

int free_comm(MpiComm* comm) {
  MPI_Comm handle = of(*comm);
  const int status = MPI_Comm_free(&handle);
  *comm = boxed<MpiComm>(handle);
  return status;
}

struct Barriers {
  MPI_Request request = MPI_REQUEST_NULL;
  int num_passed = 0;
};

// The communicator carries them as an attribute, so that they go when it is freed.
Barriers& barriers_of(MPI_Comm comm) {
  static const int keyval = [] {
    int made = MPI_KEYVAL_INVALID;
    const auto drop = [](MPI_Comm, int, void* barriers, void*) {
      delete static_cast<Barriers*>(barriers);
      return MPI_SUCCESS;
    };
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, drop, &made, nullptr);
    return made;
  }();
  void* attribute = nullptr;
  int is_there = 0;
  MPI_Comm_get_attr(comm, keyval, &attribute, &is_there);
  if (is_there == 0) {
    attribute = new Barriers;
    MPI_Comm_set_attr(comm, keyval, attribute);
  }
  return *static_cast<Barriers*>(attribute);
}

int pass_barriers(MpiComm comm, int num_barriers, int* have_passed) {
  Barriers& barriers = barriers_of(of(comm));
  *have_passed = 0;
  while (barriers.num_passed < num_barriers) {
    if (barriers.request == MPI_REQUEST_NULL) {
      if (const int status = MPI_Ibarrier(of(comm), &barriers.request); status != MPI_SUCCESS) {
        return status;
      }
    }
    int is_over = 0;
    const int status = MPI_Test(&barriers.request, &is_over, MPI_STATUS_IGNORE);
    if (status != MPI_SUCCESS || is_over == 0) {
      return status;
    }
    ++barriers.num_passed;
  }
  barriers.num_passed = 0;
  *have_passed = 1;
  return MPI_SUCCESS;
}

int probe(MpiComm comm, int tag, int* peer) {
  int is_there = 0;
  MPI_Status found{};
  const int status = MPI_Iprobe(MPI_ANY_SOURCE, tag, of(comm), &is_there, &found);
  *peer = is_there != 0 ? found.MPI_SOURCE : -1;
  return status;
}

int test_all(int count, MpiRequest* requests, int* are_over) {
  *are_over = 1;
  return with_handles(count, requests, [&](int num, MPI_Request* handles, int) {
    int is_over = 0;
    const int status = MPI_Testall(num, handles, &is_over, MPI_STATUSES_IGNORE);
    *are_over &= is_over;
    return status;
  });
}

int test_some(int count, MpiRequest* requests, int* num_over, int* indices) {
  *num_over = 0;
  return with_handles(count, requests, [&](int num, MPI_Request* handles, int first) {
    int found = 0;
    int* const out = indices + *num_over;
    const int status = MPI_Testsome(num, handles, &found, out, MPI_STATUSES_IGNORE);
    found = found == MPI_UNDEFINED ? 0 : found;
    for (int i = 0; i < found; ++i) {
      out[i] += first;
    }
    *num_over += found;
    return status;
  });
}

template <typename Call>
int with_handle(MpiRequest* request, Call call) {
  MPI_Request handle = handle_in<MPI_Request>(*request);
  const int status = call(&handle);
  *request = boxed<MpiRequest>(handle);
  return status;
}

MpiApi make_api() {
  return {
      .table_bytes = sizeof(MpiApi),
      .moebius_version = MOEBIUS_VERSION,
      .world = boxed<MpiComm>(MPI_COMM_WORLD),
      .no_request = boxed<MpiRequest>(MPI_REQUEST_NULL),
      .initialized = [](int* answer) { return MPI_Initialized(answer); },
      .finalized = [](int* answer) { return MPI_Finalized(answer); },
      .init = init,
      .finalize = [] { return MPI_Finalize(); },
      .error_text = error_text,
      .comm_of_user = comm_of_user,
      .rank = [](MpiComm comm, int* rank) { return MPI_Comm_rank(of(comm), rank); },
      .size = [](MpiComm comm, int* size) { return MPI_Comm_size(of(comm), size); },
      .ranks_in_world = ranks_in_world,
      .split = split,
      .split_by_machine = split_by_machine,
      .free = free_comm,
      .return_errors =
          [](MpiComm comm) { return MPI_Comm_set_errhandler(of(comm), MPI_ERRORS_RETURN); },
      .broadcast =
          [](MpiComm comm, void* data, size_t bytes, int root) {
            return MPI_Bcast(data, static_cast<int>(bytes), MPI_BYTE, root, of(comm));
          },
      .all_gather =
          [](MpiComm comm, const void* in, size_t bytes, void* out) {
            const auto count = static_cast<int>(bytes);
            return MPI_Allgather(in, count, MPI_BYTE, out, count, MPI_BYTE, of(comm));
          },
      .pass_barriers = pass_barriers,
      .isend =
          [](MpiComm comm, const void* data, size_t bytes, int peer, int tag, MpiRequest* request) {
            return with_handle(request, [&](MPI_Request* handle) {
              return MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, of(comm),
                               handle);
            });
          },
      .irecv =
          [](MpiComm comm, void* data, size_t bytes, int peer, int tag, MpiRequest* request) {
            return with_handle(request, [&](MPI_Request* handle) {
              return MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, of(comm),
                               handle);
            });
          },
      .recv =
          [](MpiComm comm, void* data, size_t bytes, int peer, int tag) {
            return MPI_Recv(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, of(comm),
                            MPI_STATUS_IGNORE);
          },
      .probe = probe,
      .test =
          [](MpiRequest* request, int* is_over) {
            return with_handle(request, [&](MPI_Request* handle) {
              return MPI_Test(handle, is_over, MPI_STATUS_IGNORE);
            });
          },
      .test_all = test_all,
      .test_some = test_some,
      .cancel =
          [](MpiRequest* request) {
            return with_handle(request, [](MPI_Request* handle) { return MPI_Cancel(handle); });
          },
  };
}

}  // namespace
}  // namespace moebius::comm

extern "C" __attribute__((visibility("default"))) const moebius::comm::MpiApi* moebius_mpi_api() {
  static const moebius::comm::MpiApi api = moebius::comm::make_api();
  return &api;
}
