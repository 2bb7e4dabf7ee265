// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What the command knows by name and cannot serve yet.
#pragma once

namespace moebius::app {

[[noreturn]] void refuse_plan();

}  // namespace moebius::app
