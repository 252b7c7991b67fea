"""Sandboxes: limit what a command can read, write, reach and use, by bubblewrap; docs/sandbox.md describes them."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nextslot.errors import Invalid, Problem

from .process_tree.process import Start

# The account of a sandbox without a configured one, if the scheduler runs as root.
NOBODY = "nobody"
# A directory of sockets, some of which give the rights of root (Docker's), and the part that name resolution needs.
_SOCKETS, _RESOLVER = "/run", "/run/systemd/resolve"
# A command gets its own empty directories in place of these.
_OWN = ("/tmp", "/var/tmp")
# How long the trial of a sandbox may take at the start of the server.
_TRIAL_SECONDS = 30

# The limits of one process, each with the option of prlimit that sets it.
_PROCESS_LIMITS = {
    "address_space_bytes": "--as",
    "cpu_seconds": "--cpu",
    "file_bytes": "--fsize",
    "open_files": "--nofile",
}
# The limits of the whole tree, each with the controller of a cgroup that holds it.
_TREE_LIMITS = {"memory_bytes": "memory", "cpus": "cpu", "processes": "pids"}
_CPU_PERIOD = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """A sandbox as configured. Paths are absolute."""

    user: str | None = None
    writable: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    devices: tuple[Path, ...] = ()
    network: bool = False
    address_space_bytes: int | None = None
    cpu_seconds: int | None = None
    file_bytes: int | None = None
    open_files: int | None = None
    memory_bytes: int | None = None
    cpus: float | None = None
    processes: int | None = None

    @property
    def controllers(self) -> set[str]:
        """Returns the cgroup controllers that the limits of the sandbox need."""
        return {controller for name, controller in _TREE_LIMITS.items() if getattr(self, name) is not None}

    def apply(
        self,
        start: Start,
        artifacts: Path,
        shown: Sequence[Path],
        directories: Sequence[Path],
        files: Sequence[Path],
    ) -> Start:
        """Returns the start of a command inside this sandbox. The command can write its artifacts and read what is
        `shown`, but sees neither the rest of these directories of all runs nor these files."""
        # A link to a file is resolved now, because a renewed certificate may be another file.
        private = [*(path.absolute() for path in directories), *(path.resolve() for path in files)]
        for directory in directories:  # A directory created later would not be hidden.
            directory.mkdir(parents=True, exist_ok=True)
        account = self._account()
        if account is not None:
            os.chown(artifacts, account.pw_uid, account.pw_gid)
            for path in shown:
                _let_read(path, account)
        argv = [*self._bubblewrap(start.cwd, private, account), *_files(artifacts, shown, private)]
        argv += ["--", *self._entry(account), *start.argv]
        return replace(start, argv=tuple(argv), cwd=None, is_wrapped=True, cgroup_limits=self._cgroup_limits())

    def try_out(self) -> None:
        """Raises Invalid if this machine cannot create the sandbox."""
        for program in ("bwrap", *self._entry(self._account())[:1], *(["prlimit"] if self._process_limits() else [])):
            if shutil.which(program) is None:
                package = "bubblewrap" if program == "bwrap" else "util-linux"
                raise Invalid(f"needs the program {program}, which is not on PATH; install {package}", "sandbox")
        found = subprocess.run(
            [*self._bubblewrap(None, (), self._account()), "--", *self._entry(self._account()), "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TRIAL_SECONDS,
            check=False,
        )
        if found.returncode != 0:
            why = found.stderr.strip() or f"exit code {found.returncode}"
            raise Invalid(f"cannot be made on this machine: {why}", "sandbox")

    def _account(self) -> pwd.struct_passwd | None:
        """Returns the account that runs the command; None keeps the scheduler's account, which only root can change."""
        if os.geteuid() != 0:
            return None
        user = self.user or NOBODY
        account = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
        return None if account.pw_uid == 0 else account

    def _bubblewrap(self, cwd: str | None, private: Sequence[Path], account: pwd.struct_passwd | None) -> Iterator[str]:
        """Yields bubblewrap and its options. A later mount covers an earlier one."""
        yield from ("bwrap", "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--cap-drop", "ALL")
        if account is not None:  # Lets setpriv change the account; setpriv then drops these two capabilities.
            yield from ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
        if not self.network:
            yield "--unshare-net"
        yield from ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc")
        for folder in _OWN:
            yield from ("--perms", "1777", "--tmpfs", folder)
        yield from ("--tmpfs", _SOCKETS, "--ro-bind-try", _RESOLVER, _RESOLVER)
        if cwd is not None:
            yield from _bound("--ro-bind", Path(cwd), map(Path, (*_OWN, _SOCKETS)))
        for path in self.devices:
            yield from ("--dev-bind", str(path), str(path))
        for path in self.writable:
            yield from _bound("--bind", path, map(Path, (*_OWN, _SOCKETS)))
        for path in (*self.hidden, *private):
            yield from _cover(path)
        if cwd is not None:
            yield from ("--chdir", cwd)

    def _entry(self, account: pwd.struct_passwd | None) -> list[str]:
        """Returns the programs that run before the command, each of which replaces itself by the next."""
        change = [] if account is None else ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}"]
        if account is not None:
            change += ["--init-groups", "--inh-caps=-all", "--bounding-set=-all", "--"]
        limits = self._process_limits()
        return [*change, *(["prlimit", *limits, "--"] if limits else [])]

    def _process_limits(self) -> list[str]:
        values = {option: getattr(self, name) for name, option in _PROCESS_LIMITS.items()}
        return [f"{option}={value}" for option, value in values.items() if value is not None]

    def _cgroup_limits(self) -> dict[str, str]:
        found: dict[str, str] = {}
        if self.memory_bytes is not None:
            found |= {"memory.max": str(self.memory_bytes), "memory.swap.max": "0", "memory.oom.group": "1"}
        if self.cpus is not None:
            found["cpu.max"] = f"{int(self.cpus * _CPU_PERIOD)} {_CPU_PERIOD}"
        if self.processes is not None:
            found["pids.max"] = str(self.processes)
        return found


