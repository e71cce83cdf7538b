"""Secrets at rest, as the CLI's passphrase provider keeps them: PBKDF2-SHA256 with 1,000,000 rounds, AES-256-GCM.

A salt reads `v1:<base64 salt>:<test>` where the test is the word "pulumi" encrypted; a ciphertext reads
`v1:<base64 nonce>:<base64 sealed>`.
"""

from __future__ import annotations

import base64
import hashlib
import os
import threading
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from localcloud.engine.errors import EngineError

_ROUNDS = 1_000_000  # a part of the format: the CLI derives its key with as many


class Crypter:
    """Encrypts and decrypts with the key of one passphrase and salt.

    The key takes about 0.4 s to derive, so that runs in a thread from the start and is waited for at the first use.
    Raises EngineError when the passphrase is not the one that the salt was made with.
    """

    def __init__(self, passphrase: str, salt: str = "") -> None:
        self._check = ""
        raw = os.urandom(8)
        if salt:
            try:
                version, encoded, self._check = salt.split(":", 2)
                raw = base64.b64decode(encoded, validate=True)
            except ValueError:
                version = ""
            if version != "v1":
                raise EngineError(f"encryptionsalt {salt!r} is not of the form v1:<salt>:<test>: copy it again in full")
        self._raw = raw
        self._passphrase = passphrase
        self._aes: AESGCM | None = None
        self._failure = ""
        self._ready = threading.Thread(target=self._derive, daemon=True)
        self._ready.start()

    def _derive(self) -> None:
        key = hashlib.pbkdf2_hmac("sha256", self._passphrase.encode(), self._raw, _ROUNDS, 32)
        aes = AESGCM(key)
        if not self._check:
            self._check = _seal(aes, "pulumi")
        elif _open(aes, self._check) != "pulumi":
            self._failure = (
                "incorrect passphrase: the stack's secrets were encrypted with another one. "
                "Set PULUMI_CONFIG_PASSPHRASE or PULUMI_CONFIG_PASSPHRASE_FILE to the passphrase of this stack."
            )
        self._aes = aes

    def _cipher(self) -> AESGCM:
        self._ready.join()
        if self._failure or self._aes is None:
            raise EngineError(self._failure or "the key could not be derived from the passphrase")
        return self._aes

    @property
    def salt(self) -> str:
        """The salt as state and stack files keep it."""
        self._cipher()
        return f"v1:{base64.b64encode(self._raw).decode()}:{self._check}"

    def encrypt(self, text: str) -> str:
        return _seal(self._cipher(), text)

    def decrypt(self, ciphertext: str) -> str:
        text = _open(self._cipher(), ciphertext)
        if text is None:
            raise EngineError("a secret cannot be decrypted: it was encrypted for another stack or changed by hand")
        return text


def _seal(aes: AESGCM, text: str) -> str:
    nonce = os.urandom(12)
    sealed = aes.encrypt(nonce, text.encode(), None)
    return f"v1:{base64.b64encode(nonce).decode()}:{base64.b64encode(sealed).decode()}"


def _open(aes: AESGCM, ciphertext: str) -> str | None:
    try:
        version, nonce, sealed = ciphertext.split(":")
        if version != "v1":
            return None
        return aes.decrypt(base64.b64decode(nonce), base64.b64decode(sealed), None).decode()
    except (ValueError, InvalidTag):
        return None


def passphrase(environment: dict[str, str]) -> str | None:
    """The passphrase that the environment gives, or None. Raises EngineError when its file cannot be read."""
    if "PULUMI_CONFIG_PASSPHRASE" in environment:
        return environment["PULUMI_CONFIG_PASSPHRASE"]
    file = environment.get("PULUMI_CONFIG_PASSPHRASE_FILE")
    if not file:
        return None
    try:
        return Path(file).read_text().strip()
    except OSError as error:
        raise EngineError(f"PULUMI_CONFIG_PASSPHRASE_FILE={file}: {error.strerror}") from error


def required(environment: dict[str, str], salt: str) -> Crypter:
    """The crypter of a stack. Raises EngineError when the environment gives no passphrase."""
    phrase = passphrase(environment)
    if phrase is None:
        raise EngineError(
            "this stack has secrets, and no passphrase is set: "
            "set PULUMI_CONFIG_PASSPHRASE or PULUMI_CONFIG_PASSPHRASE_FILE"
        )
    return Crypter(phrase, salt)
