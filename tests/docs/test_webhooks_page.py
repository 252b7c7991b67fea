"""docs/webhooks.md and the reference say what the code has: events, methods, settings, fields."""

import inspect
import re
from dataclasses import fields
from pathlib import Path

from nextslot.domain import Attempt, Delivery, Webhook
from nextslot.domain.webhook_delivery import DIRECT_EVENTS, EVENTS, TEST_EVENT
from nextslot.engine.webhooks.webhook_outbox import WebhookSettings
from nextslot.services.webhooks import WebhookSubscriptions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/webhooks.md").read_text()
REFERENCE = (ROOT / "docs/reference.md").read_text().split("\n## Webhooks\n")[1].split("\n## ")[0]


def test_every_event_is_on_the_page_and_no_other() -> None:
    table = PAGE.split("| event |")[1].split("\n\n")[0]

    listed = {name for row in table.splitlines()[2:] for name in re.findall(r"`([\w.]+)`", row.split(" | ")[0])}

    assert listed == {*EVENTS, *DIRECT_EVENTS, TEST_EVENT}


def test_every_setting_is_on_the_page_with_its_default() -> None:
    table = PAGE.split("| setting |")[1].split("\n\n")[0]

    listed = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", table, re.MULTILINE))

    shown = {
        field.name: f"{field.default:g}" for field in fields(WebhookSettings) if type(field.default) in (int, float)
    }
    assert listed == {"secret": "generated", "allow_private": "true", "is_private_until_keyed": "false", **shown}


def test_every_method_is_in_the_reference_with_its_parameters() -> None:
    listed = dict(re.findall(r"^\| `(\w+)\((.*?)\)` \|", REFERENCE, re.MULTILINE))

    assert {name: given.replace("**", "").split(", ") if given else [] for name, given in listed.items()} == {
        name: [parameter for parameter in inspect.signature(method).parameters if parameter != "self"]
        for name, method in inspect.getmembers(WebhookSubscriptions, inspect.isfunction)
        if not name.startswith("_")
    }


def test_every_field_is_in_the_reference() -> None:
    listed = set(re.findall(r"`(\w+)`", REFERENCE.split("`Webhook`:")[1])) - {"Delivery"}

    known = {field.name for kind in (Webhook, Delivery, Attempt) for field in fields(kind)}
    assert listed == known
