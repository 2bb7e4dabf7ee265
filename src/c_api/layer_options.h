// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What is read from the options of a layer in the C API.
#pragma once

#include <memory>
#include <string_view>

#include "c_api/groups.h"
#include "c_api/handles.h"
#include "moebius/moe_layer.h"
#include "moebius/workspace.h"

namespace moebius::c_api {

struct WorkspacesObject : Object {
  static constexpr std::string_view kKind = "workspaces object";
  using Handle = moebius_workspaces;

  WorkspacePool pool;
};

// A layer's options, and what goes beside them.
struct LayerPlan {
  MoeLayerOptions options;
  MoeLayerParts parts;
  ParallelConfig parallel;
  int64_t max_num_tokens = 256;
  std::shared_ptr<WorkspacesObject> workspaces;  // never null
};

// `group` is null for one rank.
LayerPlan read_layer_options(const moebius_layer_options* options, const GroupObject* group);

}  // namespace moebius::c_api
