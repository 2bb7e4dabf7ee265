// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// A way to end waits from outside, for hosts whose users press Ctrl-C: while a thread waits for
// other ranks, it asks a function of the caller's whether to go on.
// Thread-safety: set_interrupt_check() may be called from any thread at any time.
#pragma once

#include <functional>

#include "moebius/api.h"

namespace moebius MOEBIUS_API {

// Returns true to end the wait of the thread that calls it.
using InterruptCheck = std::function<bool()>;

// From now on threads that wait for other ranks on the host call `check` about 20 times a second.
// The wait of a thread for which it returns true, or throws, ends with a CommError whose peer is
// the rank itself: the group is broken, and the other ranks are told.  With an empty function
// nobody is asked.  Kernels of GPUs are not interrupted; they have deadlines.  Returns when no
// other thread is in the function before, so what that uses may go then; hold no lock that it
// takes.
void set_interrupt_check(InterruptCheck check);

}  // namespace moebius
