// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/node_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "comm/group/failure.h"
#include "comm/group/peer_window.h"
#include "comm/group/shared_file.h"
#include "comm/group/window_limit.h"
#include "core/host_allocator.h"
#include "moebius/error.h"

namespace moebius::comm {

namespace {

// A rank's part begins on a page of its own, which can lie on the rank's NUMA node.
int64_t part_bytes(int64_t bytes) {
  constexpr int64_t kPage = 4096;
  return (std::max<int64_t>(bytes, 1) + kPage - 1) / kPage * kPage;
}

// How a rank has fared.
struct Report {
  FixedText<256> error;  // empty: well
  bool has_no_memory = false;
  FileMailbox::Address mailbox;
};

template <typename Step>
void note_error(Report& report, const Step& step) {
  try {
    step();
  } catch (const std::exception& error) {
    report.error = std::string_view(error.what());
    report.has_no_memory = dynamic_cast<const OutOfMemory*>(&error) != nullptr;
  }
}

// Every rank learns how the others have fared, and throws if one has not fared well.
std::vector<Report> compare(Group& group, std::string_view op, int64_t bytes, const Report& own) {
  std::vector<Report> reports(static_cast<size_t>(group.size()));
  all_gather_bytes(group, op, &own, sizeof(own), reports.data());
  for (int rank = 0; rank < group.size(); ++rank) {
    const Report& report = reports[static_cast<size_t>(rank)];
    if (!report.error.empty()) {
      const std::string text = fmt::format("{}: a window of {} bytes: rank {}: {}", op, bytes, rank,
                                           report.error.view());
      if (report.has_no_memory) {
        throw OutOfMemory(text);
      }
      throw Unsupported(text);
    }
    const int first =
        group.topology().node_begin[static_cast<size_t>(group.topology().node_of(rank))];
    if (report.mailbox.network != reports[static_cast<size_t>(first)].mailbox.network) {
      throw Unsupported(
          fmt::format("{}: a window of {} bytes: ranks {} and {} are of one node but "
                      "in different network namespaces",
                      op, bytes, first, rank));
    }
  }
  return reports;
}

}  // namespace

std::unique_ptr<Window> map_node_memory(Group& group, std::string_view op, int64_t bytes) {
  const Topology& topology = group.topology();
  const int first = topology.node_begin[static_cast<size_t>(topology.node())];
  const int num_neighbours = topology.node_size(topology.node());
  expect_window_bytes(static_cast<double>(bytes), num_neighbours, fmt::format("{}: a window", op));
  const int64_t part = part_bytes(bytes);

  Report own;
  File file;
  std::optional<FileMailbox> mailbox;
  note_error(own, [&] {
    mailbox.emplace();
    own.mailbox = mailbox->address();
    if (group.rank() == first) {
      expect_available(num_neighbours * part);  // the parts that all will take
      file = File::make_memory(num_neighbours * part);
    }
  });
  const std::vector<Report> reports = compare(group, op, bytes, own);
  if (group.rank() != first) {
    group.wait_until(
        op, first, [&] { return (file = mailbox->receive()).is_open(); },
        [&] { return fmt::format("expected a window of {} bytes", bytes); });
  }
  for (int peer = first + 1; group.rank() == first && peer < first + num_neighbours; ++peer) {
    group.wait_until(
        op, peer, [&] { return send_file(reports[static_cast<size_t>(peer)].mailbox, file); },
        [&] { return fmt::format("expected room for a window of {} bytes", bytes); });
  }

  const auto mapping = std::make_shared<Mapping>();
  const int64_t begin = topology.local_rank() * part;
  note_error(own, [&] {
    *mapping = Mapping(file, num_neighbours * part);
    reserve_memory(file, begin, begin + part);
    // The owner touches the pages first, so that they lie on its NUMA node.
    std::memset(mapping->data() + begin, 0, static_cast<size_t>(bytes));
  });
  compare(group, op, bytes, own);
  std::vector<std::byte*> peers(static_cast<size_t>(group.size()), nullptr);
  for (int i = 0; i < num_neighbours; ++i) {
    peers[static_cast<size_t>(first + i)] = mapping->data() + i * part;
  }
  return std::make_unique<PeerWindow>(group.rank(), bytes, std::move(peers), mapping);
}

}  // namespace moebius::comm
