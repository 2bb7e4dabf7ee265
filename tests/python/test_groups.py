# SPDX-FileCopyrightText: 2026 the Moebius authors
# SPDX-License-Identifier: Apache-2.0
"""Groups of threads and of processes, their failures, and KeyboardInterrupt."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from helpers import TIMEOUT, run_threads, torch

import moebius

HERE = Path(__file__).parent


def run_program(program: str, *, size: int = 1, seconds: float = 90) -> list[str]:
    """Runs a program as `size` processes with arguments rank and size, and gives what they print."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank), str(size)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=HERE,
        )
        for rank in range(size)
    ]
    try:
        results = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, err) in zip(processes, results):
        assert process.returncode == 0 and "Exception ignored" not in err, err
    return [out for out, _ in results]


def test_threads_gather_and_wait_for_each_other() -> None:
    def body(group: moebius.Group) -> list[bytes]:
        group.barrier()
        return group.all_gather(bytes([65 + group.rank]) * 3)

    assert run_threads(body, 4) == [[b"AAA", b"BBB", b"CCC", b"DDD"]] * 4


def test_a_group_says_what_it_is() -> None:
    def body(group: moebius.Group) -> tuple[Any, ...]:
        group.barrier()
        assert group.timeout == TIMEOUT and group.device == "cpu" and group.kind == "threads"
        assert group.waited >= 0 and group.bytes_sent >= 0
        assert repr(group) == f"moebius.Group('threads', rank={group.rank}, size=4)"
        return group.rank, group.node, group.num_nodes, group.local_rank, group.ranks_on_node

    expected = [(0, 0, 2, 0, 2), (1, 0, 2, 1, 2), (2, 1, 2, 0, 2), (3, 1, 2, 1, 2)]
    assert run_threads(body, 4, ranks_per_node=2) == expected


def test_groups_split() -> None:
    def body(group: moebius.Group) -> Any:
        part = group.split(-1 if group.rank == 3 else group.rank % 2, key=-group.rank)
        group.barrier()
        return None if part is None else (part.rank, part.size, part.all_gather(b"%d" % group.rank))

    assert run_threads(body, 4) == [(1, 2, [b"2", b"0"]), (0, 1, [b"1"]), (0, 2, [b"2", b"0"]), None]


