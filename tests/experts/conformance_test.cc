// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/experts_edges_suite.h"
#include "tests/conformance/experts_final_rows_suite.h"
#include "tests/conformance/experts_lora_suite.h"
#include "tests/conformance/experts_scales_suite.h"
#include "tests/conformance/experts_suite.h"
#include "tests/conformance/experts_update_suite.h"
