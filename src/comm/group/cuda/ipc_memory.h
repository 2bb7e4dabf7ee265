// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory of a GPU that other processes of the machine map, by CUDA's interprocess handles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "moebius/device.h"
#include "moebius/group.h"

namespace moebius::comm {

// This rank's memory, and where it has mapped that of the others.
struct IpcMemory {
  int index = 0;  // of this rank's GPU
  void* own = nullptr;
  std::vector<std::byte*> peers;  // [size], `own` at the own rank; nullptr where nothing is mapped

  // Collective.  Every rank gets `bytes` bytes of zeros on its GPU and maps those of all others.
  // Returns the same on every rank: nothing, or why the first rank that could not do so could not.
  // What has been made until then stays until it is given back.
  std::string map(Group& host, std::string_view op, int64_t bytes, Device device);
  // To give memory back takes two steps, since no rank may free what another has still mapped.
  // Errors are logged.
  void unmap_peers() noexcept;
  void free_own() noexcept;  // REQUIRES: every rank has unmapped it, or will not use it again
};

}  // namespace moebius::comm
