"""Commands on daemon threads, for which Python does not wait when it ends."""

import subprocess
import sys

import pytest

START = """
import os, sys, threading, time, warnings
import nibble

warnings.simplefilter("ignore")
source, out = sys.argv[1:]
called = threading.Event()

def progress(*_):
    called.set()
    time.sleep(0.2)

def convert(number=0, **options):
    nibble.convert(source, f"{out}{number}", to="bf16", threads=1, **options)

def convert_again_and_again():
    for number in range(10**6):
        try:
            convert(number, progress=progress)
        except BaseException:
            pass

def start(function, **options):
    threading.Thread(target=function, kwargs=options, daemon=True).start()

class Slow:
    def flush(self):  # Python calls it once daemon threads cannot go on
        time.sleep(0.3)
"""


@pytest.fixture
def ends(checkpoint, tmp_path):
    """Runs a script to its end, and returns what it has printed."""

    def run(script):
        command = [sys.executable, "-c", START + script, checkpoint, tmp_path / "out"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


def test_a_command_ends_before_python(ends, tmp_path):
    ends("sys.stdout = Slow()\nstart(convert, progress=progress)\ncalled.wait()")
    assert not (tmp_path / "out0").exists()


def test_no_command_begins_when_python_ends(ends):
    ends("sys.stdout = Slow()\nstart(convert_again_and_again)\ncalled.wait()")


def test_a_callback_that_never_returns_does_not_keep_python(ends):
    ends("""
def never_return(*_):
    called.set()
    threading.Event().wait()

nibble.commands._end_running.__defaults__ = (0.5,)
start(convert, progress=never_return)
called.wait()
""")


def test_a_forked_process_does_not_wait_for_threads_that_it_lacks(ends):
    said = ends("""
start(convert, progress=progress)
called.wait()
began = time.monotonic()
child = os.fork()
if child == 0:
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), time.monotonic() - began < 5)
""")
    assert said == "3 True\n"


def test_the_main_thread_runs_commands_when_python_ends(ends, tmp_path):
    ends("""
import atexit
atexit.unregister(nibble.commands._end_running)
atexit.register(convert)
atexit.register(nibble.commands._end_running)  # is called first
""")
    assert (tmp_path / "out0").exists()


def test_a_thread_that_python_waits_for_runs_to_its_end(ends, tmp_path):
    ends("threading.Thread(target=convert, kwargs={'progress': progress}).start()")
    assert (tmp_path / "out0").exists()
