// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// What most tests include of other projects; see MOEBIUS_PCH.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "stage.h"
