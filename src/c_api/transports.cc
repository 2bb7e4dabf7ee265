// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "c_api/transports.h"

#include "c_api/status.h"
#include "c_api/structs.h"

namespace moebius::c_api {

std::shared_ptr<TransportsObject> find_transports(moebius_transports transports,
                                                  const GroupObject& group) {
  auto found = find_optional<TransportsObject>(transports, "transports");
  expect(found == nullptr || found->group.get() == &group,
         "the transports are those of another group, expected those of this one");
  return found;
}

void write_statistics(moebius_transport_statistics* out, const TransportStatistics& statistics) {
  write_struct(out, "statistics",
               {.struct_size = 0,
                .selections = statistics.selections,
                .copies = statistics.copies,
                .node_copies = statistics.node_copies});
}

}  // namespace moebius::c_api

using namespace moebius;
using namespace moebius::c_api;

moebius_status moebius_transports_create(moebius_group group, moebius_transports* transports) {
  return giving(transports, "transports", [&] {
    const Using<GroupObject> used(group);
    return make_handle(std::make_shared<TransportsObject>(used.object()));
  });
}

moebius_status moebius_transports_reserve_low_latency(moebius_transports transports,
                                                      int64_t bytes) {
  return guarded(
      [&] { Using<TransportsObject>(transports)->transports->reserve_low_latency(bytes); });
}

moebius_status moebius_transports_bytes(moebius_transports transports, int64_t* bytes) {
  return guarded([&] {
    expect_out(bytes, "bytes") = Using<TransportsObject>(transports)->transports->bytes();
  });
}

moebius_status moebius_transports_destroy(moebius_transports transports) {
  return guarded([&] { destroy_handle<TransportsObject>(transports); });
}
