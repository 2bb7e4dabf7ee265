// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory that several processes of a machine map.
//
// Why it is not MPI_Win_allocate_shared: freeing such a window is collective and waits for every
// rank, so that a rank that unwinds after a failure would hang in it.  It also lies in /dev/shm,
// which containers keep small.  An anonymous file has neither fault, and it leaves nothing behind
// when a rank dies.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "moebius/group.h"

namespace moebius::comm {

// Another process finds an anonymous file through its owner's /proc entry.  The inode tells whether
// it has found the right one, since ranks may see different /proc.
struct FileAddress {
  pid_t pid = 0;
  int fd = -1;
  uint64_t device = 0;
  uint64_t inode = 0;
};

// A mapping of a file.  The destructor unmaps it.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::byte* data() const { return data_; }

  // Maps new zeroed memory.  `address` tells the file behind it, which the caller closes.
  static Mapping create(int64_t bytes, FileAddress* address);
  // Maps what another process created.  REQUIRES: its file is still open there.
  static Mapping open(const FileAddress& address, int64_t bytes);

 private:
  Mapping(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// Collective.  Makes a window of such memory for ranks that are processes of a machine.  Every rank
// asks for the same bytes.  Throws Unsupported when the system has no memory or gives no access.
std::unique_ptr<Window> map_node_memory(Group& group, std::string_view op, int64_t bytes);

}  // namespace moebius::comm
