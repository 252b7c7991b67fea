"""The command `nextslot demo`, which `./run` calls."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer


def demo(
    data: Annotated[Path, typer.Option(metavar="DIR", help="The data directory: database, logs, artifacts.")] = Path(
        "nextslot-demo"
    ),
    port: Annotated[int, typer.Option(help="The port to listen on; if it is taken, a free one.")] = 8000,
    once: Annotated[bool, typer.Option("--once", help="End after the film; do not serve until Ctrl-C.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Make one film after the other, until Ctrl-C.")] = False,
    crash: Annotated[
        bool, typer.Option("--crash", help="Let the process kill itself (kill -9) at a random moment.")
    ] = False,
    no_story: Annotated[bool, typer.Option("--no-story", help="Use no language model.")] = False,
) -> None:
    """Run a small real workload, and print what happens."""
    from .run_demo import Options, run_demo

    data.mkdir(parents=True, exist_ok=True)
    asyncio.run(run_demo(Options(data, port, once, keep, crash, no_story)))
