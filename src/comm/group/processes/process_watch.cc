// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/processes/process_watch.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <utility>

namespace moebius::comm {

bool is_stopped(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t name_end = text.rfind(')');  // "42 (a name) T ..."
  return name_end != text.npos && name_end + 2 < text.size() && text[name_end + 2] == 'T';
}

ProcessWatch::ProcessWatch(std::span<const pid_t> pids) : pids_(pids.begin(), pids.end()) {
  for (size_t rank = 0; rank < pids.size(); ++rank) {
    const bool is_watched = pids[rank] > 0;
    const int fd = is_watched ? static_cast<int>(syscall(SYS_pidfd_open, pids[rank], 0)) : -1;
    if (is_watched && fd < 0 && errno == ESRCH) {
      gone_.push_back(static_cast<int>(rank));
    }
    processes_.emplace_back(fd);
    polled_.push_back({fd, POLLIN, 0});
  }
}

std::string ProcessWatch::describe(std::span<const int> ended, std::span<const int> not_come) {
  std::string text;
  for (const int rank : ended) {
    text +=
        fmt::format("{}rank {} has died: its process has ended", text.empty() ? "" : "; ", rank);
  }
  for (const int rank : not_come) {
    if (std::find(ended.begin(), ended.end(), rank) == ended.end()) {
      text += fmt::format("; rank {} has not come", rank);
    }
  }
  return text;
}

bool ProcessWatch::is_rank_stopped(int rank) const {
  const auto at = static_cast<size_t>(rank);
  return at < pids_.size() && pids_[at] > 0 && is_stopped(pids_[at]);
}

std::vector<int> ProcessWatch::look() {
  std::vector<int> ended = std::exchange(gone_, {});
  const auto now = std::chrono::steady_clock::now();
  if (!ended.empty() || polled_.empty() || now < next_look_) {
    return ended;
  }
  next_look_ = now + kPause;
  if (poll(polled_.data(), polled_.size(), 0) > 0) {
    for (size_t rank = 0; rank < polled_.size(); ++rank) {
      if (polled_[rank].revents != 0) {
        ended.push_back(static_cast<int>(rank));
        polled_[rank] = {-1, 0, 0};
      }
    }
  }
  return ended;
}

}  // namespace moebius::comm
