// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A spdlog logger on stderr, configured once from MOEBIUS_LOG.
#include "moebius/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>
#include <vector>

#include "moebius/settings.h"

namespace moebius {

namespace {

struct Logger {
  std::shared_ptr<spdlog::logger> logger;
  std::vector<std::string> topics;
};

Logger make_logger() {
  Logger result;
  // Not registered with spdlog: the application's own loggers stay untouched.
  result.logger = std::make_shared<spdlog::logger>(
      "moebius", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  result.logger->set_pattern("%^%l%$: %v");
  result.logger->set_level(spdlog::level::warn);
  const std::string text = setting("MOEBIUS_LOG").value_or("");
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    begin = end + 1;
    const auto level = spdlog::level::from_str(word);
    if (level != spdlog::level::off || word == "off") {
      result.logger->set_level(level);
    } else {
      result.topics.push_back(word);
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

void log(LogLevel level, std::string_view message) {
  logger().logger->log(to_spdlog(level), "{}", message);
}

bool log_topic_enabled(std::string_view topic) {
  const auto& topics = logger().topics;
  return std::find(topics.begin(), topics.end(), topic) != topics.end();
}

void log_topic(std::string_view topic, std::string_view message) {
  if (log_topic_enabled(topic)) {
    // Above every level that can be set, so that a topic is printed whenever it is asked for.
    logger().logger->log(spdlog::level::critical, "{}: {}", topic, message);
  }
}

}  // namespace moebius
