"""OfficeRateLimits: how many requests a second and how many streams each office uses of this process (spec 18.11)."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import NoReturn

from nextslot.engine.settings.office_quotas import OfficeQuotas
from nextslot.errors import OverQuota


class OfficeRateLimits:
    """Counts by office; a key for every office counts by itself, and callers without keys are not counted."""

    def __init__(self, quotas: OfficeQuotas) -> None:
        self._quotas = quotas
        # By office or key: the requests that it may still send at once, and when that was worked out.
        self._tokens: dict[str, tuple[float, float]] = {}
        self._streams: Counter[str] = Counter()

    def take_request(self, office_id: str | None, key_id: str | None) -> None:
        """Raises OverQuota if requests come faster than the quota, by a bucket that holds those of two seconds."""
        name = office_id or key_id
        if name is None:
            return
        rate = self._quotas.of(office_id).requests_per_second
        now = asyncio.get_running_loop().time()
        tokens, at = self._tokens.get(name, (2.0 * rate, now))
        tokens = min(2.0 * rate, tokens + (now - at) * rate)
        if rate and tokens < 1:
            self._refuse("requests_per_second", f"{_who(office_id)} may send {rate:,} requests a second")
        self._tokens[name] = (tokens - 1, now)

    def open_stream(self, office_id: str | None, key_id: str | None) -> Callable[[], None]:
        """Counts a stream until the returned function is called; raises OverQuota if there are too many."""
        name = office_id or key_id
        if name is None:
            return lambda: None
        most = self._quotas.of(office_id).streams
        if most and self._streams[name] >= most:
            self._refuse("streams", f"{_who(office_id)} may have {most:,} streams open")
        self._streams[name] += 1
        return lambda: self._streams.subtract([name])

    def _refuse(self, quota: str, granted: str) -> NoReturn:
        self._quotas.refused[quota] += 1
        raise OverQuota(quota, granted)


def _who(office_id: str | None) -> str:
    return "this key" if office_id is None else f"the office {office_id!r}"
