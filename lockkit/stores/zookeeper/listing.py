"""What operators see of an ensemble, and do there; and where things are kept."""

from __future__ import annotations

import contextlib
import time
from typing import Any
from urllib.parse import unquote

from kazoo.exceptions import NodeExistsError, NoNodeError

from lockkit.engine.effects import Step
from lockkit.model.errors import BackendError, BackendUnavailable
from lockkit.model.types import LockInfo, LockState, Owner, Page, Release
from lockkit.stores.contract import Listed
from lockkit.stores.zookeeper.failures import reason, refused, told
from lockkit.stores.zookeeper.nodes import in_order
from lockkit.stores.zookeeper.record import QUEUE_SHOWN, decoded, encoded, info_of, seen
from lockkit.stores.zookeeper.requests import ask, break_node, children, create, delete, read, stat
from lockkit.stores.zookeeper.settings import Configuration, component

PAGE = 100
TRIES = 5
DAY = 24 * 3600.0

LOCKS, BROKEN = "locks", "broken"
"""Folders of a key prefix: of the names, and of what operators have said of them."""


class ZooKeeperListing(Listed):
    """The steps of ``Listed``, for one key prefix."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._root = configuration.root()
        self._route = max(int(configuration.ttl * 1000), 1)

    def folder(self, name: str) -> str:
        return f"{self._root}/{LOCKS}/{component(name)}"

    def fence(self, zxid: int) -> int:
        return self._configuration.fence_base + zxid

    def make(self, path: str, route: int) -> Step[None]:
        """A folder that stays, and those above it, where a user may have no right."""
        (answer,) = (yield from ask(route, create(path))).answers
        if isinstance(told(answer, NoNodeError, NodeExistsError), NoNodeError):
            yield from self.make(path.rpartition("/")[0], route)
            yield from self.make(path, route)

    def page(self, name: str | None, cursor: list[str] | None = None) -> Step[Page]:
        """The wall clock says how old things are. Nothing else depends on it."""
        if name is not None:
            return Page((yield from self._infos([component(name)])))
        if cursor is None:
            (found,) = (yield from ask(self._route, children(f"{self._root}/{LOCKS}"))).answers
            names = told(found, NoNodeError)
            cursor = [] if isinstance(names, NoNodeError) else sorted(names)
        infos = yield from self._infos(cursor[:PAGE])
        return Page(infos, cursor[PAGE:] or None)

    def _infos(self, names: list[str]) -> Step[list[LockInfo]]:
        """Of each its queue, then of each what the first of the queue say."""
        folders = [f"{self._root}/{LOCKS}/{name}" for name in names]
        asked = [children(folder) for folder in folders]
        found = (yield from ask(self._route, *asked)).answers if asked else []
        queues = [in_order(told(answer, NoNodeError)) for answer in found]
        shown = [queue[: QUEUE_SHOWN + 1] for queue in queues]
        paths = [f"{f}/{n}" for f, queue in zip(folders, shown, strict=True) for n in queue]
        read_all = [read(path) for path in paths]
        answers = iter((yield from ask(self._route, *read_all)).answers if read_all else [])
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
        (names,) = (yield from ask(self._route, children(folder))).answers
        queue = in_order(told(names, NoNodeError))
        if not queue:
            return False
        path = f"{folder}/{queue[0]}"
        (found,) = (yield from ask(self._route, read(path))).answers
        node = seen(told(found, NoNodeError))
        if node is None or self.fence(node.stat.czxid) != fence:
            return False
        words = {**node.data, "by": by, "fence": fence, "guid": queue[0][:32], "name": name}
        return (yield from self._break(path, name, encoded(words)))

    def _break(self, path: str, name: str, words: bytes) -> Step[bool]:
        """The node and the word of it in one transaction, so that its holder is told who did it."""
        mark, is_new = f"{self._root}/{BROKEN}/{component(name)}", True
        for _ in range(TRIES):
            answers = yield from ask(
                self._route,
                break_node(path, mark, words, is_new=is_new),
                delete(path.rpartition("/")[0]),
            )
            failure = reason(told(answers.answers[0]))
            if failure is None:
                with contextlib.suppress(BackendError):  # the next one does so
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
        raise BackendUnavailable("what operators have said of the name comes and goes")

    def _is_there(self, path: str) -> Step[bool]:
        (found,) = (yield from ask(self._route, stat(path))).answers
        return told(found) is not None

    def how_it_ended(self, name: str, guid: str) -> Step[Release]:
        """Whether an operator has deleted a node that is gone."""
        words = yield from self._words([component(name)])
        is_broken = any(data.get("guid") == guid for data, _ in words)
        return Release.BROKEN if is_broken else Release.ABSENT

    def last_words(self, name: str | None = None) -> Step[list[LockInfo]]:
        """Of what operators have released in the last day; the last one of each name."""
        names = [component(name)] if name is not None else (yield from self._marks())
        infos, moment = [], time.time()
        for data, stat_ in (yield from self._words(names)):
            ago = moment - stat_.mtime / 1000
            if ago < DAY:
                infos.append(_lost(data, ago))
        return infos

    def _marks(self) -> Step[list[str]]:
        (found,) = (yield from ask(self._route, children(f"{self._root}/{BROKEN}"))).answers
        names = told(found, NoNodeError)
        return [] if isinstance(names, NoNodeError) else names

    def _words(self, names: list[str]) -> Step[list[tuple[dict[str, Any], Any]]]:
        if not names:
            return []
        asked = [read(f"{self._root}/{BROKEN}/{name}") for name in names]
        found = (yield from ask(self._route, *asked)).answers
        there = [answer for answer in found if not isinstance(told(answer, NoNodeError), Exception)]
        return [(decoded(data), stat_) for data, stat_ in there]

    def _prune(self) -> Step[None]:
        """Marks older than a day."""
        names = yield from self._marks()
        paths = [f"{self._root}/{BROKEN}/{name}" for name in names]
        found = (yield from ask(self._route, *map(stat, paths))).answers if paths else []
        new = max((s.mtime for s in found if s), default=0) - DAY * 1000
        old = [delete(p) for p, s in zip(paths, found, strict=True) if s and s.mtime < new]
        if old:
            yield from ask(self._route, *old)

    def prefixes(self) -> Step[dict[str, bool]]:
        above = self._configuration.chroot or "/"
        (found,) = (yield from ask(self._route, children(above))).answers
        names = list[str](() if isinstance(found, Exception) else found)
        folders = [f"{self._configuration.chroot}/{name}/{LOCKS}" for name in names]
        asked = [children(folder) for folder in folders]
        locks = (yield from ask(self._route, *asked)).answers if asked else []
        known = zip(names, folders, locks, strict=True)
        return {
            "" if name == "-" else unquote(name): bool(answer)
            for name, folder, answer in known
            if not isinstance(answer, Exception) and not folder.startswith(f"{self._root}/")
        }


def _lost(data: dict[str, Any], ago: float) -> LockInfo:
    owner, by, fence = data.get("owner"), data.get("by"), data.get("fence")
    return LockInfo(
        name=str(data.get("name", "")),
        state=LockState.LOST,
        owner=Owner.decode(owner) if isinstance(owner, str) else None,
        fence=fence if isinstance(fence, int) else None,
        left=-ago,
        broken_by=str(by or ""),
    )
