// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Files that the command writes.  A place that cannot be written is refused before the work starts,
// and afterwards a file is complete or absent.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace moebius::app {

// Throws InvalidArgument, which names option and path, where the folder is missing or not writable
// or where the path leads to something that is not a file.  An empty path is valid, since nothing
// will be written.
void expect_writable(std::string_view option, const std::string& path);
// Does the same for a folder, which may not exist yet, nor those above it.
void expect_writable_folder(std::string_view option, const std::string& path);

// Whether both paths lead to the same file, also through links and before the file exists.
bool is_same_file(const std::filesystem::path& a, const std::filesystem::path& b);
// Throws InvalidArgument, which names option and path, where writing there would replace one of
// `inputs`.
void expect_not_read(std::string_view option,
                     const std::string& path,
                     const std::vector<std::filesystem::path>& inputs);

// Returns the path that `path` leads to through links.
std::string link_target(const std::string& path);

// Writes a temporary file beside link_target(path), then renames it.  Does nothing for an empty
// path.  Throws Error, which names the file.
void write_text(const std::string& path, std::string_view text);

}  // namespace moebius::app
