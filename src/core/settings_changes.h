// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moebius {

// How often set_setting() and clear_setting() have changed something, for code that keeps what it
// has made of a setting.
uint64_t num_setting_changes();

}  // namespace moebius
