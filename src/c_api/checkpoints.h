// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of the C API.
#pragma once

#include <string_view>

#include "c_api/handles.h"
#include "moebius/checkpoint.h"

namespace moebius::c_api {

struct CheckpointObject : Object {
  static constexpr std::string_view kKind = "checkpoint";
  using Handle = moebius_checkpoint;

  explicit CheckpointObject(const char* directory) : checkpoint(directory) {}
  Checkpoint checkpoint;
};

}  // namespace moebius::c_api
