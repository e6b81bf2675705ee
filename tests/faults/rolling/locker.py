"""Takes and gives back locks as it is told.

A line each: ``open URL``, ``take KIND TIMEOUT``, ``give``, ``close``.
"""

from __future__ import annotations

import sys

import lockkit


def main(home: str) -> None:
    if not lockkit.__file__.startswith(home):
        raise SystemExit(f"lockkit of {lockkit.__file__}, and not of {home}")
    locks: lockkit.LockClient | None = None
    lease = None
    for line in sys.stdin:
        action, *words = line.split()
        try:
            if action == "open":
                locks, answer = lockkit.connect(words[0], ttl=30), "open"
            elif action == "take":
                lease = lock_of(locks, words[0], float(words[1])).acquire()
                answer = f"granted {lease.fencing_token}"
            elif action == "give":
                answer = str(lease is not None and lease.release())
            else:
                locks.close()
                answer = "closed"
        except lockkit.LockError as error:
            answer = type(error).__name__
        print(answer, flush=True)


def lock_of(locks: lockkit.LockClient, kind: str, timeout: float) -> lockkit.Lock:
    if kind == "semaphore":
        return locks.semaphore("stock:1", 1, timeout=timeout)
    if kind == "write":
        return locks.rwlock("stock:1", timeout=timeout).write()
    return locks.lock("stock:1", reentrant=kind == "reentrant", timeout=timeout)


main(*sys.argv[1:])
