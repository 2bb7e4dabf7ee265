// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/nccl/communicator.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "comm/group/nccl/library.h"
#include "core/cuda/check.h"
#include "core/start_thread.h"
#include "moebius/log.h"

namespace moebius::comm {

namespace {

int current_device() {
  int device = 0;
  cuda::check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

}  // namespace

Communicator::Communicator(int begin) : begin_(begin), device_(current_device()) {}

// Why it delegates to another constructor: the destructor then runs when this one throws.
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

Communicator::Communicator(ncclComm_t adopted) : Communicator(0) {
  comm_ = adopted;
  is_adopted_ = true;
}

Communicator::~Communicator() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  if (watcher_.joinable()) {
    watcher_.join();
  }
  if (comm_ == nullptr || is_adopted_) {
    return;
  }
  const NcclLibrary& nccl = nccl_library();
  // To finalize needs the peers, so it does not wait for long.
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
    const std::lock_guard lock(mutex_);
    give_up();
    throw CommError(fmt::format("rank {}: {}: {}", host.rank(), what, why), host.rank(),
                    host.rank());
  };
  std::unique_lock lock(mutex_);
  if (is_broken_) {
    lock.unlock();
    fail("the communicator has failed before");
  }
  ncclResult_t result = make();
  lock.unlock();
  const auto is_done = [&] {
    const std::lock_guard asking(mutex_);
    if (is_broken_) {
      result = ncclInternalError;
      return true;
    }
    const ncclResult_t asked = nccl_library().comm_get_async_error(comm_, &result);
    result = asked == ncclSuccess ? result : asked;
    return result != ncclInProgress;
  };
  // Why it asks after success, too: ncclCommWindowRegister returns success while it is still at
  // work.
  if ((result == ncclSuccess || result == ncclInProgress) && !is_done()) {
    try {
      host.wait_until(what, host.rank(), is_done,
                      [] { return std::string("expected NCCL to finish, seen in progress"); });
    } catch (...) {
      const std::lock_guard breaking(mutex_);
      give_up();
      throw;
    }
  }
  if (result != ncclSuccess) {
    lock.lock();
    const std::string why = reason(result);
    lock.unlock();
    fail(why);
  }
}

bool Communicator::is_broken() const {
  const std::lock_guard lock(mutex_);
  return is_broken_;
}

void Communicator::look_after(const Event& before,
                              const Stream& stream,
                              std::chrono::milliseconds timeout) {
  {
    const std::lock_guard lock(mutex_);
    work_.push_back({before, stream.record(), timeout});
    if (!watcher_.joinable()) {
      watcher_ = start_thread([] { return "NCCL's deadlines"; }, [this] { watch(); });
    }
  }
  changed_.notify_all();
}

bool Communicator::await(std::unique_lock<std::mutex>& lock,
                         const Event& event,
                         const Deadline* deadline) {
  constexpr std::chrono::milliseconds kPause{2};
  bool is_done = false;
  while (!(is_done = event.is_complete()) && !is_over_ &&
         (deadline == nullptr || !deadline->expired())) {
    changed_.wait_for(lock, kPause);
  }
  return is_done;
}

void Communicator::watch() {
  // A new thread is on GPU 0, and its queries would invalidate the captures of other threads.
  (void)cudaSetDevice(device_);
  auto mode = cudaStreamCaptureModeRelaxed;
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
  std::unique_lock lock(mutex_);
  while (!is_over_) {
    if (work_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const Work work = work_.front();
    bool is_done = false;
    try {
      await(lock, work.before, nullptr);
      const Deadline deadline = Deadline::after(work.timeout);
      is_done = await(lock, work.done, &deadline);
    } catch (const Error& error) {  // the device has failed for good
      log(LogLevel::kError, error.what());
      is_done = true;
    }
    work_.pop_front();
    if (!is_done && !is_over_) {
      log(LogLevel::kError,
          fmt::format("NCCL has not finished its work on a GPU within {} ms: giving it up",
                      work.timeout.count()));
      give_up();
      work_.clear();
    }
  }
}

void Communicator::give_up() {
  is_broken_ = true;
  if (comm_ != nullptr) {
    nccl_library().comm_abort(std::exchange(comm_, nullptr));
  }
}

std::string Communicator::reason(ncclResult_t result) const {
  const NcclLibrary& nccl = nccl_library();
  const char* last = nccl.get_last_error(comm_);
  return fmt::format("{}{}{}", nccl.get_error_string(result),
                     last == nullptr || *last == '\0' ? "" : ": ", last == nullptr ? "" : last);
}

}  // namespace moebius::comm
