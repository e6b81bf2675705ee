"""Ends a process once its starter is gone, even if either of them was killed or stopped."""

from __future__ import annotations

import subprocess
from pathlib import Path
from signal import Signals

# Waits on a pipe. "done": nothing to do any more. End of file: whoever held the other end is gone.
SCRIPT = """
read -r _ && exit 0
kill -s "$1" "$2"
kill -s CONT "$2" # most signals wait for a stopped process to go on
for _ in 1 2 3 4 5 6 7 8 9 10; do kill -s 0 "$2" || break; sleep 0.1; done
test -z "$3" || rm -rf -- "$3"
"""


class Reaper:
    """Waits for the end of this process, then sends the signal and deletes the directory."""

    def __init__(self, pid: int, signal: Signals, directory: Path | None = None) -> None:
        name = signal.name.removeprefix("SIG")
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", SCRIPT, "reaper", name, str(pid), str(directory or "")],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is for the test, which then ends everything in order
        )

    def dismiss(self) -> None:
        self._process.communicate(b"done\n")
