// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "app/output_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <span>
#include <system_error>

#include "checkpoint/safetensors_writer.h"
#include "moebius/error.h"

namespace moebius::app {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void refuse(std::string_view option, const std::string& path, std::string_view why) {
  throw InvalidArgument(fmt::format("{} {}: {}", option, path, why));
}

void expect_room_in(std::string_view option, const std::string& path, const fs::path& folder) {
  std::error_code error;
  if (folder.is_relative() && fs::current_path(error).empty()) {  // it may be open, but not named
    refuse(option, path, fmt::format("the working directory: {}", error.message()));
  }
  if (!fs::is_directory(folder, error)) {
    refuse(option, path, fmt::format("there is no folder {}", folder.string()));
  }
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    refuse(option, path,
           fmt::format("cannot write in {}: {}", folder.string(), std::strerror(errno)));
  }
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// Whether the path leads into /proc, as /dev/stdout does.  A file could be made there, but nobody
// would see it.
bool is_of_a_process(const fs::path& path) {
  std::error_code error;
  const fs::path folder = fs::weakly_canonical(parent_of(path), error);
  if (error) {  // for example in a working directory that was removed
    return false;
  }
  const fs::path whole = folder / path.filename();
  const auto first = std::next(whole.begin());
  return first != whole.end() && *first == "proc";
}

}  // namespace

std::string link_target(const std::string& path) {
  constexpr int kMostLinks = 40;
  fs::path at = path;
  std::error_code error;
  for (int i = 0; i < kMostLinks && !is_of_a_process(at) && fs::is_symlink(at, error); ++i) {
    at = parent_of(at) / fs::read_symlink(at, error);
  }
  return at.string();
}

void expect_writable(std::string_view option, const std::string& path) {
  if (path.empty()) {
    return;
  }
  const fs::path target = link_target(path);
  std::error_code ignored;
  if (!is_of_a_process(target) && fs::is_symlink(target, ignored)) {
    refuse(option, path, "is a link that leads to itself");
  }
  if (fs::is_directory(target, ignored)) {
    refuse(option, path, "is a folder, expected a file");
  }
  if (is_of_a_process(target) ||
      (fs::exists(target, ignored) && !fs::is_regular_file(target, ignored))) {
    refuse(option, path, "is a device or a pipe, expected a file");  // which a rename would replace
  }
  expect_room_in(option, path, parent_of(target));
  if (std::error_code error; fs::status(target, error).type() == fs::file_type::none) {
    refuse(option, path, error.message());  // for example a name that is too long
  }
}

void expect_writable_folder(std::string_view option, const std::string& path) {
  if (is_of_a_process(path)) {
    refuse(option, path, "nothing can be made there");
  }
  fs::path there = path;
  std::error_code ignored;
  while (!fs::exists(there, ignored) && there != parent_of(there)) {
    there = parent_of(there);
  }
  expect_room_in(option, path, there);
}

bool is_same_file(const fs::path& a, const fs::path& b) {
  const auto place = [](const fs::path& path) {
    std::error_code error;
    // weakly_canonical() alone does not follow a link to a file that does not exist.
    const fs::path absolute = fs::absolute(link_target(path.string()), error);
    const fs::path whole = error ? fs::path() : fs::weakly_canonical(absolute, error);
    return error ? path : whole;
  };
  return !a.empty() && !b.empty() && place(a) == place(b);
}

void expect_not_read(std::string_view option,
                     const std::string& path,
                     const std::vector<fs::path>& inputs) {
  for (const fs::path& input : inputs) {
    if (is_same_file(path, input)) {
      refuse(option, path, "is read by this run, and would be lost");
    }
  }
}

void write_text(const std::string& name, std::string_view text) {
  if (name.empty()) {
    return;
  }
  checkpoint::AtomicFile file(link_target(name), text.size());
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace moebius::app
