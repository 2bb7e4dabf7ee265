// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <list>
#include <mutex>
#include <string>
#include <utility>

#include "core/caller_function.h"
#include "core/log_choice.h"
#include "core/printable.h"
#include "core/settings_changes.h"
#include "moebius/error.h"
#include "moebius/settings.h"

namespace moebius {

namespace {

constexpr std::array kLevels = {
    std::pair{std::string_view("error"), LogLevel::kError},
    std::pair{std::string_view("warn"), LogLevel::kWarn},
    std::pair{std::string_view("info"), LogLevel::kInfo},
    std::pair{std::string_view("debug"), LogLevel::kDebug},
};
constexpr std::array kTopics = {std::string_view("dispatch")};

// What MOEBIUS_LOG said after so many changes of settings.
struct Read {
  uint64_t num_changes = 0;
  LogChoice choice;
};

// Returns the present choice.  Those before stay, since other threads may be looking at them.
const LogChoice& log_choice() {
  static std::atomic<const Read*> latest{nullptr};
  static std::mutex mutex;
  static auto& all = *new std::list<Read>;
  const uint64_t num_changes = num_setting_changes();
  const Read* read = latest.load(std::memory_order_acquire);
  if (read == nullptr || read->num_changes != num_changes) {
    const std::lock_guard lock(mutex);
    all.push_back({num_changes, parse_log_choice(setting("MOEBIUS_LOG").value_or(""))});
    read = &all.back();
    latest.store(read, std::memory_order_release);
  }
  return read->choice;
}

CallerFunction<LogCallback>& callback() {
  // Leaked: destructors after main() may log.
  static auto& instance = *new CallerFunction<LogCallback>;
  return instance;
}

// Allocates nothing.
void deliver(LogLevel level, std::string_view topic, std::string_view message) noexcept {
  try {
    if (callback().call([&](const LogCallback& function) { function(level, topic, message); })) {
      return;
    }
  } catch (...) {
    return;  // a message is not worth an error
  }
  constexpr std::array<std::string_view, 4> kNames = {"debug", "info", "warning", "error"};
  const std::string_view head = topic.empty() ? kNames[static_cast<size_t>(level)] : topic;
  std::fprintf(stderr, "%.*s: %.*s\n", static_cast<int>(head.size()), head.data(),
               static_cast<int>(message.size()), message.data());
}

}  // namespace

LogChoice parse_log_choice(std::string_view text) {
  LogChoice choice;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    begin = end + 1;
    const auto* level = std::find_if(kLevels.begin(), kLevels.end(),
                                     [&](const auto& entry) { return entry.first == word; });
    if (level != kLevels.end()) {
      choice.level = level->second;
    } else if (std::find(kTopics.begin(), kTopics.end(), word) != kTopics.end()) {
      choice.topics.emplace_back(word);
    } else {
      choice.error = fmt::format(
          "MOEBIUS_LOG is \"{}\", expected a level (error, warn, info, debug), a topic (dispatch), "
          "or several with commas",
          text);
      choice.level = LogLevel::kWarn;
      choice.topics.clear();
      break;
    }
  }
  return choice;
}

void set_log_callback(LogCallback function) {
  callback().replace(std::move(function));
}

void log(LogLevel level, std::string_view message) noexcept {
  try {
    if (level >= log_choice().level) {
      deliver(level, {}, printable(message));
    }
  } catch (...) {
    // There is no memory, so the default level holds.
    if (level >= LogLevel::kWarn) {
      std::array<char, 1024> text;
      const size_t size = printable_into(message, text);
      deliver(level, {}, {text.data(), size});
    }
  }
}

bool log_topic_enabled(std::string_view topic) {
  const LogChoice& choice = log_choice();
  if (!choice.error.empty()) {
    throw InvalidArgument(choice.error);
  }
  return std::find(choice.topics.begin(), choice.topics.end(), topic) != choice.topics.end();
}

void log_topic(std::string_view topic, std::string_view message) {
  if (log_topic_enabled(topic)) {
    deliver(LogLevel::kInfo, topic, printable(message));
  }
}

}  // namespace moebius
