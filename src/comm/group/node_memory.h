// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Windows of ranks that are processes of a machine.
//
// Why it is not MPI_Win_allocate_shared: freeing such a window is collective and waits for every
// rank, so that a rank that unwinds after a failure would hang in it.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "moebius/group.h"

namespace moebius::comm {

// Collective.  The first rank of each node makes a file with a part for each of the node's ranks,
// and hands it to them.  Every rank asks for the same bytes.  Throws on every rank: InvalidArgument
// for bytes that no machine has, OutOfMemory for more than are available, Unsupported when one of
// them cannot reach the others.
std::unique_ptr<Window> map_node_memory(Group& group, std::string_view op, int64_t bytes);

}  // namespace moebius::comm
