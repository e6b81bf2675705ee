"""TLS in front of a server that has none, with a certificate for localhost and 127.0.0.1."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Self

HOST = "127.0.0.1"
CHUNK = 65536
MAKE = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
    "-subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1 "
    "-keyout server.key -out server.crt"
)


class TLSEnd:
    """Listens on all addresses of this machine, and forwards to one of its ports."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._directory = Path(tempfile.mkdtemp(prefix="lockkit-tls-"))
        self._open: list[socket.socket] = []

    @property
    def certificate(self) -> str:
        return str(self._directory / "server.crt")

    def __enter__(self) -> Self:
        self.renew()
        self._listener = socket.create_server(("", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [_start(self._accept)]
        return self

    def renew(self) -> None:
        """Have another certificate from now on."""
        subprocess.run(MAKE.split(), cwd=self._directory, check=True, capture_output=True)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self.certificate, str(self._directory / "server.key"))

    def cut(self) -> None:
        """End what is connected."""
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(10)
        shutil.rmtree(self._directory)

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            try:
                client = self._context.wrap_socket(plain, server_side=True)
            except OSError:
                plain.close()
                continue
            store = socket.create_connection((HOST, self._target))
            self._open += client, store
            self._threads += [_start(_carry, client, store), _start(_carry, store, client)]


def _carry(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError, ValueError):
        while data := source.recv(CHUNK):
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _start(task: object, *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=task, args=arguments, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread
