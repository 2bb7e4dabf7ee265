// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// The version of these headers, as macros, and of the library that a program runs with.  Programs
// built with one version run with all libraries of the same major and minor version, which is also
// in the library's SONAME.  CMake reads the three numbers from here.
#pragma once

#include <string_view>

#include "moebius/api.h"

#define MOEBIUS_VERSION_MAJOR 0
#define MOEBIUS_VERSION_MINOR 1
#define MOEBIUS_VERSION_PATCH 0

#define MOEBIUS_TEXT_OF(number) #number
#define MOEBIUS_DOTTED(major, minor, patch) \
  MOEBIUS_TEXT_OF(major) "." MOEBIUS_TEXT_OF(minor) "." MOEBIUS_TEXT_OF(patch)
#define MOEBIUS_VERSION \
  MOEBIUS_DOTTED(MOEBIUS_VERSION_MAJOR, MOEBIUS_VERSION_MINOR, MOEBIUS_VERSION_PATCH)

namespace moebius MOEBIUS_API {

// Returns the library's MOEBIUS_VERSION.  Thread-safety: any thread may call it.
std::string_view version();

}  // namespace moebius
