// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moebius::comm {

// The text of a version as ncclGetVersion gives it: 22809 is "2.28.9".
std::string version_name(int code);
// Why a build with the headers of version `built` refuses a library of version `found`; empty when
// it does not.  A library that is not of the headers' version is refused later if it lays out its
// windows in another way, since device code of this build reads them.
std::string version_refusal(int built, int found);

}  // namespace moebius::comm
