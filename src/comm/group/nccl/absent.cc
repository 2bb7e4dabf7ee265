// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A build without NCCL.
#include "moebius/group.h"

namespace moebius {

std::unique_ptr<Group> make_nccl_group(std::unique_ptr<Group>&&, Device) {
  throw Unsupported("group nccl: " + why_no_nccl());
}

std::string why_no_nccl() {
  return "built without NCCL";
}

}  // namespace moebius
