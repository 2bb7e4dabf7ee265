#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Kills or stops one of three processes of a job at a random moment, from its first millisecond on.

Jobs are those of mpirun (`moebius run --group mpi`) and forked processes (stopped_ranks), over each backend. A
job has to end in time. If it fails, exactly one line "moebius: ..." names the rank that was stopped and no
other one, and there is no output; otherwise it says nothing and its output is there. Nothing may be left: no
process, no file beside the output, nothing in /dev/shm.

mpirun ends a job as soon as a process was killed, and names the rank itself, so a line of ours may then be
missing, except with --enable-recovery. Open MPI 4.1 sometimes hangs when a process dies while it starts; such a
launcher is ended here and counted, once all processes of ours have ended. Nor does a launcher end a process that is
stopped when the others have ended well, and with --enable-recovery nobody tells of one that is killed then.
"""

import argparse
import collections
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

RANKS = 3
TIMEOUT_S = 1.0  # MOEBIUS_TIMEOUT_MS of the jobs
START_S = 20  # starting a job on a busy machine
BACKENDS = ["allgather_reducescatter", "high_throughput", "low_latency"]
RANK = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"


class Case:
    def __init__(self, draw, options):
        self.over_mpi = draw.random() < (0.7 if options.mpiexec else 0)
        self.backend = draw.choice(BACKENDS)
        self.victim = draw.randrange(RANKS)
        self.signal = draw.choice([signal.SIGKILL, signal.SIGSTOP])
        self.recovers = self.over_mpi and self.signal == signal.SIGKILL and draw.random() < 0.7
        # The moment is drawn first of starting, then of calls; jobs of few calls are met at their end.
        self.after_s = draw.random() ** 2 * 1.2
        self.calls = draw.choice([1, 100, 100000])

    def __str__(self):
        group = "mpi" if self.over_mpi else "processes"
        return (f"{group} {self.backend} calls {self.calls}: {signal.Signals(self.signal).name} to rank "
                f"{self.victim} after {self.after_s * 1e3:.0f} ms{', with recovery' if self.recovers else ''}")

    def command(self, options, model, folder):
        if not self.over_mpi:
            return [options.ranks_program, model, self.backend, str(self.calls), folder]
        line = (f"echo $PMIX_NAMESPACE > {folder}/job.{RANK}; echo $$ > {folder}/pid.{RANK}; exec {options.program} run --group mpi --model {model} --tokens 16"
                f" --threads 1 --repeat {self.calls} --all2all {self.backend} --output {folder}/output 2>>{folder}/said")
        recovery = ["--enable-recovery"] if self.recovers else []
        return [options.mpiexec, *options.mpi_flags.split(), *recovery, "-np", str(RANKS), "sh", "-c", line]


def read_pid(folder, rank):
    try:
        return int((folder / f"pid.{rank}").read_text())
    except (OSError, ValueError):
        return None


def pids_in(folder):
    return [pid for pid in (read_pid(folder, rank) for rank in range(RANKS)) if pid is not None]


def shared_memory(folder):
    """Names in /dev/shm that Open MPI gave to segments of the job."""
    jobs = {int(p.read_text()) for p in folder.glob("job.*") if p.read_text().strip().isdigit()}
    return {p.name for p in pathlib.Path("/dev/shm").iterdir() for job in jobs if f"{job:x}" in p.name}


def is_alive(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def run(case, options, model, folder):
    """(what is wrong or None, how it ended, what it said)."""
    environment = dict(os.environ, MOEBIUS_TIMEOUT_MS=str(int(TIMEOUT_S * 1e3)), MOEBIUS_SPIN_US="0",
                       OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    said_path = folder / "said"
    said_path.touch()
    with open(said_path, "ab") as said_file:
        job = subprocess.Popen(case.command(options, str(model), str(folder)), stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=said_file, env=environment,
                               start_new_session=True)
    begin = time.monotonic()
    while (pid := read_pid(folder, case.victim)) is None and job.poll() is None:
        if time.monotonic() - begin > START_S:
            break
        time.sleep(0.0005)
    time.sleep(case.after_s)
    hit = pid is not None and is_alive(pid)
    if hit:
        try:
            os.kill(pid, case.signal)
        except ProcessLookupError:
            hit = False
    stopped_at = time.monotonic()
    wrong = None
    launcher_hangs = was_last = False
    try:
        job.wait(timeout=2 * TIMEOUT_S + START_S)
    except subprocess.TimeoutExpired:
        running = {p for p in pids_in(folder) if is_alive(p)}
        was_last = running == {pid} and case.signal == signal.SIGSTOP
        launcher_hangs = case.over_mpi and (not running or was_last)
        wrong = None if launcher_hangs else f"did not end within {2 * TIMEOUT_S + START_S} s"
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    took = time.monotonic() - stopped_at
    time.sleep(0.05)  # the launcher ends a moment before the last of its processes
    left_running = [p for p in pids_in(folder) if is_alive(p)]
    for p in left_running:
        os.kill(p, signal.SIGKILL)
    said = said_path.read_text(errors="replace")
    lines = [line for line in said.splitlines() if line.startswith("moebius: ")]
    files = {p.name for p in folder.iterdir() if not p.name.startswith(("pid.", "job.", "said"))}
    has_output = "output" in files
    launcher_names = re.search(rf"rank {case.victim} with PID .* exited on signal 9", said) is not None
    failed = job.returncode != 0 or bool(lines)
    ended = f"code {job.returncode}, {len(lines)} lines, {'output' if has_output else 'no output'}"
    ended += ", ended by this test" if launcher_hangs else ""
    # The last process to end was hit when nobody waited for it any more.
    was_last = was_last or case.recovers and took < TIMEOUT_S / 2
    if wrong or was_last and not lines:
        pass
    elif left_running:
        wrong = f"processes are left: {left_running}"
    elif files - {"output"}:
        wrong = f"files are left: {files}"
    elif shared_memory(folder):
        wrong = f"/dev/shm keeps {shared_memory(folder)}"
    elif len(lines) > 1:
        wrong = f"{len(lines)} lines"
    elif failed and has_output and case.signal == signal.SIGSTOP:
        wrong = "it failed, but there is output"
    elif failed and not lines and not (launcher_names and not case.recovers):
        wrong = "it failed without a line"
    elif not failed and not has_output and not (case.recovers and hit):
        wrong = "it ended well without output"
    elif case.recovers and hit and not lines and not has_output:
        wrong = "nothing was said, and there is no output"
    elif lines and not re.search(rf"rank {case.victim} (did not come|has left|is not there|is stopped|was killed)",
                                 lines[0]):
        wrong = "the line does not name the rank"
    elif lines and len(set(re.findall(r"rank (\d) (?:did not come|has left|is not there|is stopped|was killed)",
                                      lines[0]))) > 1:
        wrong = "the line names others, too"
    return wrong, ended, said.strip(), took, hit


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the command moebius")
    parser.add_argument("ranks_program", help="stopped_ranks")
    parser.add_argument("mpiexec", nargs="?", default="", help="the launcher; without it only forked processes run")
    parser.add_argument("--mpi-flags", default="--oversubscribe")
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=29)
    parser.add_argument("--verbose", action="store_true", help="a line for each run")
    options = parser.parse_args()

    draw = random.Random(options.seed)
    ends = collections.Counter()
    num_wrong = num_hit = 0
    longest = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        model = pathlib.Path(scratch, "model")
        subprocess.run([options.program, "make-model", "--preset", "tiny", "--output", model], check=True,
                       stdout=subprocess.DEVNULL)
        for _ in range(options.runs):
            case = Case(draw, options)
            folder = pathlib.Path(scratch, "job")
            folder.mkdir()
            wrong, ended, said, took, hit = run(case, options, model, folder)
            shutil.rmtree(folder)
            ends[ended] += 1
            num_hit += hit
            longest = max(longest, took)
            if options.verbose or wrong:
                print(f"{'WRONG: ' + wrong if wrong else 'ok'}: {case}; {ended}, {took:.1f} s\n  "
                      + "\n  ".join(line for line in said.splitlines() if line.strip()), flush=True)
            num_wrong += wrong is not None
    print(f"{options.runs} runs, {num_hit} hit, the longest took {longest:.1f} s after it, {num_wrong} wrong")
    for ended, count in ends.most_common():
        print(f"{count:5} {ended}")
    return 1 if num_wrong or not num_hit else 0


if __name__ == "__main__":
    sys.exit(main())
