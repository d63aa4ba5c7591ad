"""Writes bills of materials (CycloneDX 1.6, JSON) of what is released.

    python packaging/materials.py OUT

planewised.cdx.json has what is linked into planewised and pw-probe; planewise.cdx.json the Python
packages that the wheel asks for, in the versions of requirements.txt, with which it was tested. The
same sources give the same bytes: serial numbers follow from the content, times from the commit.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import distribution
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from licences import ROOT, Linked, crates, toolchain
from packageurl import PackageURL
from packaging.requirements import Requirement

VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    linked = [
        *(component(part, PackageURL("cargo", None, part.name, part.version)) for part in crates()),
        *(
            component(part, PackageURL("generic", None, part.name, part.version))
            for part in toolchain()
        ),
    ]
    write(out / "planewised.cdx.json", "planewised", linked)
    packages = [
        component(part, PackageURL("pypi", None, part.name, part.version)) for part in wheels()
    ]
    write(out / "planewise.cdx.json", "planewise", packages)


def component(part: Linked, purl: PackageURL) -> Component:
    """One thing that is linked or asked for."""
    licence = [LicenseFactory().make_from_string(part.licence)] if part.licence else []
    return Component(
        name=part.name,
        version=part.version,
        type=ComponentType.LIBRARY,
        purl=purl,
        bom_ref=str(purl),
        licenses=licence,
    )


def wheels() -> list[Linked]:
    """What the wheel asks for, and what that asks for, as it is installed here."""
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting = [Requirement(text) for text in metadata["dependencies"]]
    known: dict[str, Linked] = {}
    while waiting:
        requirement = waiting.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in known:
            continue
        package = distribution(name)
        known[name] = Linked(name, package.version, licence_of(name), ())
        for text in package.requires or ():
            asked = Requirement(text)
            extras = requirement.extras or {""}
            if asked.marker is None or any(asked.marker.evaluate({"extra": e}) for e in extras):
                waiting.append(asked)
    return [known[name] for name in sorted(known)]


def licence_of(name: str) -> str:
    """A package's licence: its SPDX expression, else what its classifiers say."""
    metadata = distribution(name).metadata
    expression = metadata.get("License-Expression") or ""
    classifiers = [
        text.rpartition(" :: ")[2]
        for text in metadata.get_all("Classifier") or ()
        if text.startswith("License :: ")
    ]
    named = (metadata.get("License") or "").strip()
    if "\n" in named:  # the whole text, which begins with whose it is
        named = ""
    return expression or named or ", ".join(classifiers)


def write(file: Path, name: str, parts: Iterable[Component]) -> None:
    """Writes one bill and checks it against CycloneDX's schema."""
    bom = Bom(components=parts)
    purl = PackageURL("generic", None, name, VERSION)
    bom.metadata.component = Component(
        name=name, version=VERSION, type=ComponentType.APPLICATION, purl=purl, bom_ref=str(purl)
    )
    bom.register_dependency(bom.metadata.component, bom.components)
    bom.metadata.timestamp = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC)
    content = " ".join(sorted(str(part.purl) for part in bom.components))
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, content)
    text = JsonV1Dot6(bom).output_as_string(indent=2)
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert wrong is None, f"{file.name} is no CycloneDX: {wrong}"
    file.write_text(text + "\n")


if __name__ == "__main__":
    main()
