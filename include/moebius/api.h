// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// MOEBIUS_API marks what libmoebius.so shows to programs.  Everything is compiled with hidden
// visibility; a public header opens its namespace as `namespace moebius MOEBIUS_API {`.
// Thread-safety: it is a macro, so nothing is called.
#pragma once

#define MOEBIUS_API __attribute__((visibility("default")))
