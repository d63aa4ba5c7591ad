"""Draws chart specifications as SVG, in a process beside the report's. Knows no figures.

Vega runs in one thread and holds the GIL. A large report runs it in a process of its own, so that
packets are read and planes compared meanwhile. Run as a program, this module is that process: it
reads a specification a line and answers with its SVG as a line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self

Drawing = Callable[[], str]
"""Returns the SVG, when it is drawn."""


def svg(specification: str) -> str:
    """The chart as SVG text, drawn in this process; no file and no network."""
    import vl_convert

    return str(vl_convert.vegalite_to_svg(specification))


class Renderer:
    """Draws in a process of its own; a chart that it fails on is drawn in this process."""

    def __init__(self) -> None:
        """Starts the process."""
        self._pool = ThreadPoolExecutor(1)
        try:
            self._process: subprocess.Popen[str] | None = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
            )
        except OSError:
            self._process = None

    def draw(self, specification: str) -> Drawing:
        """Begins to draw `specification` (JSON, one line)."""
        future = self._pool.submit(self._ask, specification)

        def wait() -> str:
            drawn = future.result()
            return drawn if drawn is not None else svg(specification)

        return wait

    def _ask(self, specification: str) -> str | None:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return None
        try:
            process.stdin.write(f"{specification}\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
        except (OSError, ValueError):  # it died: killed, or no memory left
            return None
        return answer if isinstance(answer, str) else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def serve() -> None:
    """Answers specifications until stdin ends."""
    for line in sys.stdin:
        try:
            answer: str | None = svg(line)
        except ValueError:
            answer = None
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    serve()
