// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Names from files and command lines, as a terminal may show them.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace moebius {

// Replaces every byte of a control character, and every byte that is not UTF-8, by \xNN.  Control
// characters are those of ASCII and of Latin 1, and those of Unicode that break lines or turn the
// direction of text.  A text that is printable already stays as it is, a backslash too.
std::string printable(std::string_view text);

// The same, stored at `out`, as much of it as fits.  Returns the number of bytes.  It allocates
// nothing and is async-signal-safe.
size_t printable_into(std::string_view text, std::span<char> out) noexcept;

// The same as printable(text), but a text of more than `most` bytes is cut there, and "..." says
// so.
std::string printable(std::string_view text, size_t most);

}  // namespace moebius
