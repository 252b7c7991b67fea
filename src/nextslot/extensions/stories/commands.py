"""Commands about the library: `nextslot story` and `nextslot card`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nextslot.cli import output
from nextslot.cli.session import Session, command, group

if TYPE_CHECKING:
    from nextslot.client.transports import BlockingTransport

    from .client import Library

Search = Annotated[str | None, typer.Argument(metavar="WORDS", help="Words that it has.", show_default=False)]
Tag = Annotated[str | None, typer.Option(help="Only with this tag.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=500, help="At most so many.")]
Cursor = Annotated[str | None, typer.Option(help="The next page: what the last one said.")]
Which = Annotated[str, typer.Argument(metavar="ID", help="Its id, or `last` for the newest.", show_default=False)]


def register(app: typer.Typer) -> None:
    story = group("story", "Stories that jobs and direct requests have written.")
    command(story, "ls")(list_stories)
    command(story, "cat")(print_story)
    app.add_typer(story)
    card = group("card", "Research cards.")
    command(card, "ls")(list_cards)
    command(card, "cat")(print_card)
    app.add_typer(card)


def _library(session: Session) -> "Library[BlockingTransport]":
    from .client import Library

    return session.client.extension(Library)


def list_stories(
    session: Session, words: Search = None, tag: Tag = None, limit: Limit = 50, cursor: Cursor = None
) -> None:
    """List stories, the newest first."""
    found = _library(session).stories(limit, cursor, q=words, tag=tag)
    rows = [
        [one["story_id"], one["created_at"], one["words"], one["title"], one["topic"], ", ".join(one["tags"])]
        for one in found["items"]
    ]
    session.list(found, ("ID", "CREATED", "WORDS", "TITLE", "TOPIC", "TAGS"), rows, "no stories")


def print_story(session: Session, story: Which) -> None:
    """Print a story."""
    library = _library(session)
    found = library.story(_newest(library.stories(1), "story_id") if story == "last" else story)
    text = found["text"]
    lines = ["# " + found["title"], "", text or "(its file was deleted, or is on the disk of another node)"]
    session.show(found, lambda: output.write("\n".join([*lines, ""]).encode()))


def list_cards(
    session: Session, words: Search = None, tag: Tag = None, limit: Limit = 50, cursor: Cursor = None
) -> None:
    """List research cards, the newest first."""
    found = _library(session).cards(limit, cursor, q=words, tag=tag)
    rows = [
        [one["card_id"], one["created_at"], one["title"], one["topic"], ", ".join(one["tags"])]
        for one in found["items"]
    ]
    session.list(found, ("ID", "CREATED", "TITLE", "TOPIC", "TAGS"), rows, "no research cards")


def print_card(session: Session, card: Which) -> None:
    """Print a research card."""
    library = _library(session)
    found = library.card(_newest(library.cards(1), "card_id") if card == "last" else card)
    session.show(found, lambda: output.write(_card(found).encode()))


def _card(card: Mapping[str, Any]) -> str:
    parts = [f"# {card['title']}", card["summary"]]
    for heading, name in (("Key concepts", "key_concepts"), ("Applications", "applications")):
        if card[name]:
            parts += [f"## {heading}", "\n".join(f"- {item}" for item in card[name])]
    return "\n\n".join(parts) + "\n"


def _newest(page: Mapping[str, Any], name: str) -> str:
    if not page["items"]:
        raise typer.BadParameter("there is none yet; submit a job of the type story or research first")
    found: str = page["items"][0][name]
    return found
