// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/printable.h"

#include <gtest/gtest.h>

namespace moebius {
namespace {

using namespace std::string_view_literals;

TEST(Printable, TextStaysAsItIs) {
  for (const std::string_view text : {""sv, "model.layers.0.mlp"sv, "a\\b c"sv,
                                      "M\xc3\xb6"
                                      "bius"sv,
                                      "\xe2\x82\xac\xf0\x9f\x8e\xb2"sv}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(Printable, ControlCharactersAreEscaped) {
  EXPECT_EQ(printable("\x1b[2J\r\n\t\0\x7f"sv), R"(\x1b[2J\x0d\x0a\x09\x00\x7f)");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m\xc2\xa0"sv),
            "\\xc2\\x9b"
            "31m\xc2\xa0");
  // A line separator, and marks that turn the direction of text.
  EXPECT_EQ(printable("\xe2\x80\xa8\xe2\x80\xae\xe2\x81\xa6"sv),
            R"(\xe2\x80\xa8\xe2\x80\xae\xe2\x81\xa6)");
  EXPECT_EQ(printable(printable("\x1b")), R"(\x1b)");
}

TEST(Printable, BytesThatAreNotUtf8AreEscaped) {
  // A lone byte, a character that is cut off, two that are longer than needed, a surrogate, and
  // one beyond Unicode.
  EXPECT_EQ(printable("\x9b\xff"sv), R"(\x9b\xff)");
  EXPECT_EQ(printable("\xe2\x82"sv), R"(\xe2\x82)");
  EXPECT_EQ(printable("\xe2\x82 x"sv), R"(\xe2\x82 x)");
  EXPECT_EQ(printable("\xc0\x9b\xe0\x82\x9b"sv), R"(\xc0\x9b\xe0\x82\x9b)");
  EXPECT_EQ(printable("\xed\xa0\x80"sv), R"(\xed\xa0\x80)");
  EXPECT_EQ(printable("\xf4\x90\x80\x80"sv), R"(\xf4\x90\x80\x80)");
}

TEST(Printable, LongTextIsCutBetweenCharacters) {
  EXPECT_EQ(printable("abc", 3), "abc");
  EXPECT_EQ(printable("abcd", 3), "abc...");
  EXPECT_EQ(printable("a\xe2\x82\xac", 3), "a...");
  EXPECT_EQ(printable("\x1b\x1b", 1), R"(\x1b...)");
}

}  // namespace
}  // namespace moebius
