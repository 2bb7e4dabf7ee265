// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Files the command writes: refused before the work starts where they cannot be written, and whole
// or absent afterwards.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace moebius::app {

// Throws InvalidArgument naming option and path: no such folder, not writable, something that is
// not a file. An empty path is valid: nothing will be written.
void expect_writable(std::string_view option, const std::string& path);
// The same of a folder that may have to be made, with those above it.
void expect_writable_folder(std::string_view option, const std::string& path);

// Whether both are one file, also by another name, and before there is one.
bool is_same_file(const std::filesystem::path& a, const std::filesystem::path& b);
// Throws InvalidArgument naming option and path where writing there would replace one of `inputs`.
void expect_not_read(std::string_view option,
                     const std::string& path,
                     const std::vector<std::filesystem::path>& inputs);

// What `path` names, itself or through links.
std::string link_target(const std::string& path);

// Writes a temporary file beside link_target(path), then renames it.  An empty path does nothing.
// Throws Error naming the file.
void write_text(const std::string& path, std::string_view text);

}  // namespace moebius::app
