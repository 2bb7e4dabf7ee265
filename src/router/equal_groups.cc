// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// This function has a file of its own because readers of checkpoints need nothing else of the
// router.
#include "moebius/router.h"

namespace moebius {

RouterConfig with_equal_groups(RouterConfig config) {
  if (config.num_experts <= config.num_groups || config.num_experts % config.num_groups != 0) {
    config.num_groups = config.topk_groups = 1;
  }
  return config;
}

}  // namespace moebius
