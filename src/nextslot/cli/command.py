"""The entry of the command `nextslot`. It imports nothing that an extra installs, so that it can name a missing one."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# The extra that installs a module. `server` includes `cli`.
EXTRAS = {
    "typer": "cli",
    "rich": "cli",
    "fastapi": "server",
    "prometheus_client": "server",
    "starlette": "server",
    "uvicorn": "server",
}


def main() -> None:
    """Runs the command line; if a module of an extra is missing, prints how to install it and exits with 1."""
    try:
        with collecting_nothing():
            from .main import main as run
        run()
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRAS:
            raise
        extra = EXTRAS[module]
        print(
            f"nextslot: this command needs {module}, which is not installed: pip install 'nextslot[{extra}]'",
            file=sys.stderr,
        )
        sys.exit(1)


@contextmanager
def collecting_nothing() -> Iterator[None]:
    """Collects no garbage during imports. They leave hardly any, and the search for it took a seventh of their time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
