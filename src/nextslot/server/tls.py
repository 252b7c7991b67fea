"""Loads the server's certificate, and again on SIGHUP. Open connections keep the certificate with which they began."""

import logging
import ssl
from pathlib import Path

from nextslot.errors import Invalid

log = logging.getLogger(__name__)


class Certificate:
    def __init__(self, certificate: Path, key: Path | None) -> None:
        """`key` is None if the certificate's file also contains the key. Raises Invalid if they cannot be used."""
        self._certificate = certificate
        self._key = key
        self.context = self._load()

    def reload(self) -> None:
        """Loads the files again for new connections. If they are invalid, the old ones stay in use."""
        try:
            self.context = self._load()
        except Invalid as error:
            log.error("reload: the certificate stays as it was: %s", error)
        else:
            log.info("reload: new connections get the certificate as it is now")

    def _load(self) -> ssl.SSLContext:
        # A new context, so that a failure half-way cannot combine the certificate of one pair with the key of another.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # One handshake a connection: each costs a signature, and is bounded only as the first one.
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._certificate, self._key)
        except OSError as error:
            sentence = f"{self._certificate} and its key cannot be used: {error.strerror or error}; name PEM files"
            raise Invalid(f"{sentence} that belong together and can be read", "server.tls_certificate") from error
        return context
