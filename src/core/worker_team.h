// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Threads for parallel loops (core/parallel.h): each calling thread has a team of workers of its
// own, so loops of different threads share nothing and never wait for each other.
#pragma once

namespace moebius::worker_team {

using Job = void (*)(void* context, int thread_idx) noexcept;

// Calls job(context, 0) here, and job(context, i) on workers, each i of [1, num_threads) at most
// once.  Returns when all calls that began have ended, and what they wrote can be read.  Call 0
// must do whatever is left to do, since a worker may come too late to be used.
//
// A team grows to what is asked for and lives until its thread ends; nothing else is allocated.
// Where the caller has set a ParallelExecutor, that runs the job instead, and what is said here of
// call 0 holds for any call.
//
// Throws Error where a thread cannot be started, and InvalidArgument for a bad setting.  Nothing
// has been called then, and the next run() tries again.  Why it does not go on with fewer threads:
// nobody finds a slowness that nothing reports, and whoever reads the message can ask for fewer.
//
// REQUIRES: may_run().
void run(int num_threads, Job job, void* context);

// False on a worker and inside a job, since a loop inside a loop runs on the thread that meets it,
// and when the calling thread has begun to end.
bool may_run();

// How many processes have their threads on the CPUs of this one, itself included: 1 until a group
// of processes knows better.  Where there are more threads than CPUs, idle workers do not spin.
void set_num_processes(int num_processes);

}  // namespace moebius::worker_team
