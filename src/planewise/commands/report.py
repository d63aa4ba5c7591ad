"""`planewise report`: a run directory as an HTML page, figures and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from planewise.commands import console
from planewise.commands.newest import newest_measured


def report(
    context: typer.Context,
    run: Annotated[
        Path | None,
        Argument(help="A run directory [default: the newest in runs/].", metavar="RUN"),
    ] = None,
    out: Annotated[
        Path | None,
        Option("-o", "--out", help="The page [default: RUN/report.html].", metavar="FILE"),
    ] = None,
    figures: Annotated[
        Path | None, Option(help="Also write each figure into this directory.")
    ] = None,
    formats: Annotated[
        str, Option("--format", help="Formats of --figures: svg, pdf, png, html (interactive).")
    ] = "svg,pdf,png",
    tables: Annotated[
        Path | None, Option(help="Also write the comparisons into this directory: Markdown, LaTeX.")
    ] = None,
) -> None:
    """Write the HTML report of a run, its figures and tables."""
    from planewise.report import html
    from planewise.report.figure import parse_formats, save
    from planewise.store.rundir import RunReader

    kinds = parse_formats(formats)
    run = run or newest_measured("planewise report")
    reader = RunReader(run)
    page = out or run / "report.html"
    html.write(reader, page)
    print(page)
    if figures is not None:
        for figure in html.all_figures(reader):
            for file in save(figure.whole(), figures / figure.name, kinds):
                print(file)
    if tables is not None:
        written = html.write_tables(reader, tables)
        for file in written:
            print(file)
        if not written and not context.obj.quiet:
            console.err().print("no tables: this run has no two planes that can be compared")
    if not context.obj.quiet:
        console.err().print("open the page in a browser; it needs no network")
