// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/mpi/loaded_mpi.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <string>

#include "comm/group/mpi/job.h"
#include "moebius/error.h"
#include "moebius/group.h"
#include "moebius/settings.h"
#include "moebius/version.h"

namespace moebius {
namespace comm {

namespace {

std::atomic<bool> is_poisoned{false};

const MpiApi* open_module() {
  const std::string path = setting("MOEBIUS_MPI_LIBRARY").value_or("libmoebius_mpi.so");
  // Why RTLD_GLOBAL: the parts that Open MPI loads by itself look for its symbols there.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    throw Unsupported(
        fmt::format("no mpi group: {}; it is built where an MPI is found (install libopenmpi-dev "
                    "or another MPI and configure with -DMOEBIUS_MPI=ON)",
                    reason == nullptr ? path : reason));
  }
  const auto function = reinterpret_cast<MpiApiFunction*>(dlsym(library, kMpiApiName));
  const MpiApi* api = function == nullptr ? nullptr : function();
  if (api == nullptr || api->table_bytes != sizeof(MpiApi) ||
      std::string_view(api->moebius_version) != MOEBIUS_VERSION) {
    throw Unsupported(fmt::format("no mpi group: {} is of {}, expected of moebius {}", path,
                                  api == nullptr || api->table_bytes != sizeof(MpiApi)
                                      ? std::string("something else")
                                      : fmt::format("moebius {}", api->moebius_version),
                                  MOEBIUS_VERSION));
  }
  return api;
}

}  // namespace

const MpiApi& mpi() {
  static const MpiApi* const api = open_module();  // when it throws, the next caller tries again
  return *api;
}

void poison_mpi() {
  is_poisoned = true;
}

bool is_mpi_poisoned() {
  return is_poisoned;
}

void mpi_check(int status, std::string_view call, int rank) {
  if (status != 0) {
    std::array<char, 512> text{};
    mpi().error_text(status, text.data(), text.size());
    throw CommError(fmt::format("rank {}: {}: {}", rank, call, text.data()), rank, -1);
  }
}

}  // namespace comm

bool mpi_available() {
  try {
    comm::mpi();
  } catch (const Unsupported&) {
    return false;
  }
  return true;
}

bool launched_by_mpi() {
  if (comm::launched_job()) {
    return true;
  }
  // MPI is asked only where the program has it already.
  if (dlsym(RTLD_DEFAULT, "MPI_Initialized") == nullptr || !mpi_available()) {
    return false;
  }
  int is_initialized = 0;
  comm::mpi().initialized(&is_initialized);
  return is_initialized != 0;
}

}  // namespace moebius
