// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/app/command_here.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <stdexcept>

#include "app/commands.h"

namespace moebius::test {

namespace {

// Sends what this process writes to a stream to a file, while this object lives.
class Redirected {
 public:
  Redirected(std::FILE* stream, const std::string& path) : stream_(stream) {
    std::fflush(stream_);
    before_ = dup(fileno(stream_));
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (before_ < 0 || file < 0 || dup2(file, fileno(stream_)) < 0) {
      throw std::runtime_error("cannot redirect to " + path);
    }
    close(file);
  }
  ~Redirected() {
    std::fflush(stream_);
    dup2(before_, fileno(stream_));
    close(before_);
  }
  Redirected(const Redirected&) = delete;
  Redirected& operator=(const Redirected&) = delete;

 private:
  std::FILE* const stream_;
  int before_ = -1;
};

}  // namespace

CommandResult run_command_here(const Words& arguments) {
  const ScratchFolder scratch;
  const std::string out = scratch / "out";
  const std::string err = scratch / "err";
  std::vector<const char*> argv = {"moebius"};
  for (const std::string& argument : arguments) {
    argv.push_back(argument.c_str());
  }
  CommandResult result;
  {
    const Redirected to_out(stdout, out);
    const Redirected to_err(stderr, err);
    result.exit_code = app::run_command_line(static_cast<int>(argv.size()), argv.data());
  }
  result.out = read_text(out);
  result.err = read_text(err);
  return result;
}

}  // namespace moebius::test
