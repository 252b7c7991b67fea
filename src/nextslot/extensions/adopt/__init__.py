"""Adopts the work of older systems: stores their jobs, stories and cards, and keeps the old ids as aliases."""

from typing import TYPE_CHECKING, Any

from nextslot.extension_api import Attached, Extension

if TYPE_CHECKING:
    from nextslot.extension_api.host import Host


class Adopt(Extension):
    name = "adopt"
    is_on_by_default = True

    def attach(self, host: "Host") -> Attached:
        from .adopt_service import AdoptService

        return AdoptService(host)

    def add_commands(self, app: Any) -> None:
        from .commands import register

        register(app)


extension = Adopt()
