// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/communicator.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>
#include <vector>

#include "comm/nccl/library.h"
#include "moebius/deadline.h"

namespace moebius::comm {

// Why by way of another constructor: the destructor then runs where this one throws.
Communicator::Communicator(Group& host, int begin, int end) : Communicator(begin) {
  const NcclLibrary& nccl = nccl_library();
  ncclUniqueId id{};
  if (host.rank() == begin) {
    const ncclResult_t result = nccl.get_unique_id(&id);
    if (result != ncclSuccess) {
      throw CommError(fmt::format("rank {}: ncclGetUniqueId: {}", host.rank(), reason(result)),
                      host.rank(), host.rank());
    }
  }
  std::vector<ncclUniqueId> ids(static_cast<size_t>(host.size()));
  all_gather_bytes(host, "id of the NCCL communicator", &id, sizeof(id), ids.data());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  call(host, "ncclCommInitRankConfig", [&] {
    return nccl.comm_init_rank_config(&comm_, end - begin, ids[static_cast<size_t>(begin)],
                                      host.rank() - begin, &config);
  });
}

Communicator::~Communicator() {
  if (comm_ == nullptr) {
    return;
  }
  const NcclLibrary& nccl = nccl_library();
  // Leaving in peace needs the peers, so not for long.
  const Deadline deadline = Deadline::after(std::chrono::seconds(2));
  ncclResult_t result = is_broken_ ? ncclInternalError : nccl.comm_finalize(comm_);
  while (result == ncclInProgress && !deadline.expired()) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    nccl.comm_get_async_error(comm_, &result);
  }
  if (result == ncclSuccess) {
    nccl.comm_destroy(comm_);
  } else {
    nccl.comm_abort(comm_);
  }
}

void Communicator::call(Group& host,
                        std::string_view what,
                        const std::function<ncclResult_t()>& make) {
  const auto fail = [&](const std::string& why) {
    is_broken_ = true;
    throw CommError(fmt::format("rank {}: {}: {}", host.rank(), what, why), host.rank(),
                    host.rank());
  };
  if (is_broken_) {
    fail("the communicator has failed before");
  }
  ncclResult_t result = make();
  const auto is_done = [&] {
    const ncclResult_t asked = nccl_library().comm_get_async_error(comm_, &result);
    result = asked == ncclSuccess ? result : asked;
    return result != ncclInProgress;
  };
  // Asked after success too: ncclCommWindowRegister says so while it is still at work.
  if ((result == ncclSuccess || result == ncclInProgress) && !is_done()) {
    try {
      host.wait_until(what, host.rank(), is_done,
                      [] { return std::string("expected NCCL to finish, seen in progress"); });
    } catch (...) {
      is_broken_ = true;
      throw;
    }
  }
  if (result != ncclSuccess) {
    fail(reason(result));
  }
}

std::string Communicator::reason(ncclResult_t result) const {
  const NcclLibrary& nccl = nccl_library();
  const char* last = nccl.get_last_error(comm_);
  return fmt::format("{}{}{}", nccl.get_error_string(result),
                     last == nullptr || *last == '\0' ? "" : ": ", last == nullptr ? "" : last);
}

}  // namespace moebius::comm
