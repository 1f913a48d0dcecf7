"""What a command printed, from standard input, as an SVG of a terminal on standard output.

python docs/terminal_picture.py TITLE <output.txt >picture.svg
"""

from __future__ import annotations

import io
import re
import sys
import textwrap

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME

# As rich's own format, without its fonts from the network and without buttons of a window.
FORMAT = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: \
{char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


COLUMNS = 100  # of the widest line


def picture(text: str, title: str) -> str:
    """An SVG as wide as the longest line."""
    lines = [part for line in text.rstrip().splitlines() for part in _wrapped(line.rstrip())]
    console = Console(record=True, width=max(map(len, lines)) + 1, file=io.StringIO(), force_terminal=True)
    for line in lines:
        console.print(line, markup=False, highlight=False, emoji=False, style="bold" if line.startswith("->") else "")
    svg = console.export_svg(title=title, theme=DEFAULT_TERMINAL_THEME, code_format=FORMAT)
    return re.sub(r'<g transform="translate\(26,22\)">.*?</g>', "", svg, flags=re.DOTALL)  # the buttons


def _wrapped(line: str) -> list[str]:
    """Tables are narrower and stay as they are; sentences are broken."""
    return [line] if len(line) <= COLUMNS else textwrap.wrap(line, COLUMNS)


if __name__ == "__main__":
    sys.stdout.write(picture(sys.stdin.read(), sys.argv[1]))
