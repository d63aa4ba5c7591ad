"""A figure's or a comparison's numbers as Markdown and LaTeX."""

from __future__ import annotations

from planewise.report.figure import Entry, Missing, PrintedNumber, Table

_MARKDOWN = str.maketrans(
    {"|": "\\|", "\\": "\\\\", "*": "\\*", "_": "\\_", "`": "\\`", "<": "&lt;"}
)
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "µ": r"\textmu{}",
        "τ": r"$\tau$",
        "−": r"\textminus{}",
        "–": "--",
        "—": "---",
        "×": r"\texttimes{}",
        "∞": r"$\infty$",
        "≤": r"$\le$",
        "\u00a0": "~",
        "\u202f": r"\,",
        "\u2060": "",
    }
)
"""Characters that LaTeX needs escaped; others need an engine that reads UTF-8."""


def markdown(table: Table, caption: str) -> str:
    """A pipe table with its caption above it."""
    numbers = _numbers(table)
    lines = [
        f"**{_in_markdown(caption)}**",
        "",
        _row([_in_markdown(column) for column in table.columns]),
        _row(["---:" if number else "---" for number in numbers]),
        *(_row([_in_markdown(_text(entry)) for entry in row]) for row in table.rows),
    ]
    return "\n".join(lines) + "\n"


def latex(table: Table, caption: str, label: str) -> str:
    """A table with rules of booktabs; a long one breaks over pages (longtable)."""
    numbers = _numbers(table)
    columns = "".join("r" if number else "l" for number in numbers)
    head = " & ".join(_in_latex(column) for column in table.columns) + r" \\"
    body = [" & ".join(_in_latex(_text(entry)) for entry in row) + r" \\" for row in table.rows]
    title = rf"\caption{{{_in_latex(caption)}}}\label{{tab:{label}}}"
    if len(table.rows) > _MOST_ROWS_A_PAGE:
        return "\n".join(
            [
                "% needs \\usepackage{booktabs,longtable,textcomp}",
                rf"\begin{{longtable}}{{{columns}}}",
                title + r" \\",
                r"\toprule",
                head,
                r"\midrule",
                r"\endhead",
                *body,
                r"\bottomrule",
                r"\end{longtable}",
                "",
            ]
        )
    return "\n".join(
        [
            "% needs \\usepackage{booktabs,textcomp}",
            r"\begin{table}",
            r"\centering",
            title,
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


_MOST_ROWS_A_PAGE = 40


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _numbers(table: Table) -> list[bool]:
    """Whether each column holds numbers."""
    return [
        any(isinstance(row[place], PrintedNumber) for row in table.rows)
        for place in range(len(table.columns))
    ]


def _text(entry: Entry) -> str:
    if isinstance(entry, PrintedNumber):
        return entry.text
    return entry.why if isinstance(entry, Missing) else entry


def _in_markdown(text: str) -> str:
    return " ".join(text.replace("\u2060", "").split()).translate(_MARKDOWN)


def _in_latex(text: str) -> str:
    return text.replace("\n", " ").translate(_LATEX)
