"""A command that leaves a checkpoint for each step, and notes outside what was acknowledged and what it began with."""

import json
import os
import socket
import sys
from pathlib import Path


def main() -> None:
    record = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
    told = os.environ.get("NEXTSLOT_CHECKPOINT")
    begun = json.loads(Path(told).read_text())["step"] if told else 0
    os.write(record, f"began {begun}\n".encode())
    channel = socket.socket(fileno=int(os.environ["NEXTSLOT_CHECKPOINT_FD"]))
    answers = channel.makefile("rb")
    for step in range(begun + 1, begun + 2_000):
        os.write(record, f"wrote {step}\n".encode())
        channel.sendall(json.dumps({"step": step, "filler": "x" * 20_000}).encode() + b"\n")
        if answers.readline() != b"ok\n":
            return
        os.write(record, f"acknowledged {step}\n".encode())


if __name__ == "__main__":
    main()
