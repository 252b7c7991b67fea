"""The gateway: OpenAI's protocol at `/v1`, in front of model servers. Each request takes the next slot of its model."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nextslot.extension_api import Attached, Extension, SettingProblem

if TYPE_CHECKING:
    from nextslot.extension_api.host import Host


class Gateway(Extension):
    name = "gateway"
    paths = ("/v1",)
    restart_settings = ("gateway.",)

    def settings(self) -> Mapping[str, tuple[Any, Any]]:
        from .settings import GatewaySettings

        return {"gateway": (GatewaySettings, GatewaySettings())}

    def setting_problems(self, values: Mapping[str, Any], data: Path) -> Iterator[SettingProblem]:
        from .settings import gateway_problems

        yield from gateway_problems(values)

    def attach(self, host: "Host") -> Attached:
        from .gateway_service import GatewayService

        return GatewayService(host)

    def routers(self) -> Sequence[Any]:
        from .routes import gateway

        return (gateway,)


extension = Gateway()
