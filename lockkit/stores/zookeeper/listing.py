"""How operators look at an ensemble and release locks, and in which folders nodes are."""

from __future__ import annotations

import contextlib
import time
from typing import Any
from urllib.parse import unquote

from kazoo.exceptions import NodeExistsError, NoNodeError

from lockkit.engine.effects import Step
from lockkit.engine.last_words import QUEUE_SHOWN, SLOTS
from lockkit.model.errors import BackendError, BackendUnavailable
from lockkit.model.types import LockInfo, Page, Release
from lockkit.stores.contract import Listed
from lockkit.stores.zookeeper.failures import reason, refused, told
from lockkit.stores.zookeeper.nodes import in_order
from lockkit.stores.zookeeper.record import Seen, encoded, info_of, lost_info, seen
from lockkit.stores.zookeeper.requests import (
    Ask,
    ask,
    break_node,
    children,
    create,
    delete,
    read,
    stat,
)
from lockkit.stores.zookeeper.settings import Configuration, component

PAGE = 100
TRIES = 5
DAY = 24 * 3600.0

LOCKS, BROKEN = "locks", "broken"
"""Folders of a key prefix: one has a folder for each name; the other a node for each name whose
lock an operator has released, with the last words of that lease."""


class ZooKeeperListing(Listed):
    """The steps of ``Listed``, for one key prefix."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._root = configuration.root()
        self._route = configuration.route

    def folder(self, name: str) -> str:
        return f"{self._root}/{LOCKS}/{component(name)}"

    def fence(self, zxid: int) -> int:
        return self._configuration.fence_base + zxid

    def _ask(self, *requests: Ask) -> Step[list[Any]]:
        """Ask in any session. Without requests, nothing is sent."""
        return (yield from ask(self._route, *requests)).answers if requests else []

    def make(self, path: str, route: int) -> Step[None]:
        """Make a folder that stays. Make those above it only if they are missing: a user may lack
        the right to do so."""
        (answer,) = (yield from ask(route, create(path))).answers
        if isinstance(told(answer, NoNodeError, NodeExistsError), NoNodeError):
            yield from self.make(path.rpartition("/")[0], route)
            yield from self.make(path, route)

    def page(self, name: str | None, cursor: list[str] | None = None) -> Step[Page]:
        """The wall clock says how old things are. Nothing else depends on it."""
        if name is not None:
            return Page((yield from self._infos([component(name)])))
        if cursor is None:
            (found,) = yield from self._ask(children(f"{self._root}/{LOCKS}"))
            names = told(found, NoNodeError)
            cursor = [] if isinstance(names, NoNodeError) else sorted(names)
        infos = yield from self._infos(cursor[:PAGE])
        return Page(infos, cursor[PAGE:] or None)

    def _infos(self, names: list[str]) -> Step[list[LockInfo]]:
        """The queue of each name is read first, then the first nodes of each queue."""
        folders = [f"{self._root}/{LOCKS}/{name}" for name in names]
        found = yield from self._ask(*map(children, folders))
        queues = [in_order(told(answer, NoNodeError)) for answer in found]
        shown = [queue[: QUEUE_SHOWN + 1] for queue in queues]
        paths = [f"{f}/{n}" for f, queue in zip(folders, shown, strict=True) for n in queue]
        answers = iter((yield from self._ask(*map(read, paths))))
        infos, moment = [], time.time()
        for name, queue, few in zip(names, queues, shown, strict=True):
            there = [node for _ in few if (node := seen(told(next(answers), NoNodeError)))]
            length = len(queue) - len(few) + len(there)
            if there:
                base = self._configuration.fence_base
                infos.append(info_of(unquote(name), there, length, base, moment))
        return infos

    def break_(self, name: str, fence: int, by: str = "") -> Step[bool]:
        folder = self.folder(name)
        (names,) = yield from self._ask(children(folder))
        queue = in_order(told(names, NoNodeError))
        if not queue:
            return False
        path = f"{folder}/{queue[0]}"
        (found,) = yield from self._ask(read(path))
        node = seen(told(found, NoNodeError))
        if node is None or self.fence(node.stat.czxid) != fence:
            return False
        words = {**node.data, "by": by, "fence": fence, "guid": queue[0][:32], "name": name}
        return (yield from self._break(path, name, encoded(words)))

    def _break(self, path: str, name: str, words: bytes) -> Step[bool]:
        """Delete the node and say so in one transaction, so that its holder is told who did it."""
        mark, is_new = f"{self._root}/{BROKEN}/{component(name)}", True
        for _ in range(TRIES):
            both = break_node(path, mark, words, is_new=is_new), delete(path.rpartition("/")[0])
            broken, _ = yield from self._ask(*both)
            failure = reason(told(broken))
            if failure is None:
                with contextlib.suppress(BackendError):  # the next break prunes
                    yield from self._prune()
                return True
            if isinstance(failure, NodeExistsError):
                is_new = False
            elif not isinstance(failure, NoNodeError):
                raise refused(failure)
            elif is_new and not (yield from self._is_there(f"{self._root}/{BROKEN}")):
                yield from self.make(f"{self._root}/{BROKEN}", self._route)
            elif (yield from self._is_there(path)):
                is_new = True  # the mark was pruned meanwhile
            else:
                return False
        raise BackendUnavailable("the mark of the name's last break keeps coming and going")

    def _is_there(self, path: str) -> Step[bool]:
        (found,) = yield from self._ask(stat(path))
        return told(found) is not None

    def how_it_ended(self, name: str, guid: str) -> Step[Release]:
        """Whether an operator has deleted a node that is gone: BROKEN, or else ABSENT."""
        words = yield from self._words([component(name)])
        is_broken = any(data.get("guid") == guid for data, _ in words)
        return Release.BROKEN if is_broken else Release.ABSENT

    def last_words(self, name: str | None = None) -> Step[list[LockInfo]]:
        """The leases that operators have released in the last day: for each name, the last one."""
        names = [component(name)] if name is not None else (yield from self._marks())
        infos, moment = [], time.time()
        for data, stat_ in (yield from self._words(names)):
            ago = moment - stat_.mtime / 1000
            if ago < DAY:
                infos.append(lost_info(data, ago))
        return infos

    def _marks(self) -> Step[list[str]]:
        (found,) = yield from self._ask(children(f"{self._root}/{BROKEN}"))
        names = told(found, NoNodeError)
        return [] if isinstance(names, NoNodeError) else names

    def _words(self, names: list[str]) -> Step[list[Seen]]:
        found = yield from self._ask(*(read(f"{self._root}/{BROKEN}/{name}") for name in names))
        return [there for answer in found if (there := seen(told(answer, NoNodeError)))]

    def _prune(self) -> Step[None]:
        """Keep the newest SLOTS marks, and of these the ones within a day of the newest."""
        names = yield from self._marks()
        paths = [f"{self._root}/{BROKEN}/{name}" for name in names]
        found = yield from self._ask(*map(stat, paths))
        marks = sorted((s.mzxid, s.mtime, p) for p, s in zip(paths, found, strict=True) if s)
        new = max((moment for _, moment, _ in marks), default=0) - DAY * 1000
        kept = {path for _, moment, path in marks[-SLOTS:] if moment >= new}
        yield from self._ask(*(delete(path) for *_, path in marks if path not in kept))

    def prefixes(self) -> Step[dict[str, bool | None]]:
        above = self._configuration.chroot or "/"
        (found,) = yield from self._ask(children(above))
        names = list[str](() if isinstance(told(found, NoNodeError), Exception) else found)
        folders = [f"{self._configuration.chroot}/{name}/{LOCKS}" for name in names]
        locks = yield from self._ask(*map(children, folders))
        known = zip(names, folders, locks, strict=True)
        return {
            "" if name == "-" else unquote(name): (
                None if isinstance(answer, Exception) else bool(answer)
            )
            for name, folder, answer in known
            if not isinstance(answer, NoNodeError) and not folder.startswith(f"{self._root}/")
        }
