"""Backends of other packages, found by their entry points."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lockkit
from lockkit.model.errors import UnknownBackend

MODULE = """
from lockkit.stores.memory import MemoryStore

class Store(MemoryStore):
    pass

class Other(MemoryStore):
    pass

nothing = None
"""

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a package that offers a backend for ``vault://``."""
    (tmp_path / "vault_store.py").write_text(MODULE)

    def installed(package: str, offers: str) -> None:
        info = tmp_path / package / f"{package}-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[lockkit.backends]\nvault = {offers}\n")
        monkeypatch.syspath_prepend(info.parent)

    monkeypatch.syspath_prepend(tmp_path)
    yield installed
    sys.modules.pop("vault_store", None)


def test_a_scheme_of_an_installed_package(install: Install) -> None:
    install("vault", "vault_store:Store")
    client = lockkit.connect("vault://safe")
    assert type(client.store).__module__ == "vault_store"
    with client.lock("stock:42") as lease:
        assert client.lock("stock:42").try_acquire() is None
        lease.check()
    client.close()


def test_two_packages_that_offer_the_same_are_no_choice(install: Install) -> None:
    install("vault", "vault_store:Store")
    install("vault_again", "vault_store:Store")
    lockkit.connect("vault://safe").close()
    install("bank", "vault_store:Other")
    with pytest.raises(UnknownBackend, match=r"several packages .* name one as BACKEND") as caught:
        lockkit.connect("vault://safe")
    assert "vault_store:Other, vault_store:Store" in str(caught.value)
    client = lockkit.connect("vault://safe", backend="vault_store:Other")
    assert type(client.store).__name__ == "Other"
    with client, lockkit.connect("vault://safe", backend="vault_store:Store") as another:
        assert type(another.store).__name__ == "Store"
        assert another.lock("stock:42").acquire().release()
        assert client.perform(client.store.prefixes()) == {}


@pytest.mark.parametrize("offers", ["vault_store:nothing", "vault_store:Gone", "no_such_module:A"])
def test_an_entry_point_that_leads_to_no_backend(install: Install, offers: str) -> None:
    install("vault", offers)
    with pytest.raises(UnknownBackend, match=offers.partition(":")[2]):
        lockkit.connect("vault://safe")


def test_nobody_offers_it() -> None:
    with pytest.raises(UnknownBackend, match="no store has the scheme 'vault' of the URL"):
        lockkit.connect("vault://safe")
