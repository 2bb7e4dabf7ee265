// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/mpi/shared_segments.h"

#include <fcntl.h>
#include <unistd.h>

#include <climits>
#include <cstring>

namespace moebius::comm {

namespace {

// The files of Open MPI 4 (btl/vader) and 5 (btl/sm).
constexpr const char* kPrefixes[] = {"/dev/shm/vader_segment.", "/dev/shm/sm_segment."};

// REQUIRES: `line` is a line of /proc/self/maps, whose last field is the path.
void remove_segment(const char* line) {
  for (const char* prefix : kPrefixes) {
    if (const char* path = std::strstr(line, prefix); path != nullptr) {
      ::unlink(path);  // one that is gone has " (deleted)" after its name, and is not found
    }
  }
}

}  // namespace

void remove_shared_segments() noexcept {
  const int fd = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  char line[PATH_MAX + 256];
  size_t size = 0;
  char piece[4096];
  for (ssize_t n = 0; fd >= 0 && (n = ::read(fd, piece, sizeof(piece))) > 0;) {
    for (ssize_t i = 0; i < n; ++i) {
      if (piece[i] == '\n') {
        line[size] = '\0';
        remove_segment(line);
        size = 0;
      } else if (size + 1 < sizeof(line)) {
        line[size++] = piece[i];
      }
    }
  }
  if (fd >= 0) {
    ::close(fd);
  }
}

}  // namespace moebius::comm
