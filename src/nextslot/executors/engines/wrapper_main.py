"""The wrapper: the program that an engine runs for a placed run. It owns the run, and its records are the truth.

    python3 -I wrapper.pyz DIRECTORY            runs the request in that directory, once
    python3 -I wrapper.pyz --detach DIRECTORY   starts that apart from its caller, and prints PID START_TIME

The wrapper claims the run: whoever writes `claim.json` first has it, so a second start exits. It forks a guardian,
which starts the command and owns its whole tree. It copies the output into pieces of `output/`, renews `lease`, reads
requests to stop from `stop.json`, counts the timeouts, and writes `end.json` once no process of the tree is left.

If the wrapper is killed, the guardian ends the tree and writes the end. If the guardian is killed, the wrapper does. If
the lease cannot be renewed for `patience_seconds`, the guardian ends the tree by its own clock, even while the wrapper
hangs in a write. If both are killed together, nothing is written, and the lease runs out.

`wrapper_archive` ships this file with those that it imports. It needs Python 3.11 and nothing else.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any, NoReturn

from nextslot.executors.engines import records
from nextslot.executors.process_tree.guardian import (
    CHANNEL_FD,
    Guardian,
    Wakeup,
    adopt_orphans,
    ended_children,
    has_children,
    now,
    wake_when_parent_dies,
)
from nextslot.executors.process_tree.guardian import IGNORED as GUARDIAN_IGNORES
from nextslot.executors.process_tree.kill_tree import KillSequence, start_time

# The signals by which an engine ends a job.
STOPPING = (signal.SIGTERM, signal.SIGINT)
IGNORED = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE)
# How often the wrapper reads requests to stop, and the longest wait of one poll.
LOOK_SECONDS, LONGEST_POLL = 1.0, 0.5
# How long the wrapper waits for its own signal if one has ended the command: some engines signal all processes at once.
SIGNAL_SECONDS = 1.0
# How often the wrapper tries to write the end while the storage refuses the write.
END_RETRY_SECONDS = 5.0
FEWEST_PIECE_BYTES = MAX_CHECKPOINT_BYTES = 64 * 1024
PIECES = 16
# The deepest level of a checkpoint, as in `domain/bounds.py`. The checkpoint itself is at the second one.
MAX_DEPTH = 64
# The answer to a stored checkpoint.
OK = b"ok\n"


def main() -> NoReturn:
    words = sys.argv[1:]
    directory = os.path.abspath(words[-1])
    if words[0] == "--detach":
        detach(directory)
    sys.exit(Wrapper(directory).run())


def detach(directory: str) -> None:
    """Continues in a process with its own session and no parent, so that it does not end with the scheduler."""
    pid = os.fork()
    if pid:
        sys.stdout.write(f"{pid} {start_time(pid) or 0}\n")
        sys.stdout.flush()
        os._exit(0)
    os.setsid()
    log = os.open(f"{directory}/engine.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, 1 << 16)


class Wrapper:
    """Runs one request and ends with the last process of its tree."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._request: dict[str, Any] = {}
        self._stopped: str | None = None
        self._is_told = False
        self._is_revoked = False
        self._refused: list[Any] | None = None
        self._lost: str | None = None
        self._status: int | None = None
        self._began = self._last_output = now()
        self._next_look = self._next_renewal = 0.0
        self._renewals = 0
        self._buffer = b""

    def run(self) -> int:
        """Claims the run, runs it, and writes its end. Returns the exit code for the engine, which is only a hint."""
        # Before the claim: a wrapper that a signal ends between its claim and its guardian would leave no end.
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        for number in STOPPING:
            signal.signal(number, self._tell)
        found = records.read(self._directory, records.REQUEST)
        if found is None:
            say("there is no request in this directory")
            return 2
        self._request = found
        claim = {
            "token": found["token"],
            "by": "wrapper",
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": start_time(os.getpid()),
            "at": time.time(),
        }
        if not records.write_once(self._directory, records.CLAIM, claim):
            say("this run has been claimed already; this start does nothing")
            return 0
        self._began = now()
        self._guard()
        return 0 if self._status == 0 else 1

    # The process tree.

    def _guard(self) -> None:
        adopt_orphans()
        self._wakeup = Wakeup()
        self._control, theirs = socket.socketpair()
        self._output, output = os.pipe()
        self._channel, channel = socket.socketpair()
        self._lease_until = now() + self._request["patience_seconds"]
        guardian = os.fork()
        if guardian == 0:
            self._become_guardian(theirs, output, channel)
        theirs.close()
        os.close(output)
        channel.close()
        self._pieces = OutputPieces(self._directory, self._request["log_cap_bytes"])
        self._checkpoint = b""
        self._watch()
        self._read_output()
        self._pieces.close()
        self._await_signal()
        if not self._is_revoked:
            self._write_end()

    def _become_guardian(self, control: socket.socket, output: int, channel: socket.socket) -> NoReturn:
        try:
            self._control.close()
            self._channel.close()
            os.close(self._output)
            os.setsid()  # Some engines kill the process group of what they started: the guardian then ends the tree.
            for number in GUARDIAN_IGNORES:
                signal.signal(number, signal.SIG_IGN)
            wake_when_parent_dies()
            stdin = _memory(self._request["stdin"].encode())
            request = _memory(json.dumps(self._guardian_request()).encode())
            os.set_inheritable(channel.fileno(), False)
            Guardian(control, None, stdin, output, request, channel.detach()).guard("")
            if os.getppid() != self._pid_of_claim():
                self._lost = "its wrapper was killed"
                self._write_end()
        except BaseException as error:  # The wrapper reports the error, and ends the started processes.
            with contextlib.suppress(OSError):
                control.sendall(f"broken {type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)

    def _pid_of_claim(self) -> int:
        claim = records.read(self._directory, records.CLAIM)
        return 0 if claim is None else int(claim["pid"])

    def _guardian_request(self) -> dict[str, Any]:
        wanted = self._request
        names, prefixes = wanted["inherited"], tuple(wanted["inherited_prefixes"])
        env = {name: value for name, value in os.environ.items() if name in names or name.startswith(prefixes)}
        return {
            "argv": wanted["argv"],
            "env": {"PATH": os.defpath, **env, **wanted["env"], "NEXTSLOT_CHECKPOINT_FD": str(CHANNEL_FD)},
            "cwd": wanted["cwd"],
            "lease": self._lease_until,
            "tag": wanted["tag"],
            "channel": True,
            "limits": {},
            "wrapped": False,
        }

    def _tell(self, number: int, frame: object) -> None:
        self._is_told = True

    # Watching the run.

    def _watch(self) -> None:
        """Serves the guardian until no process of the tree is left."""
        poll = select.poll()
        control, wakeup, output, channel = self._control.fileno(), self._wakeup.fd, self._output, self._channel.fileno()
        for fd in (control, wakeup, output, channel):
            poll.register(fd, select.POLLIN)
        while self._status is None:
            ready = dict(poll.poll(1000 * LONGEST_POLL))
            if wakeup in ready:
                self._wakeup.drain()
            if output in ready and not self._take_output():
                poll.unregister(output)
            if channel in ready and not self._take_checkpoint():
                poll.unregister(channel)
            if control in ready:
                self._receive()
            self._look()
        self._reap_rest()

    def _receive(self) -> None:
        try:
            words = self._control.recv(4096)
        except OSError:
            words = b""
        if not words:
            self._lost = self._lost or "its guardian was killed"
            self._status = int(signal.SIGKILL)
            return
        *lines, self._buffer = (self._buffer + words).split(b"\n")
        for line in lines:
            verb, _, rest = line.decode().partition(" ")
            if verb == "ended":
                self._status = int(rest)
            elif verb == "refused":
                stage, number = rest.split()
                self._refused = [stage, int(number)]
            elif verb == "broken":
                self._lost, self._status = rest, int(signal.SIGKILL)

    def _look(self) -> None:
        """Does everything that is due: renews the lease, reads requests to stop, checks the timeouts."""
        at = now()
        if self._is_told:
            self._stop("engine", self._request["grace_seconds"])
        if at >= self._next_renewal:
            self._renew(at)
        if at >= self._next_look:
            self._next_look = at + LOOK_SECONDS
            self._read_requests()
        limit, silence = self._request["timeout_seconds"], self._request["silence_seconds"]
        if limit is not None and at - self._began >= limit:
            self._stop("timeout", self._request["grace_seconds"])
        if silence is not None and at - self._last_output >= silence:
            self._stop("stall", self._request["grace_seconds"])

    def _renew(self, at: float) -> None:
        self._next_renewal = at + min(self._request["renew_seconds"], 1.0)
        self._renewals += 1
        try:
            records.replace(self._directory, records.LEASE, f"{self._renewals}\n".encode())
        except OSError as error:
            say(f"the lease could not be renewed: {error}")
            return
        self._next_renewal = at + self._request["renew_seconds"]
        # Counts from before the write: no reader sees the renewal earlier.
        self._lease_until = at + self._request["patience_seconds"]
        self._send(f"lease {self._lease_until}")

    def _read_requests(self) -> None:
        try:
            asked = records.read(self._directory, records.STOP)
            end = records.read(self._directory, records.END)
        except OSError:
            return  # The expiry of the lease decides.
        if end is not None:  # The scheduler has given the run up: another run may replace it at any moment.
            self._is_revoked = True
            self._send("kill")
        elif asked is not None:
            self._stop(str(asked["kind"]), float(asked["grace_seconds"]))

    def _stop(self, why: str, grace: float) -> None:
        if self._stopped is None:
            self._stopped = why
            self._send(f"stop {grace}")

    def _send(self, words: str) -> None:
        with contextlib.suppress(OSError):
            self._control.sendall(words.encode() + b"\n")

    def _take_output(self) -> bool:
        """Copies the available output. Returns False at the end of the output."""
        data = os.read(self._output, 65536)
        if data:
            self._last_output = now()
            self._pieces.write(data)
        return bool(data)

    def _read_output(self) -> None:
        """Reads the rest of the output and the channel without waiting: a process that escaped may keep them open."""
        os.set_blocking(self._output, False)
        self._channel.setblocking(False)
        for take in (self._take_output, self._take_checkpoint):
            with contextlib.suppress(BlockingIOError):
                while take():
                    pass

    def _take_checkpoint(self) -> bool:
        """Stores the last line that is a checkpoint, and answers each line. Returns False at the end of the channel."""
        try:
            data = self._channel.recv(65536)
        except ConnectionResetError:  # The command has ended, and has not read all answers.
            return False
        *lines, rest = (self._checkpoint + data).split(b"\n")
        self._checkpoint = rest[: MAX_CHECKPOINT_BYTES + 1]  # Enough of a line that is too long to refuse it.
        answers = [_answer_to(line) for line in lines]
        if OK in answers:
            self._last_output = now()
            kept = [line for line, answer in zip(lines, answers, strict=True) if answer == OK]
            try:
                records.replace(self._directory, records.CHECKPOINT, kept[-1])
            except OSError as error:
                answers = [f"error {error.strerror}\n".encode()] * len(lines)
        with contextlib.suppress(OSError):  # The command does not read answers.
            self._channel.send(b"".join(answers), socket.MSG_DONTWAIT)
        return bool(data)

    def _reap_rest(self) -> None:
        """Ends the processes that a killed guardian has left: they are now children of this process."""
        killing = KillSequence()
        while True:
            for _ in ended_children():
                pass
            if not has_children():
                return
            if self._lost is not None:
                killing.kill_round()
            time.sleep(0.01)

    # The end of the run.

    def _await_signal(self) -> None:
        """Notes that the engine has ended the run if its signal met the command first, and this process after it."""
        until = now() + SIGNAL_SECONDS
        while self._stopped is None and self._status in STOPPING and not self._is_told and now() < until:
            time.sleep(0.01)
        if self._stopped is None and self._status != 0 and self._is_told:
            self._stopped = "engine"

    def _write_end(self) -> None:
        """Writes the end; repeats that as long as the directory exists, since a run without an end is never retried."""
        if self._stopped is None and self._status == int(signal.SIGKILL) and now() >= self._lease_until:
            self._stopped = "lease"
        status = int(signal.SIGKILL) if self._status is None else self._status
        code = os.waitstatus_to_exitcode(status)
        end = {
            "token": self._request["token"],
            "by": "wrapper",
            "exit_code": code if code >= 0 else 128 - code,
            "signal": signal.Signals(-code).name if code < 0 else None,
            "stopped": self._stopped,
            "refused": self._refused,
            "lost": self._lost,
            "seconds": round(now() - self._began, 3),
            "at": time.time(),
        }
        while os.path.isdir(self._directory):
            try:
                records.write_once(self._directory, records.END, end)
            except OSError as error:
                say(f"the end could not be written: {error}")
                time.sleep(END_RETRY_SECONDS)
            else:
                return


class OutputPieces:
    """The output as files named by the position of their first byte. Drops the middle of an output beyond the cap."""

    def __init__(self, directory: str, cap: int) -> None:
        self._directory = f"{directory}/{records.OUTPUT}"
        with contextlib.suppress(OSError):
            os.mkdir(self._directory, 0o700)
        self._piece = max(cap // PIECES, FEWEST_PIECE_BYTES)
        self._head = cap // 2
        self._tail: list[tuple[int, int]] = []
        self._most = max(cap - self._head, 2 * self._piece)
        self._position = self._begin = 0
        self._file: int | None = None

    def write(self, data: bytes) -> None:
        """Appends to the output. If the storage refuses data, the data is lost and leaves a gap in the positions."""
        while data:
            part = data[: self._begin + self._piece - self._position] if self._file is not None else data[: self._piece]
            try:
                self._append(part)
            except OSError as error:
                say(f"output is lost: {error}")
                self.close()
            self._position += len(part)
            data = data[len(part) :]
            if self._position >= self._begin + self._piece:
                self.close()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, part: bytes) -> None:
        if self._file is None:
            self._begin = self._position
            path = f"{self._directory}/{self._begin:020}"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            if self._begin >= self._head:
                self._tail.append((self._begin, self._piece))
                self._drop()
        while part:
            part = part[os.write(self._file, part) :]

    def _drop(self) -> None:
        while len(self._tail) * self._piece > self._most:
            begin, _ = self._tail.pop(0)
            with contextlib.suppress(OSError):
                os.unlink(f"{self._directory}/{begin:020}")


def _answer_to(line: bytes) -> bytes:
    """Returns the answer to a line of the channel, by the rules of `executors/checkpoints.py`."""
    if len(line) > MAX_CHECKPOINT_BYTES:
        return b"error a line is longer than 65,536 bytes; write larger data to an artifact and its name here\n"
    try:
        value = json.loads(line.decode())
        if _is_too_deep(value):
            return (
                f"error checkpoint cannot be stored as JSON: is nested too deep; it must be at most {MAX_DEPTH} levels "
                "deep\n"
            ).encode()
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        return f"error a line is not JSON: {error}\n".encode(errors="replace")
    return OK


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(2, MAX_DEPTH + 1):
        containers = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))]
        level = [inner for one in containers for inner in one]
    return bool(level)


def say(words: str) -> None:
    """Writes a line to the wrapper's own output, which the engine keeps."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{words}\n")
        sys.stderr.flush()


def _memory(content: bytes) -> int:
    """Returns a descriptor of a file in memory, so that its content is never on a disk."""
    fd = os.memfd_create("nextslot")
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


if __name__ == "__main__":
    main()
