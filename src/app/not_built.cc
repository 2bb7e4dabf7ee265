// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/not_built.h"

#include "moebius/error.h"

namespace moebius::app {

void refuse_plan() {
  throw Unsupported("plan: not built yet (moebius info --model DIR shows a checkpoint's shape)");
}

}  // namespace moebius::app
