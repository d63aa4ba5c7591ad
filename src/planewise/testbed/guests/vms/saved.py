"""Virtual machines that libvirt saved to files: read, and rewritten with another name. Pure.

A guest that was saved after its boot can be restored many times, each time under another name.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from planewise.errors import PlanewiseError

_MAGIC = b"LibvirtQemudSave"
_NUMBERS = struct.Struct("<19I")
_HEADER = len(_MAGIC) + _NUMBERS.size
_COOKIE = 4


@dataclass(frozen=True)
class Saved:
    """A file with a guest in it, as libvirt saves one."""

    path: Path
    xml: str
    """libvirt's description of the guest."""
    stream_at: int
    """Offset of QEMU's part of the file [byte]."""
    numbers: tuple[int, ...]
    """The numbers of the file's header."""


def saved_header(saved: Saved, name: str, console: str) -> bytes:
    """The header of a file that restores the guest under another name. Pure but for a UUID.

    Source: libvirt's src/qemu/qemu_saveimage.h (virQEMUSaveHeader): version, length of the XML
    before the stream, whether it ran, format, offset of a cookie, and 14 unused numbers.
    """
    domain = ElementTree.fromstring(saved.xml)
    _set(domain, "name", name)
    _set(domain, "uuid", str(uuid.uuid4()))
    for kind in ("serial", "console"):
        for source in domain.findall(f"devices/{kind}/source"):
            source.set("path", console)
    for channel in domain.findall("devices/channel"):
        for source in channel.findall("source"):
            channel.remove(source)  # a socket named after the guest: libvirt names another
    for label in domain.findall("seclabel"):
        domain.remove(label)
    text = ElementTree.tostring(domain, encoding="unicode").encode() + b"\0"
    numbers = list(saved.numbers)
    numbers[1], numbers[_COOKIE] = len(text), 0
    return _MAGIC + _NUMBERS.pack(*numbers) + text


def _set(domain: ElementTree.Element, tag: str, text: str) -> None:
    element = domain.find(tag)
    if element is None:
        element = ElementTree.SubElement(domain, tag)
    element.text = text


def read(path: Path) -> Saved:
    """Reads a file that libvirt saved a guest to.

    Raises:
        PlanewiseError: the file is another one.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER)
        if len(header) < _HEADER or not header.startswith(_MAGIC):
            raise PlanewiseError(
                f"{path} holds no guest that libvirt saved", remedy="remove the file"
            )
        numbers = _NUMBERS.unpack(header[len(_MAGIC) :])
        length, cookie = numbers[1], numbers[_COOKIE]
        text = file.read(length)[: cookie or length].rstrip(b"\0").decode(errors="replace")
    return Saved(path, text, _HEADER + length, numbers)
