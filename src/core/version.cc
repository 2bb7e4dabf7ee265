// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/version.h"

namespace moebius {

std::string_view version() {
  return MOEBIUS_VERSION;
}

}  // namespace moebius
