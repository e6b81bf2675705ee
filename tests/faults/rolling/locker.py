"""Takes and gives back locks as it is told, a line each: ``take KIND TIMEOUT``, ``give``."""

from __future__ import annotations

import sys

import lockkit


def main(url: str, home: str) -> None:
    if not lockkit.__file__.startswith(home):
        raise SystemExit(f"lockkit of {lockkit.__file__}, and not of {home}")
    locks = lockkit.connect(url, ttl=5)
    kinds = {
        "mutex": lambda timeout: locks.lock("stock:1", timeout=timeout),
        "reentrant": lambda timeout: locks.lock("stock:1", reentrant=True, timeout=timeout),
        "semaphore": lambda timeout: locks.semaphore("stock:1", 1, timeout=timeout),
        "write": lambda timeout: locks.rwlock("stock:1", timeout=timeout).write(),
    }
    lease = None
    for line in sys.stdin:
        action, *words = line.split()
        try:
            if action == "take":
                lease = kinds[words[0]](float(words[1])).acquire()
                answer = f"granted {lease.fencing_token}"
            else:
                answer = str(lease is not None and lease.release())
        except lockkit.LockError as error:
            answer = type(error).__name__
        print(answer, flush=True)
    locks.close()


main(*sys.argv[1:])
