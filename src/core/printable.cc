// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "core/printable.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace moebius {

namespace {

constexpr size_t kEscapeBytes = 4;  // of \xNN, which stands for one byte

struct Character {
  uint32_t code = 0;
  size_t bytes = 0;  // 0: the text does not begin with a character of UTF-8
};

// REQUIRES: text is not empty.
Character first_character(std::string_view text) {
  struct Form {
    unsigned char mask, lead;
    uint32_t least;  // a smaller code has a shorter form
  };
  constexpr Form kForms[] = {
      {0x80, 0x00, 0}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  for (size_t bytes = 1; bytes <= std::size(kForms) && bytes <= text.size(); ++bytes) {
    const Form& form = kForms[bytes - 1];
    if ((byte(0) & form.mask) != form.lead) {
      continue;
    }
    uint32_t code = byte(0) & static_cast<unsigned char>(~form.mask);
    for (size_t i = 1; i < bytes; ++i) {
      if ((byte(i) & 0xc0) != 0x80) {
        return {};
      }
      code = code << 6 | (byte(i) & 0x3fu);
    }
    const bool is_surrogate = code >= 0xd800 && code < 0xe000;
    return code < form.least || code > 0x10ffff || is_surrogate ? Character{}
                                                                : Character{code, bytes};
  }
  return {};
}

bool is_control(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x61c ||
         (code >= 0x200e && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

size_t printable_into(std::string_view text, std::span<char> out) noexcept {
  constexpr char kDigits[] = "0123456789abcdef";
  size_t size = 0;
  while (!text.empty()) {
    const Character first = first_character(text);
    const std::string_view part = text.substr(0, std::max<size_t>(first.bytes, 1));
    const bool stays = first.bytes > 0 && !is_control(first.code);
    if (out.size() - size < part.size() * (stays ? 1 : kEscapeBytes)) {
      break;
    }
    for (const char c : part) {
      if (stays) {
        out[size++] = c;
        continue;
      }
      const auto byte = static_cast<unsigned char>(c);
      for (const char e : {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]}) {
        out[size++] = e;
      }
    }
    text.remove_prefix(part.size());
  }
  return size;
}

std::string printable(std::string_view text) {
  std::string result(text.size() * kEscapeBytes, '\0');
  result.resize(printable_into(text, result));
  return result;
}

std::string printable(std::string_view text, size_t most) {
  if (text.size() <= most) {
    return printable(text);
  }
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) {
    --most;  // a character is not cut through
  }
  return printable(text.substr(0, most)) + "...";
}

}  // namespace moebius
