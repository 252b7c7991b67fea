"""The office API: an office's jobs and settings in its own words, and sessions by role."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nextslot.extension_api import Attached, Extension, SettingProblem

if TYPE_CHECKING:
    from nextslot.extension_api.host import Host


class Offices(Extension):
    name = "offices"
    is_on_by_default = True
    paths = ("/api/offices",)

    def settings(self) -> Mapping[str, tuple[Any, Any]]:
        from .settings import RoleTable

        return {"roles": (dict[str, RoleTable], {})}

    def setting_problems(self, values: Mapping[str, Any], data: Path) -> Iterator[SettingProblem]:
        from .settings import role_problems

        yield from role_problems(values, data)

    def attach(self, host: "Host") -> Attached:
        from .office_service import OfficeJobService

        return OfficeJobService(host)

    def routers(self) -> Sequence[Any]:
        from .routes import offices

        return (offices,)

    def add_commands(self, app: Any) -> None:
        from .commands import register

        register(app)


extension = Offices()
