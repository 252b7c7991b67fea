"""The verbs of the library over HTTP: `client.extension(Library)`."""

from nextslot.client.binding import Operation, Subject, Way, verb
from nextslot.client.requests import get, paged, part
from nextslot.client.values import Json


class Library(Subject[Way]):
    """Stories and research cards, as JSON."""

    @verb
    def stories(
        self, limit: int = 50, cursor: str | None = None, *, q: str | None = None, tag: str | None = None
    ) -> Operation[Json]:
        return self._ask(get("/api/stories", {"q": q, "tag": tag, **paged(limit, cursor)}), lambda json: json)

    @verb
    def story(self, story_id: str) -> Operation[Json]:
        """Returns a story with its text, and how similar it is to earlier ones."""
        return self._ask(get(f"/api/stories/{part(story_id)}"), lambda json: json)

    @verb
    def cards(
        self, limit: int = 50, cursor: str | None = None, *, q: str | None = None, tag: str | None = None
    ) -> Operation[Json]:
        return self._ask(get("/api/research-cards", {"q": q, "tag": tag, **paged(limit, cursor)}), lambda json: json)

    @verb
    def card(self, card_id: str) -> Operation[Json]:
        """Returns a research card, and how similar it is to earlier ones."""
        return self._ask(get(f"/api/research-cards/{part(card_id)}"), lambda json: json)
