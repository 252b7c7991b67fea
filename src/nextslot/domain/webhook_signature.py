"""The signature of webhooks: secrets, and the headers by which a receiver verifies a message (Standard Webhooks)."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable

from nextslot.system.instant import Instant

SECRET_PREFIX = "whsec_"
# How long the old secret of a subscription still signs after a rotation.
ROTATION_SECONDS = 24 * 3600.0


def secret_problem(secret: object) -> str | None:
    """Says what is wrong with a secret, without repeating it."""
    if isinstance(secret, str) and 24 <= len(_key(secret)) <= 64:
        return None
    return "is not a signing secret; it must be whsec_ and 24 to 64 bytes in base64"


def secret_of(random_text: str) -> str:
    """Makes a secret from a random text of 256 bits."""
    return SECRET_PREFIX + base64.b64encode(hashlib.sha256(random_text.encode()).digest()).decode()


def secret_for(server_secret: str, office_id: str) -> str:
    """Derives the secret of one office from the server's secret, which stays hidden from offices."""
    derived = hmac.new(_key(server_secret), f"nextslot:office:{office_id}".encode(), hashlib.sha256).digest()
    return SECRET_PREFIX + base64.b64encode(derived).decode()


def signed(message_id: str, body: bytes, secrets: Iterable[str], now: Instant) -> dict[str, str]:
    """Returns the three headers, with a signature for each secret: one match is enough to verify the message."""
    timestamp = str(now // 1_000_000)
    content = f"{message_id}.{timestamp}.".encode() + body
    signatures = (hmac.new(_key(secret), content, hashlib.sha256).digest() for secret in secrets)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{base64.b64encode(one).decode()}" for one in signatures),
    }


def _key(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return b""
