// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/json_text.h"

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "checkpoint/mapped_file.h"
#include "moebius/error.h"

namespace moebius::checkpoint {

using nlohmann::json;

namespace {

json parse_json(std::string_view text, std::string_view file) {
  constexpr int kMaxJsonDepth = 64;
  // depth counts the objects and lists around the value.
  const auto check_depth = [&](int depth, json::parse_event_t event, json&) {
    const bool opens =
        event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (opens && depth >= kMaxJsonDepth) {
      throw InvalidArgument(
          fmt::format("{}: JSON nested {} deep, the limit is {}", file, depth + 1, kMaxJsonDepth));
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), check_depth);
  } catch (const json::parse_error& error) {
    throw InvalidArgument(fmt::format("{}: not valid JSON at byte {}", file, error.byte));
  } catch (const json::exception& error) {  // a number beyond double, which may have any length
    constexpr size_t kShown = 200;
    throw InvalidArgument(
        fmt::format("{}: {}", file, std::string_view(error.what()).substr(0, kShown)));
  }
}

}  // namespace

json read_json_object(const std::filesystem::path& path) {
  constexpr uint64_t kMaxBytes = 64 << 20;
  const auto file = MappedFile::open(path);
  if (file->size() > kMaxBytes) {
    throw InvalidArgument(
        fmt::format("{}: {} bytes, the limit is {}", path.string(), file->size(), kMaxBytes));
  }
  const std::string_view text(reinterpret_cast<const char*>(file->data()), file->size());
  json result = parse_json(text, path.string());
  if (!result.is_object()) {
    throw InvalidArgument(
        fmt::format("{}: a JSON {}, expected an object", path.string(), result.type_name()));
  }
  return result;
}

}  // namespace moebius::checkpoint
