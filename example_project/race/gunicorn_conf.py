"""How one machine of the shop runs. The launcher's environment and arguments say the rest."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

preload_app = True  # one import, then forks: a machine is up in a second
control_socket_disable = True
loglevel = "warning"
timeout = 60
graceful_timeout = 3


def on_starting(server: object) -> None:
    """End with the launcher, even if it is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(os.environ.get("SHOP_LAUNCHER", os.getppid())):
            sys.exit("the launcher is gone")
