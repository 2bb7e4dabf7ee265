// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/prepare_finalize.h"

#include <fmt/format.h>

namespace moebius {

WorkspacePool& CallContext::pool() const {
  expect(workspaces != nullptr, "workspaces are missing");
  return *workspaces;
}

Tensor CallContext::get(WorkspaceSlot slot, const Shape& shape, DType dtype) const {
  return pool().get(microbatch, slot, shape, dtype, stream);
}

void PrepareFinalize::set_dead(int rank, bool) {
  throw Unsupported(
      fmt::format("{} needs every rank and cannot go on without rank {}", name(), rank));
}

PrepareResult PrepareFinalize::prepare(const PrepareInput& input, const CallContext& context) {
  return prepare_async(input, context).finish();
}

void PrepareFinalize::finalize(const FinalizeInput& input, const CallContext& context) {
  finalize_async(input, context).finish();
}

Pending<PrepareResult> PrepareFinalize::prepare_async(const PrepareInput&, const CallContext&) {
  throw Unsupported(fmt::format("{} has no asynchronous prepare", name()));
}

Pending<void> PrepareFinalize::finalize_async(const FinalizeInput&, const CallContext&) {
  throw Unsupported(fmt::format("{} has no asynchronous finalize", name()));
}

}  // namespace moebius
