// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Messages of exceptions, for tests.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "moebius/error.h"

namespace moebius::testing {

// The message of the exception E that `call` throws, which must be one line; "no error" if it
// throws nothing.
template <typename E = InvalidArgument, typename Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const E& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  return "no error";
}

// Parts that must all occur in a message; usually these are both values.
using Parts = std::initializer_list<std::string_view>;

inline void expect_mentions(const std::string& message, std::string_view part) {
  EXPECT_NE(message.find(part), std::string::npos) << '"' << part << "\" is not in: " << message;
}
inline void expect_mentions(const std::string& message, Parts parts) {
  for (const std::string_view part : parts) {
    expect_mentions(message, part);
  }
}

// `call` must throw an error that mentions every part.
template <typename Call>
void expect_error(Parts parts, Call&& call) {
  expect_mentions(message_of<Error>(call), parts);
}

}  // namespace moebius::testing