def test_a_rank_that_fails_is_named_to_the_others() -> None:
    def body(group: moebius.Group) -> Any:
        if group.rank == 1:
            raise RuntimeError("the dog ate it")
        with pytest.raises(moebius.CommError, match="the dog ate it") as caught:
            group.barrier()
        return caught.value.rank, caught.value.peer, caught.value.peer_is_silent

    groups = moebius.Group.threads(2, timeout=TIMEOUT)
    found: list[Any] = []

    def run(group: moebius.Group) -> None:
        try:
            with group:
                found.append(body(group))
        except RuntimeError:
            pass

    threads = [threading.Thread(target=run, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(0, 1, False)]


def test_a_rank_that_does_not_come_is_named_at_the_deadline() -> None:
    groups = moebius.Group.threads(2, timeout=0.3)
    with pytest.raises(moebius.CommError) as caught:
        groups[0].barrier()
    assert (caught.value.rank, caught.value.peer) == (0, 1)


def test_abort_tells_the_others() -> None:
    groups = moebius.Group.threads(2, timeout=TIMEOUT)
    groups[1].abort("out of ideas")
    with pytest.raises(moebius.CommError, match="out of ideas"):
        groups[0].barrier()


def test_wrong_groups_are_refused() -> None:
    with pytest.raises(moebius.InvalidArgument):
        moebius.Group.threads(0)
    with pytest.raises(moebius.InvalidArgument, match="timeout is -1 s"):
        moebius.Group.threads(2, timeout=-1)
    group = moebius.Group.threads(1)[0]
    with pytest.raises(moebius.InvalidArgument):
        group.set_dead(5)
    group.close()
    with pytest.raises(moebius.InvalidArgument, match="this Group has been closed"):
        group.barrier()
    assert "closed" in repr(group)


@pytest.mark.skipif(moebius.num_cuda_devices() > 0, reason="there is a GPU")
def test_without_a_gpu_a_group_stays_a_host_group() -> None:
    group = moebius.Group.threads(1)[0]
    for convert in (group.cuda, group.nccl):
        with pytest.raises(moebius.Unsupported):
            convert(0)
    group.barrier()
    with pytest.raises(moebius.Error):
        moebius.Group.from_nccl(0)


def test_what_all_gather_raises_is_raised() -> None:
    def fails(data: bytes) -> list[bytes]:
        raise KeyError("no store")

    with pytest.raises(KeyError, match="no store"):
        moebius.Group.processes(0, 2, fails)
    with pytest.raises(moebius.InvalidArgument, match="all_gather gave parts of"):
        moebius.Group.processes(0, 2, lambda data: [data])
    group = moebius.Group.processes(0, 1, lambda data: [data])
    assert group.kind == "processes"


PROCESSES = """
import sys, multiprocessing
import moebius

def child(rank, size, pipes, results):
    def all_gather(data):
        # Rank 0 collects over pipes and hands everything out.
        if rank:
            pipes[rank].send(data)
            return pipes[rank].recv()
        parts = [data] + [pipe.recv() for pipe in pipes[1:]]
        for pipe in pipes[1:]:
            pipe.send(parts)
        return parts
    with moebius.Group.processes(rank, size, all_gather, timeout=60) as group:
        results.put((rank, group.all_gather(b"%d" % rank)))
        group.barrier()

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    size = 4
    pairs = [context.Pipe() for _ in range(size)]
    results = context.Queue()
    processes = []
    for rank in range(size):
        pipes = [pair[0] for pair in pairs] if rank == 0 else [pair[1] for pair in pairs]
        processes.append(context.Process(target=child, args=(rank, size, pipes, results)))
    for process in processes:
        process.start()
    print(sorted(results.get() for _ in range(size)))
    for process in processes:
        process.join()
        assert process.exitcode == 0
"""


def test_processes_meet_by_a_callback() -> None:
    (out,) = run_program(PROCESSES)
    gathered = [b"0", b"1", b"2", b"3"]
    assert out.strip() == str([(rank, gathered) for rank in range(4)])


GLOO = """
import os, sys, tempfile
import torch.distributed as dist
import moebius
rank, size = map(int, sys.argv[1:])
dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"], rank=rank, world_size=size)
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
with moebius.Group.torch(timeout=60) as group, moebius.Group.torch(pairs[rank // 2]) as pair:
    print(group.rank, group.all_gather(b"%d" % rank), pair.rank, pair.all_gather(b"%d" % rank))
    group.barrier()
dist.destroy_process_group()
"""


@pytest.mark.skipif(torch is None, reason="torch is not installed")
def test_processes_meet_by_torch_distributed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("STORE", str(tmp_path / "store"))
    outs = run_program(GLOO, size=4)
    gathered = [b"0", b"1", b"2", b"3"]
    for rank, out in enumerate(outs):
        pair = gathered[rank // 2 * 2 : rank // 2 * 2 + 2]
        assert out.strip() == f"{rank} {gathered} {rank % 2} {pair}"


MPI = """
import os
import moebius
with moebius.Group.mpi(timeout=60) as group:
    line = f"{group.kind} {group.size} {group.all_gather(b'%d' % group.rank)}\\n"
    os.write(1, line.encode())  # whole, among those of the other rank
"""


def test_processes_meet_by_mpi() -> None:
    mpiexec = shutil.which("mpiexec")
    if mpiexec is None:
        pytest.skip("mpiexec is not installed")
    command = [mpiexec, "-n", "2", sys.executable, "-c", MPI]
    out = subprocess.run(command, capture_output=True, text=True, timeout=100)
    if "Unsupported" in out.stderr:
        pytest.skip("this build has no MPI")
    assert out.returncode == 0, out.stderr
    assert out.stdout == "mpi 2 [b'0', b'1']\n" * 2


@pytest.mark.skipif(torch is None, reason="torch is not installed")
def test_torch_must_be_initialised() -> None:
    with pytest.raises(moebius.InvalidArgument, match="init_process_group"):
        moebius.Group.torch()


# Each prints how the wait ended and after how long.
INTERRUPTED = """
import signal, sys, threading, time, os
import moebius
{handler}
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.{signal})).start()
groups = moebius.Group.threads(2, timeout=60)
begin = time.time()
try:
    groups[0].barrier()
except BaseException as error:
    print(type(error).__name__, time.time() - begin < 5)
try:
    groups[1].barrier()
except moebius.CommError as error:
    print(error.peer)
"""


def test_keyboard_interrupt_ends_a_wait() -> None:
    (out,) = run_program(INTERRUPTED.format(handler="", signal="SIGINT"))
    assert out.split() == ["KeyboardInterrupt", "True", "0"]


def test_what_a_handler_raises_ends_a_wait() -> None:
    handler = """
def stop(number, frame):
    raise OSError("stop")
signal.signal(signal.SIGTERM, stop)
"""
    (out,) = run_program(INTERRUPTED.format(handler=handler, signal="SIGTERM"))
    assert out.split() == ["OSError", "True", "0"]


def test_signals_that_raise_nothing_end_no_wait() -> None:
    program = """
import signal, threading, os, time
import moebius
calls = []
signal.signal(signal.SIGUSR1, lambda number, frame: calls.append(number))
groups = moebius.Group.threads(2, timeout=60)
def late():
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0.5)
    groups[1].barrier()
threading.Thread(target=late).start()
groups[0].barrier()
print(len(calls))
"""
    assert run_program(program) == ["1\n"]


def test_interrupts_may_come_again_and_again() -> None:
    program = """
import signal, threading, os
import moebius
for _ in range(5):
    groups = moebius.Group.threads(2, timeout=60)
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        groups[0].barrier()
    except KeyboardInterrupt:
        print("again", end=" ")
"""
    assert run_program(program) == ["again " * 5]


def test_a_program_ends_while_a_thread_waits() -> None:
    program = """
import threading, time
import moebius
groups = moebius.Group.threads(2, timeout=60)
moebius.log_to_logging()
threading.Thread(target=groups[0].barrier, daemon=True).start()
time.sleep(0.2)
print("end")
"""
    begin = time.time()
    assert run_program(program) == ["end\n"]
    assert time.time() - begin < 20


def test_a_program_ends_with_objects_alive() -> None:
    program = """
import gc, threading
import numpy as np
import moebius
gc.disable()
moebius.set_setting("MOEBIUS_LOG", "dispatch")
moebius.log_to_logging()
group = moebius.Group.threads(2)[0]
alone = moebius.Group.processes(0, 1, lambda data: [data])
transports = moebius.Transports(alone)
w1, w2 = np.ones((4, 32, 32), "f4"), np.ones((4, 32, 16), "f4")
hidden = np.ones((2, 32), "f4")
layer = moebius.MoeLayer(
    w1, w2, topk=2, num_experts=4, group=alone, transports=transports,
    routing=lambda hidden, ids, weights: (ids.fill(0), weights.fill(1)),
)
call = layer.start(moebius.Array.from_numpy(hidden))
call.step()
rows = moebius.HighThroughput(alone, 4).dispatch(hidden, np.zeros((2, 2), "i4")).x
experts = moebius.Experts(w1, w2, topk=2)
capsule = moebius.Array.empty((4,)).__dlpack__()
loop = [layer, experts]
loop.append(loop)
print("end")
"""
    assert run_program(program) == ["end\n"]
    assert run_program("import sys, numpy\n" + program + "sys.exit(0)") == ["end\n"]


def test_one_thread_at_a_time_may_use_a_group() -> None:
    groups = moebius.Group.threads(2, timeout=TIMEOUT)
    waiting = threading.Thread(target=groups[0].barrier)
    waiting.start()
    time.sleep(0.2)
    try:
        with pytest.raises(moebius.InvalidArgument):
            groups[0].barrier()
    finally:
        groups[1].barrier()
        waiting.join()


def test_a_process_that_ends_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    program = """
import os, sys, signal, time
import moebius
rank, size = map(int, sys.argv[1:])
folder = os.environ["FOLDER"]
def all_gather(data):
    with open(f"{folder}/{rank}.tmp", "wb") as file:
        file.write(data)
    os.rename(f"{folder}/{rank}.tmp", f"{folder}/{rank}")
    parts = []
    for other in range(size):
        while not os.path.exists(f"{folder}/{other}"):
            time.sleep(0.01)
        parts.append(open(f"{folder}/{other}", "rb").read())
    return parts
group = moebius.Group.processes(rank, size, all_gather, timeout=30)
group.barrier()
if rank == 1:
    os._exit(0)
try:
    group.barrier()
except moebius.CommError as error:
    print(error.peer)
"""
    monkeypatch.setenv("FOLDER", str(tmp_path))
    assert run_program(program, size=3) == ["1\n", "", "1\n"]


