"""Container nodes, for which kazoo has no call: a server deletes one about a minute after its last
node has ended, however that ended."""

from __future__ import annotations

from typing import Any

from kazoo.protocol.serialization import Create, Create2, MultiHeader, Transaction

CONTAINER = 4
EPHEMERAL_SEQUENTIAL = 3
ERROR = -1


class CreateContainer(Create2):  # type: ignore[misc]  # kazoo has no types
    """A request to make a container."""

    type = 19


class Begin(Transaction):  # type: ignore[misc]
    """A request to make a container and an ephemeral sequential node in it; all or nothing. The
    answer: the errors, if it failed. What was made is not read, for which kazoo has no code."""

    @classmethod
    def deserialize(cls, reply: bytes, offset: int) -> list[Any]:
        header, _ = MultiHeader.deserialize(reply, offset)
        return super().deserialize(reply, offset) if header.type == ERROR else []


def create_container(path: str, acl: list[Any]) -> CreateContainer:
    return CreateContainer(path, b"", acl, CONTAINER)


def begin(folder: str, path: str, data: bytes, acl: list[Any]) -> Begin:
    node = Create(path, data, acl, EPHEMERAL_SEQUENTIAL)
    return Begin([create_container(folder, acl), node])
