// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Groups of the C API.  What is made from a group shares its usage: the group and all of that count
// as one object, which one thread at a time may use.
#pragma once

#include <memory>
#include <string_view>

#include "c_api/handles.h"
#include "moebius/group.h"

namespace moebius::c_api {

struct GroupObject : Object {
  static constexpr std::string_view kKind = "group";
  using Handle = moebius_group;

  explicit GroupObject(std::unique_ptr<Group> g) : group(std::move(g)) {}
  // Null once a group of GPUs has taken it over.
  std::unique_ptr<Group> group;

  // Throws InvalidArgument where there is none any more.
  Group& get() const;
};

}  // namespace moebius::c_api
