// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moebius::comm {

// Versions as ncclGetVersion gives them: 22809 is 2.28.9.
std::string version_name(int code);
// Why a library of version `found` is refused by a build with the headers of `built`; empty where
// it is not.  Why equal: the host library fills in structures that device code of this build reads.
std::string version_refusal(int built, int found);

}  // namespace moebius::comm
