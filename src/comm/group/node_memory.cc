// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/node_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "comm/group/peer_window.h"
#include "moebius/error.h"

namespace moebius::comm {

namespace {

[[noreturn]] void fail_system(std::string_view what, int64_t bytes, int error) {
  throw Unsupported(fmt::format("a window of {} bytes: {}: {}", bytes, what, std::strerror(error)));
}

size_t mapped_bytes(int64_t bytes) {
  return static_cast<size_t>(std::max<int64_t>(bytes, 1));
}

std::byte* map_file(int fd, int64_t bytes) {
  void* data = mmap(nullptr, mapped_bytes(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    close(fd);
    fail_system("mmap", bytes, error);
  }
  return static_cast<std::byte*>(data);
}

}  // namespace

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
}

Mapping Mapping::create(int64_t bytes, FileAddress* address) {
  const int fd = memfd_create("moebius-window", MFD_CLOEXEC);
  if (fd < 0) {
    fail_system("memfd_create", bytes, errno);
  }
  // The memory is reserved now, so that too little of it is an error here and not a SIGBUS later.
  int error = EINTR;
  while (error == EINTR) {
    error = posix_fallocate(fd, 0, static_cast<off_t>(mapped_bytes(bytes)));
  }
  struct stat status {};
  if (error != 0 || fstat(fd, &status) != 0) {
    const int reason = error != 0 ? error : errno;
    close(fd);
    fail_system("posix_fallocate", bytes, reason);
  }
  Mapping mapping(map_file(fd, bytes), mapped_bytes(bytes));
  *address = {getpid(), fd, status.st_dev, status.st_ino};  // from here on the caller closes it
  return mapping;
}

Mapping Mapping::open(const FileAddress& address, int64_t bytes) {
  const std::string path = fmt::format("/proc/{}/fd/{}", address.pid, address.fd);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    fail_system("open " + path, bytes, errno);
  }
  struct stat status {};
  if (fstat(fd, &status) != 0 || status.st_dev != address.device ||
      status.st_ino != address.inode) {
    close(fd);
    throw Unsupported(fmt::format(
        "{} is not the window of that rank: ranks of a node must share one process table", path));
  }
  Mapping mapping(map_file(fd, bytes), mapped_bytes(bytes));
  close(fd);
  return mapping;
}

std::unique_ptr<Window> map_node_memory(Group& group, std::string_view op, int64_t bytes) {
  // The file stays open until every neighbour has mapped it.
  struct File {
    FileAddress address;
    ~File() {
      if (address.fd >= 0) {
        close(address.fd);
      }
    }
  } own;
  const auto num_ranks = static_cast<size_t>(group.size());
  const auto mappings = std::make_shared<std::vector<Mapping>>(num_ranks);
  Mapping& local = (*mappings)[static_cast<size_t>(group.rank())];
  local = Mapping::create(bytes, &own.address);
  // The owner touches the pages first, so that they lie on its NUMA node.
  std::memset(local.data(), 0, static_cast<size_t>(bytes));
  std::vector<FileAddress> addresses(num_ranks);
  all_gather_bytes(group, op, &own.address, sizeof(own.address), addresses.data());
  std::vector<std::byte*> peers;
  for (int peer = 0; peer < group.size(); ++peer) {
    const auto p = static_cast<size_t>(peer);
    if (peer != group.rank() && group.topology().same_node(peer)) {
      (*mappings)[p] = Mapping::open(addresses[p], bytes);
    }
    peers.push_back((*mappings)[p].data());
  }
  group.barrier(op);
  return std::make_unique<PeerWindow>(group.rank(), bytes, std::move(peers), mappings);
}

}  // namespace moebius::comm
