"""The job types `story` and `research`, their direct endpoints, and the language models that answer them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nextslot.extension_api import Attached, Extension, SettingProblem

if TYPE_CHECKING:
    from nextslot.extension_api.host import Host


class Stories(Extension):
    name = "stories"
    is_on_by_default = True
    paths = ("/story", "/research", "/api/stories", "/api/research-cards")
    restart_settings = ("llm.",)

    def settings(self) -> Mapping[str, tuple[Any, Any]]:
        from .settings import LlmSettings

        return {"llm": (LlmSettings, LlmSettings())}

    def setting_problems(self, values: Mapping[str, Any], data: Path) -> Iterator[SettingProblem]:
        from .settings import provider_problems, style_problems

        yield from provider_problems(values)
        yield from style_problems(values)

    def attach(self, host: "Host") -> Attached:
        from .story_service import StoryService

        return StoryService(host)

    def routers(self) -> Sequence[Any]:
        from .library_routes import library
        from .routes import generate

        return (generate, library)

    def add_commands(self, app: Any) -> None:
        from .commands import register

        register(app)


extension = Stories()
