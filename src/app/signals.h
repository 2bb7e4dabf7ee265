// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Signals that would end the command without a word.
#pragma once

namespace moebius::app {

// From now on a write beyond the size that files may have (ulimit -f) is an error like that of a
// full disk.  A read of a mapped file that has been truncated meanwhile prints "moebius: <message>"
// on stderr and ends the process with kRunFailed; any other SIGBUS ends it as before.
// Only the command calls this, since the signals of a process belong to its program.
void handle_signals();

}  // namespace moebius::app
