// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Own processes: processes that somebody else has started become ranks of a group.  All that they
// need is some way to gather a few bytes; here each has a socket to the program that started them.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "moebius/group.h"

namespace {

constexpr int kNumRanks = 4;

void write_all(int socket, const void* data, size_t bytes) {
  if (write(socket, data, bytes) != static_cast<ssize_t>(bytes)) {
    throw std::runtime_error("write");
  }
}
void read_all(int socket, void* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = read(socket, static_cast<std::byte*>(data) + done, bytes - done);
    if (got <= 0) {
      throw std::runtime_error("read: the starter is gone");
    }
    done += static_cast<size_t>(got);
  }
}

int run_rank(int rank, int socket) {
  const auto all_gather = [socket](const void* in, int64_t bytes, void* out) {
    write_all(socket, &bytes, sizeof(bytes));
    write_all(socket, in, static_cast<size_t>(bytes));
    read_all(socket, out, static_cast<size_t>(bytes) * kNumRanks);
  };
  try {
    const auto group =
        moebius::make_process_group({.rank = rank, .size = kNumRanks, .all_gather = all_gather});
    const int64_t largest = moebius::all_reduce_max(*group, "largest rank", rank);
    return largest == kNumRanks - 1 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

// The starter's side: it sends each rank what all of them have sent.
void gather_once(const std::array<int, kNumRanks>& sockets) {
  std::vector<std::byte> all;
  for (const int socket : sockets) {
    int64_t bytes = 0;
    read_all(socket, &bytes, sizeof(bytes));
    const size_t begin = all.size();
    all.resize(begin + static_cast<size_t>(bytes));
    read_all(socket, all.data() + begin, static_cast<size_t>(bytes));
  }
  for (const int socket : sockets) {
    write_all(socket, all.data(), all.size());
  }
}

}  // namespace

int main() {
  std::array<int, kNumRanks> sockets{};
  for (int rank = 0; rank < kNumRanks; ++rank) {
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) {
      std::perror("socketpair");
      return 1;
    }
    if (fork() == 0) {
      close(ends[0]);
      _exit(run_rank(rank, ends[1]));
    }
    close(ends[1]);
    sockets[static_cast<size_t>(rank)] = ends[0];
  }
  gather_once(sockets);
  int num_right = 0;
  for (int rank = 0; rank < kNumRanks; ++rank) {
    int status = 1;
    wait(&status);
    num_right += status == 0 ? 1 : 0;
  }
  std::printf("%d of %d processes have the right maximum\n", num_right, kNumRanks);
  return num_right == kNumRanks ? 0 : 1;
}
