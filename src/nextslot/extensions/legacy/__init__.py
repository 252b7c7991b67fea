"""The old `/jobs` endpoints (CON-004): their requests, answers, words and webhooks on top of the queue."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nextslot.extension_api import Attached, Extension

if TYPE_CHECKING:
    from nextslot.extension_api.host import Host


class Legacy(Extension):
    name = "legacy"
    is_on_by_default = True
    paths = ("/jobs",)

    def attach(self, host: "Host") -> Attached:
        from .legacy_service import LegacyService

        return LegacyService(host)

    def routers(self) -> Sequence[Any]:
        from .routes import legacy

        return (legacy,)


extension = Legacy()
