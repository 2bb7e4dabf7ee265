// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/nccl/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

#include "comm/group/nccl/version.h"
#include "moebius/error.h"
#include "moebius/group.h"
#include "moebius/settings.h"

namespace moebius {
namespace comm {

namespace {

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    throw Unsupported(fmt::format("the NCCL library has no {}, which NCCL {} has", name,
                                  version_name(NCCL_VERSION_CODE)));
  }
}

NcclLibrary load() {
  const std::string path = setting("MOEBIUS_NCCL_LIBRARY").value_or("libnccl.so.2");
  // NVLink multicast stays off unless the environment already says otherwise.  Why it is set here:
  // NCCL reads the variable once, when its first communicator is made.
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    throw Unsupported(fmt::format("no NCCL library: {}", reason == nullptr ? path : reason));
  }
  NcclLibrary nccl;
  find(library, "ncclGetVersion", nccl.get_version);
  int version = 0;
  nccl.get_version(&version);
  if (const std::string refusal = version_refusal(NCCL_VERSION_CODE, version); !refusal.empty()) {
    throw Unsupported(fmt::format("{}: {}", path, refusal));
  }
  find(library, "ncclGetUniqueId", nccl.get_unique_id);
  find(library, "ncclGetErrorString", nccl.get_error_string);
  find(library, "ncclGetLastError", nccl.get_last_error);
  find(library, "ncclCommInitRankConfig", nccl.comm_init_rank_config);
  find(library, "ncclCommGetAsyncError", nccl.comm_get_async_error);
  find(library, "ncclCommCount", nccl.comm_count);
  find(library, "ncclCommUserRank", nccl.comm_user_rank);
  find(library, "ncclCommCuDevice", nccl.comm_cu_device);
  find(library, "ncclCommFinalize", nccl.comm_finalize);
  find(library, "ncclCommDestroy", nccl.comm_destroy);
  find(library, "ncclCommAbort", nccl.comm_abort);
  find(library, "ncclCommWindowRegister", nccl.comm_window_register);
  find(library, "ncclCommWindowDeregister", nccl.comm_window_deregister);
  find(library, "ncclTeamLsa", nccl.team_lsa);
  find(library, "ncclMemAlloc", nccl.mem_alloc);
  find(library, "ncclMemFree", nccl.mem_free);
  find(library, "ncclGroupStart", nccl.group_start);
  find(library, "ncclGroupEnd", nccl.group_end);
  find(library, "ncclSend", nccl.send);
  find(library, "ncclRecv", nccl.recv);
  find(library, "ncclAllGather", nccl.all_gather);
  nccl.is_of_headers = version == NCCL_VERSION_CODE;
  return nccl;
}

}  // namespace

const NcclLibrary& nccl_library() {
  static const NcclLibrary library = load();  // when it throws, the next caller tries again
  return library;
}

}  // namespace comm

std::string why_no_nccl() {
  try {
    comm::nccl_library();
  } catch (const Unsupported& error) {
    return error.what();
  }
  return "";
}

}  // namespace moebius
