"""What the site shows besides docs/: the programs' help, the daemon's API, files of the repository.

Everything comes from the programs as they are installed: nothing is copied by hand.
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from mkdocs.structure.files import File, Files
from openapidocs.mk.v3 import OpenAPIV3DocumentationHandler

from planewise.cli import app

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(sys.executable).parent

SECTIONS = {
    "Guide": (
        "guide",
        ("install", "first-run", "first-hour", "reading-a-report", "judging-results", "advise"),
    ),
    "Concepts": ("concepts", ("measurement", "statistics", "verdict")),
    "Reference": (
        "reference",
        ("planewise", "pw-probe", "planewised", "api", "designs", "formats"),
    ),
    "Results": ("results", ()),
    "Contributing": ("contributing", ()),
}
"""Section -> folder of docs/, and its first pages; the others follow by name."""

HOST = """
socket = "{folder}/socket"
state_directory = "{folder}"
[containers]
docker = ""
[simulated]
vfs = 0
[simulated.guests]
"""
"""A made-up host without guests: a daemon there describes the API and touches nothing."""

_LINK = re.compile(r"(\[[^\]]*\]\()((?:\.\./)+[^)\s#]+)(#[^)\s]*)?(\))")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that the programs write, and the repository's files that pages link to."""
    files.append(File.generated(config, "reference/planewise.md", content=planewise_page()))
    for program, summary in (
        ("pw-probe", "Packets: latency, loss and throughput between two interfaces."),
        ("planewised", "SR-IOV functions of a host, and the daemon that gives them."),
    ):
        page = f"# {program}\n\n{summary}\n\n" + "\n".join(program_help((program,)))
        files.append(File.generated(config, f"reference/{program}.md", content=page))
    description = openapi()
    files.append(File.generated(config, "reference/openapi.json", content=description))
    files.append(File.generated(config, "reference/api.md", content=api_page(description)))
    changelog = (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=changelog))
    for linked in sorted(linked_sources(files)):
        content = (ROOT / linked).read_bytes()
        files.append(File.generated(config, f"files/{linked}.txt", content=content))
    config.nav = navigation(files)
    return files


def on_post_page(output: str, **_: Any) -> str:
    """Names the dialog of the search, which the theme leaves without a name for screen readers."""
    dialog = 'data-md-component="search" role="dialog"'
    assert dialog in output
    return output.replace(dialog, f'{dialog} aria-label="Search"')


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Points links out of docs/ to the copies of those files on the site."""

    def moved(match: re.Match[str]) -> str:
        target = source_of(page.file.src_uri, match[2])
        if target is None:
            return match[0]
        here = posixpath.dirname(page.file.src_uri)
        return f"{match[1]}{posixpath.relpath(f'files/{target}.txt', here or '.')}{match[4]}"

    return _LINK.sub(moved, markdown)


def source_of(page: str, link: str) -> str | None:
    """The repository's file that a page's link leads to; None for pages of docs/."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    inside = path.startswith(("docs/", "../"))
    return None if inside or not (ROOT / path).is_file() else path


def linked_sources(files: Files) -> set[str]:
    pages = [file for file in files.documentation_pages() if file.abs_src_path]
    linked = set()
    for file in pages:
        for match in _LINK.finditer(Path(str(file.abs_src_path)).read_text()):
            linked.add(source_of(file.src_uri, match[2]))
    return {path for path in linked if path is not None}


def navigation(files: Files) -> list[dict[str, Any]]:
    """Home, then a section a folder; a new page appears by itself."""
    pages = {file.src_uri for file in files.documentation_pages()}
    tree: list[dict[str, Any]] = [{"Home": "index.md"}]
    for title, (folder, first) in SECTIONS.items():
        named = [f"{folder}/{name}.md" for name in first]
        rest = sorted(page for page in pages if page.startswith(f"{folder}/"))
        ordered = [page for page in (*named, *(p for p in rest if p not in named)) if page in pages]
        if ordered:
            tree.append({title: ordered})
    about = ["SPECIFICATION.md", "design.md", "changelog.md"]
    tree.append({"Project": [page for page in about if page in pages]})
    return tree


def planewise_page() -> str:
    """The help of every command of `planewise`."""
    parts = ["# planewise\n"]
    top = typer.main.get_command(app)
    for path, context in commands(top, ("planewise",), None):
        level = "##" if len(path) <= 2 else "###"
        parts.append(f"{level} {' '.join(path)}\n\n```text\n{context.get_help()}\n```\n")
    return "\n".join(parts)


def commands(
    node: Any, path: tuple[str, ...], parent: Any
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below `node` with its context, a group before its members."""
    context = node.make_context(
        path[-1], [], parent=parent, resilient_parsing=True, max_content_width=100
    )
    yield path, context
    for name, command in sorted(getattr(node, "commands", {}).items()):
        if not command.hidden:
            yield from commands(command, (*path, name), context)


def program_help(path: tuple[str, ...]) -> Iterator[str]:
    """The help of a program and of each of its subcommands, as it prints it."""
    text = said(*path, "--help")
    yield f"{'##' if len(path) <= 2 else '###'} {' '.join(path)}\n\n```text\n{text.strip()}\n```\n"
    listed = re.search(r"^Commands:\n((?:  .*\n|\n)*)", text, flags=re.MULTILINE)
    for name in re.findall(r"^  ([a-z][\w-]*)", listed[1] if listed else "", flags=re.MULTILINE):
        if name != "help":
            yield from program_help((*path, name))


def said(program: str, *arguments: str) -> str:
    path = shutil.which(program, path=str(SCRIPTS)) or program
    done = subprocess.run([path, *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def openapi() -> str:
    """The description that a daemon serves."""
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder) / "planewised.toml"
        configuration.write_text(HOST.format(folder=folder))
        program = shutil.which("planewised", path=str(SCRIPTS)) or "planewised"
        command = [program, "daemon", "--config", str(configuration)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as daemon:
            try:
                return asked(f"{folder}/socket")
            except OSError as error:
                daemon.kill()
                raise SystemExit(
                    f"planewised does not answer: {daemon.communicate()[1]}"
                ) from error
            finally:
                daemon.terminate()


def asked(path: str) -> str:
    """GET /openapi.json, as soon as somebody listens."""
    for attempt in range(100):
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(path)
            except OSError:
                if attempt == 99:
                    raise
                time.sleep(0.05)
                continue
            connection.sendall(
                b"GET /openapi.json HTTP/1.1\r\nHost: planewised\r\nConnection: close\r\n\r\n"
            )
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
            return answer.partition(b"\r\n\r\n")[2].decode()
    raise AssertionError


def api_page(description: str) -> str:
    """The API's description as a page."""
    written = OpenAPIV3DocumentationHandler(json.loads(description)).write()
    body = re.sub(r"\A.*?^# [^\n]*\n", "", written, count=1, flags=re.DOTALL | re.MULTILINE)
    # A link that leads nowhere: the description names the licence without an address.
    return API + re.sub(r'<a href=""[^>]*>(.*?)</a>', r"\1", body)


API = """# HTTP API of planewised

Written from what the daemon itself serves as `/openapi.json` ([the file](openapi.json)). How to
reach it and who may: [the allocator](alloc.md#api).

"""
