"""peak.py FOUND [PROCS] -- COMMAND...: runs COMMAND and writes its status and peak RSS in KiB to FOUND.

A process begins with the pages of the one that started it, and they count for its peak RSS. So this one is small: it is
run without the site packages and imports nothing more. COMMAND joins the cgroup of PROCS, its cgroup.procs, first.
"""

import os
import sys

options, command = sys.argv[1:sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1:]
child = os.fork()
if child == 0:
    try:
        for procs in options[1:]:
            with open(procs, "w") as file:
                file.write(str(os.getpid()))
        os.execv(command[0], command)
    finally:
        os._exit(127)
_, status, usage = os.wait4(child, 0)
with open(options[0], "w") as file:
    file.write(f"{status} {usage.ru_maxrss}")
