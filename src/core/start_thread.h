// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// start_thread: a std::thread, or an error that says which thread could not be had.
#pragma once

#include <fmt/format.h>

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "moebius/error.h"

namespace moebius {

// `name` is a function that returns what the thread is ("rank 2 of 4"); it is called on failure
// only. Throws Error: "cannot start a thread for rank 2 of 4: Resource temporarily unavailable
// (...)".
template <typename Name, typename Body>
std::thread start_thread(const Name& name, Body&& body) {
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    throw Error(
        fmt::format("cannot start a thread for {}: {} (too little memory, or too many threads)",
                    std::string(name()), error.code().message()));
  }
}

}  // namespace moebius
