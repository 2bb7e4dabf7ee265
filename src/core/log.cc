// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Logs with a spdlog logger on stderr, which is configured once from MOEBIUS_LOG.
#include "moebius/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "core/printable.h"
#include "moebius/error.h"
#include "moebius/settings.h"

namespace moebius {

namespace {

constexpr std::array kLevels = {
    std::pair{std::string_view("error"), spdlog::level::err},
    std::pair{std::string_view("warn"), spdlog::level::warn},
    std::pair{std::string_view("info"), spdlog::level::info},
    std::pair{std::string_view("debug"), spdlog::level::debug},
};
constexpr std::array kTopics = {std::string_view("dispatch")};

struct Logger {
  std::shared_ptr<spdlog::logger> logger;
  std::vector<std::string> topics;
  std::string error;  // what is wrong with MOEBIUS_LOG; empty when nothing is
};

Logger make_logger() {
  Logger result;
  // The logger is not registered with spdlog, so the application's own loggers stay untouched.
  result.logger = std::make_shared<spdlog::logger>(
      "moebius", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  result.logger->set_pattern("%v");
  result.logger->set_level(spdlog::level::warn);
  const std::string text = setting("MOEBIUS_LOG").value_or("");
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    begin = end + 1;
    const auto* level = std::find_if(kLevels.begin(), kLevels.end(),
                                     [&](const auto& entry) { return entry.first == word; });
    if (level != kLevels.end()) {
      result.logger->set_level(level->second);
    } else if (std::find(kTopics.begin(), kTopics.end(), word) != kTopics.end()) {
      result.topics.push_back(word);
    } else {
      result.error = fmt::format(
          "MOEBIUS_LOG is \"{}\", expected a level (error, warn, info, debug), a topic (dispatch), "
          "or several with commas",
          text);
    }
  }
  return result;
}

const Logger& logger() {
  static const Logger instance = make_logger();
  return instance;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

void log(LogLevel level, std::string_view message) noexcept {
  const auto spdlog_level = to_spdlog(level);
  const auto name = spdlog::level::to_string_view(spdlog_level);
  try {
    logger().logger->log(spdlog_level, "{}: {}", std::string_view(name.data(), name.size()),
                         printable(message));
  } catch (...) {
    // There is no memory for a logger, so the default level holds.
    if (level >= LogLevel::kWarn) {
      std::array<char, 1024> text;
      const size_t size = printable_into(message, text);
      std::fprintf(stderr, "%.*s: %.*s\n", static_cast<int>(name.size()), name.data(),
                   static_cast<int>(size), text.data());
    }
  }
}

bool log_topic_enabled(std::string_view topic) {
  if (!logger().error.empty()) {
    throw InvalidArgument(logger().error);
  }
  const auto& topics = logger().topics;
  return std::find(topics.begin(), topics.end(), topic) != topics.end();
}

void log_topic(std::string_view topic, std::string_view message) {
  if (log_topic_enabled(topic)) {
    // This level is above every level that can be set, so a requested topic is always printed.
    logger().logger->log(spdlog::level::critical, "{}: {}", topic, printable(message));
  }
}

}  // namespace moebius
