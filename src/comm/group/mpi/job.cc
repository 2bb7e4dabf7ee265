// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/mpi/job.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <initializer_list>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/group/processes/process_watch.h"
#include "core/digest.h"
#include "moebius/deadline.h"

namespace moebius::comm {

namespace {

using std::chrono::milliseconds;

// Returns the value of the first variable that is set.
std::optional<std::string> first_set(std::initializer_list<const char*> variables) {
  for (const char* variable : variables) {
    const char* value = std::getenv(variable);
    if (value != nullptr && *value != '\0') {
      return value;
    }
  }
  return std::nullopt;
}

int number_or(const std::optional<std::string>& text, int otherwise) {
  return text ? std::atoi(text->c_str()) : otherwise;
}

// A name that only processes of this user's job use, and that is short enough for a socket.
std::string socket_name(const Job& job, std::string_view purpose) {
  Digest digest;
  digest.add(std::as_bytes(std::span(job.name)));
  return fmt::format("moebius/{}/{:016x}/{}", getuid(), digest.value(), purpose);
}

// Calls bind() or connect() with an abstract name.
template <typename Call>
bool with_address(Call call, int socket, std::string_view name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
  name.copy(address.sun_path + 1, length);  // after a zero byte
  return call(socket, reinterpret_cast<const sockaddr*>(&address),
              static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length)) == 0;
}

int make_socket() {
  return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

// The process of this user at the other end; nullopt when there is none.
std::optional<pid_t> process_behind(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  const bool is_known = getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  return is_known && peer.uid == getuid() ? std::optional(peer.pid) : std::nullopt;
}

// The process of this user that listens under the name; nullopt when there is none.
std::optional<pid_t> find_listener(std::string_view name) {
  const int socket = make_socket();
  const auto found =
      with_address(connect, socket, name) ? process_behind(socket) : std::optional<pid_t>();
  close(socket);
  return found;
}

std::string presence_name(const Job& job, std::string_view place_name, int rank) {
  return socket_name(job, fmt::format("{}, rank {}", place_name, rank));
}

constexpr milliseconds kReportTime{1000};

// Listens until every process of the machine that may still fail has seen that the report is done:
// those that are there and not stopped, and for kLeastStay also those that have not begun.
void stay(int socket, const Job& job) {
  constexpr milliseconds kLeastStay{500};
  constexpr milliseconds kMostStay{3000};
  constexpr milliseconds kPause{10};
  const Deadline least = Deadline::after(kLeastStay);
  const Deadline most = Deadline::after(kMostStay);
  std::vector<pid_t> seen;
  const auto may_fail = [&](int rank) {
    const auto pid = find_listener(presence_name(job, kStart, rank));
    return pid && !is_stopped(*pid) && std::find(seen.begin(), seen.end(), *pid) == seen.end();
  };
  const auto is_over = [&] {
    if (static_cast<int>(seen.size()) == job.local_size - 1 || most.expired()) {
      return true;
    }
    bool all_know = least.expired();
    for (int rank = 0; all_know && rank < job.size; ++rank) {
      all_know = rank == job.rank || !may_fail(rank);
    }
    return all_know;
  };
  while (!is_over()) {
    pollfd wanted{socket, POLLIN, 0};
    if (poll(&wanted, 1, static_cast<int>(kPause.count())) > 0) {
      const int other = accept4(socket, nullptr, nullptr, SOCK_CLOEXEC);
      if (const auto pid = process_behind(other)) {
        seen.push_back(*pid);
      }
      close(other);
    }
  }
}

}  // namespace

std::optional<Job> launched_job() {
  const auto rank =
      first_set({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK"});
  const auto size = first_set({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"});
  if (!rank && !size) {
    return std::nullopt;
  }
  // The processes of launchers that give no name are children of one process on each machine.
  const auto name = first_set({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"});
  return Job{
      name.value_or(fmt::format("child of {}", getppid())), number_or(rank, 0), number_or(size, -1),
      number_or(
          first_set({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE"}),
          -1)};
}

Presence::Presence(std::string_view place_name) {
  if (const std::optional<Job> job = launched_job()) {
    socket_ = File(make_socket());
    if (with_address(bind, socket_.fd(), presence_name(*job, place_name, job->rank))) {
      listen(socket_.fd(), SOMAXCONN);
    }
  }
}

MeetingPlace MeetingPlace::of_job(int group_idx) {
  return {fmt::format("group {}", group_idx), {}};
}

MeetingPlace MeetingPlace::of_ranks(std::vector<int> ranks, int group_idx) {
  // A socket's name is short, so a hash stands for the ranks (FNV-1a).
  uint64_t hash = 0xcbf29ce484222325u;
  for (const int rank : ranks) {
    hash = (hash ^ static_cast<uint64_t>(static_cast<uint32_t>(rank))) * 0x100000001b3u;
  }
  return {fmt::format("group {} of {:016x}", group_idx, hash), std::move(ranks)};
}

std::string describe_presence(const MeetingPlace& place) {
  const std::optional<Job> job = launched_job();
  if (!job || job->size < 0) {
    return "the launcher does not say which ranks there are";
  }
  std::vector<int> ranks = place.ranks;
  for (int rank = 0; rank < job->size && place.ranks.empty(); ++rank) {
    ranks.push_back(rank);
  }
  std::vector<int> came;
  std::string blamed;
  for (const int rank : ranks) {
    const auto pid = find_listener(presence_name(*job, place.name, rank));
    const char* fault = nullptr;
    if (!pid) {
      fault = job->local_size == job->size ? "is not there" : nullptr;
    } else {
      came.push_back(rank);
      fault = is_stopped(*pid) ? "is stopped" : nullptr;
    }
    if (fault != nullptr) {
      blamed += fmt::format("{}rank {} {}{}", blamed.empty() ? "" : "; ", rank,
                            place.ranks.empty() ? "" : "of the job ", fault);
    }
  }
  return blamed.empty()
             ? fmt::format("on this machine came ranks {} of {} in the job", fmt::join(came, ", "),
                           place.ranks.empty() ? fmt::format("{}", job->size)
                                               : fmt::format("{}", fmt::join(ranks, ", ")))
             : blamed;
}

void report_once(const std::function<void()>& report, const std::function<void()>& tell_others) {
  static std::atomic<bool> is_done{false};
  const std::optional<Job> job = launched_job();
  const bool is_first = !is_done.exchange(true);
  if (!is_first || !job || !job->has_others()) {
    if (is_first) {
      report();
    }
    tell_others();
    return;
  }
  // The process that gets the name reports, and listens when it has done so.
  const std::string name = socket_name(*job, "report");
  const int socket = make_socket();
  const Deadline deadline = Deadline::after(kReportTime);
  bool is_reported = false;
  while (!is_reported && !with_address(bind, socket, name) && !deadline.expired()) {
    is_reported = find_listener(name).has_value();
    std::this_thread::sleep_for(milliseconds(1));
  }
  if (is_reported) {
    close(socket);
    tell_others();
    return;
  }
  report();
  const bool is_shown = listen(socket, SOMAXCONN) == 0;
  tell_others();
  if (is_shown) {
    stay(socket, *job);  // the socket stays open as long as the process
  }
}

void await_report() {
  const std::optional<Job> job = launched_job();
  const Deadline deadline = Deadline::after(kReportTime);
  while (job && !find_listener(socket_name(*job, "report")) && !deadline.expired()) {
    std::this_thread::sleep_for(milliseconds(1));
  }
}

}  // namespace moebius::comm
