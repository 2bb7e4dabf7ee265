// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/report/page.h"

#include <cassert>
#include <cstddef>
#include <string_view>

// Why the assembler includes the file: a compiler takes long to read half a megabyte as a literal.
// The file is empty where the page could not be built.
__asm__(
    ".pushsection .rodata\n"
    "moebius_page_begin:\n"
    ".incbin \"" MOEBIUS_PAGE_FILE
    "\"\n"
    "moebius_page_end:\n"
    ".popsection\n");

extern "C" {
extern const char moebius_page_begin[] __attribute__((visibility("hidden")));
extern const char moebius_page_end[] __attribute__((visibility("hidden")));
}

namespace moebius::app {

namespace {

constexpr std::string_view kPlaceOfRun = "@RUN@";

std::string_view page_without_run() {
  return {moebius_page_begin, static_cast<size_t>(moebius_page_end - moebius_page_begin)};
}

// Returns JSON that can stand in a script element.  An end tag or a comment begins with "<", which
// JSON has in strings only, where it can be escaped.
std::string embeddable(const Json& json) {
  std::string text;
  for (const char c : json_text(json, -1)) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

Support has_page() {
  if (!page_without_run().empty()) {
    return Support::yes();
  }
  return Support::no(
      "this build is without the page (configure and build again with nodejs and the npm registry "
      "in reach)");
}

std::string make_page(const Json& run) {
  const std::string_view page = page_without_run();
  const size_t at = page.find(kPlaceOfRun);
  assert(at != std::string_view::npos);
  std::string text(page.substr(0, at));
  text += embeddable(run);
  text += page.substr(at + kPlaceOfRun.size());
  return text;
}

}  // namespace moebius::app
