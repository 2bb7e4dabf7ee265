// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Transports of the C API, which keep the group that they are made from.
#pragma once

#include <memory>
#include <string_view>

#include "c_api/groups.h"
#include "c_api/handles.h"
#include "moebius/dispatch.h"
#include "moebius/low_latency.h"
#include "moebius/transports.h"

namespace moebius::c_api {

struct TransportsObject : Object {
  static constexpr std::string_view kKind = "transports object";
  using Handle = moebius_transports;

  explicit TransportsObject(std::shared_ptr<GroupObject> of)
      : Object(of->usage),
        group(std::move(of)),
        transports(std::make_shared<Transports>(group->get())) {}
  std::shared_ptr<GroupObject> group;
  std::shared_ptr<Transports> transports;
};

// The transports that options name; null: none.  Throws InvalidArgument for those of another group.
std::shared_ptr<TransportsObject> find_transports(moebius_transports transports,
                                                  const GroupObject& group);

void write_statistics(moebius_transport_statistics* out, const TransportStatistics& statistics);

}  // namespace moebius::c_api
