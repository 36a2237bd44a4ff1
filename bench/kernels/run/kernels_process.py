"""Processes that cannot take others with them: each has a limit, and a group that is ended whole."""

import ctypes
import os
import resource
import selectors
import signal
import subprocess
import time

PRCTL = ctypes.CDLL(None).prctl


def prepare_child():
    """A process group of its own, which can be ended whole; no core files; no life after the runner's."""
    os.setpgrp()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    PRCTL(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def end(process, grace):
    """Ends the process and all of its group. False if it cannot be ended: it hangs in the driver."""
    for name, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 5)):
        try:
            os.killpg(process.pid, name)
        except ProcessLookupError:
            pass
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
        if name == signal.SIGTERM:  # what the process has left behind
            continue
        return True
    return process.poll() is not None


class Lines:
    """The lines of a pipe, however its bytes arrive."""

    def __init__(self, take):
        self.take = take
        self.rest = b""

    def add(self, data):
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self.take(line.decode(errors="replace"))

    def close(self):
        if self.rest:
            self.take(self.rest.decode(errors="replace"))
            self.rest = b""


def run_process(command, limit, env, on_output, on_error, stopping):
    """Runs a command; its lines are given away as they come. Returns (exit status, or None if it was ended at the limit
    or because the event `stopping` was set; whether it has ended)."""
    process = subprocess.Popen(
        [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=env, preexec_fn=prepare_child,
    )  # fmt: skip
    deadline = time.monotonic() + limit
    with selectors.DefaultSelector() as selector:
        for pipe, take in ((process.stdout, on_output), (process.stderr, on_error)):
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ, Lines(take))
        lines = [key.data for key in selector.get_map().values()]
        try:
            while time.monotonic() < deadline and not stopping.is_set():
                # A child of the process may hold the pipes open: their end is not waited for once the process is gone.
                gone = process.poll() is not None
                events = selector.select(0 if gone else min(0.2, max(0.0, deadline - time.monotonic())))
                for key, _ in events:
                    data = os.read(key.fd, 1 << 16)
                    if data:
                        key.data.add(data)
                    else:
                        selector.unregister(key.fileobj)
                if gone and not events:
                    break
                if not selector.get_map() and not gone:
                    try:
                        process.wait(max(0.0, deadline - time.monotonic()))
                    except subprocess.TimeoutExpired:
                        break
            status = process.poll()
        finally:
            ended = end(process, 2 if process.poll() is None else 0)
            for line in lines:
                line.close()
            process.stdout.close()
            process.stderr.close()
    return status, ended
