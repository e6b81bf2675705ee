"""TLS of database servers: those on other hosts must prove who they are, unless a URL waives it.

The rule is that of ``rediss://`` and of ZooKeeper's ``ssl``: the certificate must be one that this
Python trusts, for the host that is connected to. Limit: the drivers' own files (a service of
libpq's, an option file of MySQL's) are not read here; what they say about TLS applies.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping, MutableMapping
from ipaddress import ip_address
from typing import Any, Final

from lockkit.model.checks import Unshown, wrong
from lockkit.model.errors import ConfigurationError

BUNDLES: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
"""Files of authorities' certificates, if Python names none. libpq takes only one file."""

WITH_PORT: Final = re.compile("^([^:]*):[0-9]+$")
"""One of several hosts, as SQLAlchemy reads them in a URL. An IPv6 address has more colons."""

OWN_ROOTS: Final = "~/.postgresql/root.crt"
"""The authorities that libpq trusts by default."""

AUTHORITY, IDENTITY = "VERIFY_CA", "VERIFY_IDENTITY"
MODES: Final = ("DISABLED", "REQUIRED", AUTHORITY, IDENTITY)
"""The modes of MySQL's own programs: no TLS; TLS with any server; with a server that an authority
has certified; with a server that it has certified for this host name."""

FILES: Final = ("ssl_ca", "ssl_capath", "ssl_cert", "ssl_key")
CAS: Final = {"ca", "capath"}

REMEDY: Final = (
    "; a server on another host must prove who it is. In the URL, or where the options of its "
    "driver are, sslrootcert=FILE (PostgreSQL) or ssl_ca=FILE (MySQL, MariaDB) names the authority "
    "to trust; where the network is yours, sslmode=disable or ssl_mode=DISABLED does without TLS"
)
OF_TLS: Final = r"certificate|\[SSL|SSL error|SSL connection|SSL is required|support SSL"
"""In the words of drivers; not those about a connection that broke, or that pg_hba.conf refuses."""


def remedy(text: str) -> str:
    """A hint to add to a driver's words about TLS."""
    return REMEDY if re.search(OF_TLS, text) else ""


def is_here(host: str) -> bool:
    """Whether it is a socket file or a loopback address, so that nothing leaves this host."""
    if host in {"", "localhost"} or host.startswith(("/", "@")):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def for_libpq(said: Mapping[str, Any]) -> dict[str, str]:
    """The parameters to add for libpq to those that are given (``said``)."""
    environ = {key[2:].lower(): value for key, value in os.environ.items() if key[:2] == "PG"}
    known = {**environ, **{key: value for key, value in said.items() if value is not None}}
    hosts = known.get("hostaddr") or known.get("host") or ""
    hosts = hosts.split(",") if isinstance(hosts, str) else hosts
    if known.keys() & {"sslmode", "service"}:
        return {}
    if "sslrootcert" in known:
        return {"sslmode": "verify-full"}
    if all(is_here(WITH_PORT.sub(r"\1", host)) for host in hosts):
        return {}
    own = os.path.isfile(os.path.expanduser(OWN_ROOTS))  # raises nothing, as Path does
    return {"sslmode": "verify-full"} | ({} if own else {"sslrootcert": _bundle()})


def for_mysql(driver: str, host: str, said: MutableMapping[str, Any], where: str) -> dict[str, Any]:
    """The driver's arguments for the TLS options in ``said``, which are removed there.

    The driver's own options about TLS are left to it. Raises ConfigurationError.
    """
    if any(key.startswith("ssl") and key not in {"ssl_mode", *FILES} for key in said):
        return {}
    files = {key.removeprefix("ssl_"): said.pop(key) for key in FILES if key in said}
    mode = str(said.pop("ssl_mode", "")).upper() or (IDENTITY if files or not is_here(host) else "")
    if mode not in {"", *MODES}:
        raise wrong(f"ssl_mode of {where}", Unshown(mode), " or ".join(MODES))
    if not mode:
        return {}
    if driver == "mysqldb":
        return _for_mysqlclient(mode, files, where)
    if mode == "DISABLED":
        return {"ssl_disabled": True}
    _needs_strictness(where)
    return {"ssl": context(mode, files, where)}


def _for_mysqlclient(mode: str, files: dict[str, str], where: str) -> dict[str, Any]:
    """The C library of mysqlclient speaks TLS if it is given any file."""
    if mode == "REQUIRED":  # MariaDB's library goes on in plain text
        raise ConfigurationError(
            f"{where} says ssl_mode=REQUIRED, but mysqlclient goes on without TLS "
            "if the server, or somebody in between, says that it has none: say ssl_ca=FILE, the "
            "authority to trust, in its place, or use PyMySQL"
        )
    if mode == "DISABLED":
        return {"ssl_mode": mode}
    known = files if files.keys() & CAS else {"ca": _bundle(), **files}
    return {"ssl_mode": mode, "ssl": known}


def _needs_strictness(where: str) -> None:
    """An older PyMySQL goes on in plain text if the server says that it speaks no TLS."""
    from importlib.metadata import version

    if [int(part) for part in re.findall(r"\d+", version("PyMySQL"))[:2]] < [1, 2]:
        raise ConfigurationError(
            f"{where} needs TLS, but PyMySQL below 1.2 goes on without it if the "
            "server, or somebody in between, says that it has none: upgrade PyMySQL"
        )


def context(mode: str, files: Mapping[str, Any], where: str) -> ssl.SSLContext:
    """A TLS context. ``files``: their paths, by the names in FILES without ``ssl_``. ``where``: the
    setting that names them, for errors. Raises ConfigurationError."""
    if files.get("key") is not None and files.get("cert") is None:
        raise ConfigurationError(
            f"{where} has a key for TLS (ssl_key, ssl_keyfile) without its certificate (ssl_cert, "
            f"ssl_certfile)"
        )
    try:
        made = ssl.create_default_context(cafile=files.get("ca"), capath=files.get("capath"))
        if files.get("cert") is not None:
            made.load_cert_chain(files["cert"], files.get("key"))
    except OSError as error:  # and ssl.SSLError, which is one
        raise ConfigurationError(f"a file for TLS in {where} cannot be read: {error}") from error
    made.check_hostname = mode == IDENTITY
    if mode == "REQUIRED":
        made.verify_mode = ssl.CERT_NONE
    return made


def _bundle() -> str:
    paths = (ssl.get_default_verify_paths().cafile, *BUNDLES)
    return next((path for path in paths if path and os.path.isfile(path)), "system")
