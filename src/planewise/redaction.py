"""Hides secrets and addresses in texts that are sent to others.

Secrets are replaced by a note. Addresses, host names and user names become pseudonyms, the same in
all texts of one `Redactor`, so that a reader can still tell which is which.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from ipaddress import ip_address, ip_network

HIDDEN = "(hidden)"

_PEM = re.compile(r"-----BEGIN [^-\n]+-----.*?(?:-----END [^-\n]+-----|\Z)", re.DOTALL)
_NAMED = re.compile(
    r"""(?ix)
    ( [\w.-]* (?: passw(?:or)?d | passphrase | secret | token | api[_-]?key | credential
                | private[_-]?key ) s? [\w-]* ["']? \s* [=:] \s* )
    ( "[^"\n]*" | '[^'\n]*' | [^\s,;}\]"']+ )
    """
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{4,}")
_USERINFO = re.compile(r"(\w://)[^\s/@:]+(?::[^\s/@]*)?@")
_LONG = re.compile(
    r"(?<![\w/+-])(?=[^\s]*\d)(?=[^\s]*[A-Za-z])[A-Za-z0-9+_-]{32,}={0,2}(?![\w/+-])"
)
_MAC = re.compile(r"(?<![\w:])(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}(?![\w:])")
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:[0-9A-Fa-f.:]*(?![\w:])")
_HOME = re.compile(r"(?<=/home/)[^/\s\"':,]+")

_HARMLESS = tuple(
    map(ip_network, ("127.0.0.0/8", "0.0.0.0/32", "198.18.0.0/15", "::/127", "2001:2::/48"))
)
"""Loopback, unspecified, testbeds (RFC 2544, RFC 5180): they identify nobody."""


class Redactor:
    """Replaces secrets, addresses and names in texts."""

    def __init__(self, secrets: Iterable[str] = (), names: Iterable[tuple[str, str]] = ()) -> None:
        """`secrets` are hidden wherever they stand; `names` are pairs as `("web1", "host")`."""
        self._secrets = sorted({text for text in secrets if text}, key=len, reverse=True)
        self._names = [(name, kind) for name, kind in names if len(name) > 1]
        self._pseudonyms: dict[tuple[str, str], str] = {}

    def __call__(self, text: str) -> str:
        """The text without secrets, and with pseudonyms for addresses and names."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        text = _PEM.sub(HIDDEN, text)
        text = _BEARER.sub(rf"\1 {HIDDEN}", text)
        text = _USERINFO.sub(rf"\1{HIDDEN}@", text)
        text = _NAMED.sub(lambda match: f'{match[1]}"{HIDDEN}"', text)
        text = _LONG.sub(HIDDEN, text)
        text = _MAC.sub(self._replacer("mac"), text)
        text = _IPV4.sub(self._address, text)
        text = _IPV6.sub(self._address, text)
        text = _HOME.sub(self._replacer("user"), text)
        for name, kind in self._names:
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", self._replacer(kind), text)
        return text

    def _pseudonym(self, kind: str, value: str) -> str:
        count = sum(1 for other_kind, _ in self._pseudonyms if other_kind == kind)
        return self._pseudonyms.setdefault((kind, value.lower()), f"{kind}-{count + 1}")

    def _replacer(self, kind: str) -> Callable[[re.Match[str]], str]:
        return lambda match: self._pseudonym(kind, match[0])

    def _address(self, match: re.Match[str]) -> str:
        """A pseudonym for an address; a colon or dot after it belongs to the sentence."""
        text = match[0] if match[0].endswith("::") else match[0].rstrip(".:")
        try:
            address = ip_address(text)
        except ValueError:
            return match[0]
        if any(address in network for network in _HARMLESS if network.version == address.version):
            return match[0]
        return self._pseudonym(f"ipv{address.version}", str(address)) + match[0][len(text) :]