def _files(artifacts: Path, shown: Iterable[Path], private: Sequence[Path]) -> Iterator[str]:
    for path in shown:
        yield from _bound("--ro-bind", path.absolute(), private)
    yield from _bound("--bind", artifacts.absolute(), private)


def _let_read(path: Path, account: pwd.struct_passwd) -> None:
    """Lets an account read files of a run through its group; the directory above them is for the scheduler only."""
    for one in (path, *path.rglob("*")):
        if not one.is_symlink():
            os.chown(one, -1, account.pw_gid)
            one.chmod(one.stat().st_mode | (0o050 if one.is_dir() else 0o040))


def _bound(option: str, path: Path, empty: Iterable[Path]) -> Iterator[str]:
    """Yields the options that show a path and create its parents, which bubblewrap would otherwise make private."""
    covered = next((folder for folder in empty if path.is_relative_to(folder)), None)
    if covered is not None:
        for parent in reversed(path.relative_to(covered).parents[:-1]):
            yield from ("--dir", str(covered / parent))
    yield from (option, str(path), str(path))


def _cover(path: Path) -> tuple[str, ...]:
    """Returns the options that empty a directory, or replace a file by an unreadable device."""
    if path.is_dir():
        return "--perms", "0755", "--tmpfs", str(path)
    return ("--ro-bind", "/dev/null", str(path)) if path.exists() else ()


def sandbox_of(table: object, base_dir: Path) -> Sandbox:
    """Returns the sandbox of a table `[job_types.NAME.sandbox]`; relative paths start at `base_dir`."""
    if not isinstance(table, Mapping):
        raise Invalid("is not a table; write [job_types.NAME.sandbox]", "sandbox")
    problems = list(_problems(table, base_dir))
    if problems:
        raise Invalid(problems)
    paths = {name: tuple(base_dir / path for path in table.get(name, ())) for name in _PATHS}
    return Sandbox(**{**table, **paths})


_PATHS = ("writable", "hidden", "devices")


def _whole(value: object) -> bool:
    return type(value) is int and value > 0


_CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "user": (lambda value: isinstance(value, str) and value != "", 'is not an account; write for example "agent"'),
    "network": (lambda value: type(value) is bool, "is neither true nor false; write one of them"),
    "cpus": (
        lambda value: type(value) in (int, float) and 0.01 <= value <= 10_000,
        "is not a number of processors from 0.01 on; write for example 2",
    ),
    **dict.fromkeys((*_PROCESS_LIMITS, "memory_bytes", "processes"), (_whole, "is not a whole number above 0")),
    **{
        name: (
            lambda value: isinstance(value, list | tuple) and all(isinstance(one, str) and one for one in value),
            'is not a list of paths; write for example ["work"]',
        )
        for name in _PATHS
    },
}


def _problems(table: Mapping[str, Any], base_dir: Path) -> Iterator[Problem]:
    for name, value in table.items():
        if name not in _CHECKS:
            yield Problem(f"sandbox.{name}", "is not a setting of a sandbox; remove it or correct its name")
        elif not _CHECKS[name][0](value):
            yield Problem(f"sandbox.{name}", _CHECKS[name][1])
        elif name == "user":
            yield from _user_problems(value)
        elif name in ("writable", "devices"):
            missing = next((path for path in value if not (base_dir / path).exists()), None)
            if missing is not None:
                yield Problem(f"sandbox.{name}", f"names {missing!r}, which does not exist; create it first")


def _user_problems(user: str) -> Iterator[Problem]:
    try:
        uid = pwd.getpwuid(int(user)).pw_uid if user.isdigit() else pwd.getpwnam(user).pw_uid
    except (KeyError, OverflowError):
        yield Problem("sandbox.user", f"names the account {user!r}, which this machine does not have; create it first")
        return
    if os.geteuid() not in (0, uid):
        yield Problem("sandbox.user", f"is {user!r}, but only root can run commands as somebody else; leave it out")
