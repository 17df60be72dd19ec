"""One HTML page of figures and tables that needs nothing else, on a wide screen and on a phone's."""

import html
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from podracer.analysis import plotting
from podracer.analysis.plotting import Line, Stroke, Style


class Table(NamedTuple):
    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def document(title: str, parts: Sequence[str]) -> str:
    """The page of some parts, one below the other."""
    return _PAGE.format(title=html.escape(title), style=_STYLE, body="\n".join(parts))


def figure_part(heading: str, drawn: Mapping[str, Mapping[str, Line]], style: Style) -> str:
    """A figure of one panel an environment; as many stand side by side as have room."""
    looks = plotting.strokes(drawn)
    panels = "\n".join(_panel(env, panel, looks, style) for env, panel in drawn.items())
    return (
        f"<h2>{html.escape(heading)}</h2>\n<p>{html.escape(plotting.describe(style))}</p>\n"
        f'<div class="panels">\n{panels}\n</div>'
    )


def table_part(table: Table) -> str:
    """A table that scrolls within its own box where it is too wide."""

    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    rows = "\n".join([row(table.columns, "th"), *(row(cells, "td") for cells in table.rows)])
    return f'<h2>{html.escape(table.heading)}</h2>\n<div class="wide" tabindex="0"><table>\n{rows}\n</table></div>'


def _panel(env: str, panel: Mapping[str, Line], looks: Mapping[str, Stroke], style: Style) -> str:
    entries = "".join(
        f'<li><i style="border-top: 3px {looks[label].dashes} {looks[label].colour}"></i>'
        f"{html.escape(plotting.legend(label, line))}</li>"
        for label, line in panel.items()
    )
    svg = plotting.to_svg(panel, looks, style)
    return f"<figure><figcaption>{html.escape(env)}</figcaption>\n{svg}<ul>{entries}</ul></figure>"


_STYLE = """\
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1b1b; --line: #ddd; }
@media (prefers-color-scheme: dark) { :root { --paper: #161616; --ink: #ddd; --line: #444; } }
body {
  font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 76rem; padding: 1rem;
  background: var(--paper); color: var(--ink);
}
h1, h2, p, figcaption, li { overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
p { margin: 0 0 .7rem; font-size: .9rem; }
.panels { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 23rem), 1fr)); }
figure { margin: 0; max-width: 36rem; padding: .5rem 0; background: #fff; color: #1b1b1b; border-radius: .3rem; }
figcaption { font-weight: 600; text-align: center; }
figure svg { display: block; width: 100%; height: auto; }
figure ul { display: flex; flex-wrap: wrap; gap: 0 1.2rem; list-style: none; font-size: .85rem; }
figure ul { margin: .3rem .5rem 0 13%; padding: 0; }
figure li { padding-left: 2rem; }
figure i { display: inline-block; width: 1.6rem; margin: 0 .4rem 0 -2rem; vertical-align: middle; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); }
td:first-child { min-width: 9.5rem; white-space: normal; overflow-wrap: anywhere; }
"""

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""
