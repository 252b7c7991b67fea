"""The demo: a small real workload, with the job types that it needs. `nextslot demo` and `./run` run it."""

from typing import TYPE_CHECKING, Any

from nextslot.extension_api import Attached, Extension

if TYPE_CHECKING:
    from nextslot.extension_api.host import Host


class Demo(Extension):
    name = "demo"

    def attach(self, host: "Host") -> Attached:
        from .film import Film

        return Film(host)

    def add_commands(self, app: Any) -> None:
        from .commands import demo

        app.command()(demo)


extension = Demo()
