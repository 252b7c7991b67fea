"""Catalog: the job types of a scheduler, and every way to add one: a function, a command, a language model's."""

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..clock import Clock
from ..errors import Invalid
from .command import register_command
from .command_config import command_type, load_job_types
from .isolated import IsolatedHandler
from .loading import load_handler, offered_handlers
from .process import Guardians
from .registry import Handler, JobType, JobTypes, signature_schema

if TYPE_CHECKING:
    from .llm import LanguageModels
    from .story import EarlierStories


class Catalog(JobTypes):
    """Owns what the handlers run with: the guardians of commands, and the language models."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._guardians = Guardians()
        self._closing: list[Callable[[], Any]] = []

    def add(self, name: str, handler: Handler | str, *, isolate: bool = False, **options: Any) -> JobType:
        """A function, or `module:function`; with `isolate`, it runs in a process of its own that can be ended."""
        function = load_handler(handler) if isinstance(handler, str) else handler
        if isolate:
            options.setdefault("params_schema", signature_schema(function))
            function = IsolatedHandler(function, self._guardians)
        return self.register(name, function, **options)

    def add_offered(self) -> list[JobType]:
        """Those that installed packages offer as entry points (`nextslot.job_types`), unless the name is taken."""
        return [self.add(name, handler) for name, handler in offered_handlers() if name not in self]

    def add_command(
        self, name: str, command: Sequence[str], base_dir: Path | str | None = None, **options: Any
    ) -> JobType:
        """A program: an argv in which `{name}` stands for a parameter. Options as in a `[job_types.NAME]` table."""
        table = {"command": list(command), **options}
        return register_command(self, name, command_type(table, Path(base_dir or Path.cwd())), self._guardians)

    def load(self, path: Path | str) -> list[JobType]:
        """The `[job_types.NAME]` tables of a configuration file, all or none."""
        path = Path(path)
        try:
            tables = tomllib.loads(path.read_text()).get("job_types", {})
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise Invalid(f"{path} cannot be read: {error}", field="job_types") from error
        return load_job_types(tables, path.parent.absolute(), self, self._guardians)

    def add_language_models(self, models: "LanguageModels", earlier_stories: "EarlierStories") -> list[JobType]:
        """`story` and `research`, answered by these models."""
        from .research import register_research
        from .story import register_story

        self._closing.append(models.close)
        return [
            register_story(self, models, earlier_stories=earlier_stories, clock=self._clock),
            register_research(self, models, clock=self._clock),
        ]

    async def close(self) -> None:
        """Ends what the handlers ran with; it is started again when it is needed again."""
        for close in self._closing:
            await close()
        self._guardians.close()
