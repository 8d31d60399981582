"""Tables as Markdown, CSV and LaTeX."""

import csv
import io

from restd.analyses import Table

_LATEX = {
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
    "±": r"$\pm$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "≥": r"$\geq$",
    "Δ": r"$\Delta$",
    "ε": r"$\varepsilon$",
    "λ": r"$\lambda$",
    "τ": r"$\tau$",
    "ρ": r"$\rho$",
    "β": r"$\beta$",
    "–": "--",
    "×": r"$\times$",
    "−": "$-$",
}


def to_markdown(table: Table) -> str:
    """Return a Markdown table with the best cells in bold, some underlined, and the notes below.

    >>> to_markdown(Table("t", "Scores", ("", "NDCG"), (("a", "1.0"),), best=((0, 1),))).splitlines()[-1]
    '| a | **1.0** |'
    """
    lines = [
        "| " + " | ".join(map(_cell, table.columns)) + " |",
        "|" + "|".join(["---", *["---:"] * (len(table.columns) - 1)]) + "|",
    ]
    for number, row in enumerate(table.rows):
        cells = [
            _set_off(table, number, column, _cell(text), bold="**{}**", underline="<u>{}</u>")
            for column, text in enumerate(row)
        ]
        lines.append("| " + " | ".join(cells) + " |")
    if table.notes:
        lines += ["", *(f"{note}  " for note in table.notes[:-1]), table.notes[-1]]
    return "\n".join(lines)


def _set_off(table: Table, row: int, column: int, text: str, *, bold: str, underline: str) -> str:
    r"""A cell with the marks it has, the bold inside the underline.

    >>> table = Table("t", "", ("", "N"), (("a", "1"),), best=((0, 1),), underlined=((0, 1),))
    >>> _set_off(table, 0, 1, "1", bold="**{}**", underline="<u>{}</u>")
    '<u>**1**</u>'
    """
    if (row, column) in table.best:
        text = bold.format(text)
    return underline.format(text) if (row, column) in table.underlined else text


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def to_csv(table: Table) -> str:
    r"""Return comma-separated values with a header.

    >>> to_csv(Table("t", "Scores", ("name", "NDCG"), (("a, b", "1.0"),)))
    'name,NDCG\n"a, b",1.0\n'
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(table.rows)
    return stream.getvalue()


def to_latex(table: Table) -> str:
    r"""Return a booktabs table with caption and label, the best cells in bold, and some underlined.

    >>> print(to_latex(Table("t", "A_B", ("", "N"), (("x", "50 %"),))).splitlines()[2])
    \caption{A\_B}
    """
    head = " & ".join(map(_escape, table.columns)) + r" \\"
    body = []
    for number, row in enumerate(table.rows):
        cells = [
            _set_off(table, number, column, _escape(text), bold=r"\textbf{{{}}}", underline=r"\underline{{{}}}")
            for column, text in enumerate(row)
        ]
        body.append(" & ".join(cells) + r" \\")
    lines = [
        r"\begin{table}[t]",
        r"\centering\small",
        rf"\caption{{{_escape(table.title)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        r"\toprule",
        head,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    lines += [rf"\par\footnotesize {_escape(note)}" for note in table.notes]
    return "\n".join([*lines, r"\end{table}", ""])


def _escape(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
