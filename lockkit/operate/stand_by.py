"""Waits for a fencing token, and then becomes a program: the child of ``locks run``.

It is run as text, without lockkit: see ``STAND_BY``. A shell would drop the variables whose names
it does not accept, and obey some.
"""

from __future__ import annotations

import os
import signal
import sys


def main(pipe: int, words: list[str]) -> None:
    """Without a line on the pipe, end. An empty one says that the store has no tokens."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback
    line = os.read(pipe, 99).decode()
    os.close(pipe)
    if not line:
        return
    os.environ["LOCKKIT_FENCE"] = line.strip()
    if not line.strip():
        del os.environ["LOCKKIT_FENCE"]
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(words[0], words)  # noqa: S606  it is what the user wants run
    except (OSError, ValueError):  # a shell says why, or runs a script that has no first line
        os.execv("/bin/sh", ["/bin/sh", "-c", 'exec "$@"', "/bin/sh", *words])  # noqa: S606


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
