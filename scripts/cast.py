"""Record a program of the terminal as an animated SVG: `python scripts/cast.py OUT.svg -- COMMAND [ARGUMENT ...]`.

The program runs in a terminal of 100 columns and 30 rows. The picture needs no script, so that it also moves in a README:
all frames stand one below the other in a strip, and CSS moves the strip behind a window. Equal lines are drawn once.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time
from collections.abc import Sequence
from html import escape
from itertools import dropwhile, groupby
from pathlib import Path
from typing import NamedTuple

import pyte

COLUMNS, ROWS = 100, 30
CHARACTER, LINE = 8, 16  # px
FONT = "font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre"
BACKGROUND, FOREGROUND = "#1c2024", "#d8dee4"
COLOURS = {
    "red": "#f47067", "green": "#57ab5a", "brown": "#c69026", "yellow": "#c69026", "blue": "#539bf5",
    "magenta": "#b083f0", "cyan": "#39c5cf", "white": "#d8dee4", "black": "#6e7681", "brightblack": "#6e7681",
}  # fmt: skip
SHORTEST_S = 0.5  # between two frames
QUIET_S = 0.03  # after which what the program writes at once is complete
STANDS_S = 4.0  # for which the last frame is shown

BLOCKS = {
    "\u2588": (0.0, 1.0),
    "\u2580": (0.0, 0.5),
    "\u2584": (0.5, 1.0),
}  # full, upper half, lower half


class Run(NamedTuple):
    """Cells of a row that look alike. A colour that is "" is the default."""

    text: str
    colour: str
    behind: str
    bold: bool


Line = tuple[Run, ...]


class Frame(NamedTuple):
    """What the terminal shows from a moment on.

    Attributes:
        at_s: Seconds since the start.
        lines: The rows.
    """

    at_s: float
    lines: tuple[Line, ...]


def record(command: list[str]) -> list[Frame]:
    """Run a command in a terminal of its own; return the frames. Raises SystemExit if it fails."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLORTERM="truecolor", COLUMNS=str(COLUMNS), LINES=str(ROWS))
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    began = time.monotonic()
    frames: list[Frame] = []
    while True:
        readable, _, _ = select.select([terminal], [], [], QUIET_S)
        at_s = time.monotonic() - began
        if readable:
            try:
                stream.feed(os.read(terminal, 1 << 16))
            except OSError:  # the program has ended
                break
        elif not frames or at_s - frames[-1].at_s >= SHORTEST_S:
            add(frames, screen, at_s)
    add(frames, screen, time.monotonic() - began)
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"cast: {' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    return frames


def add(frames: list[Frame], screen: pyte.Screen, at_s: float) -> None:
    """Add what a screen shows, unless it is what the last frame shows."""
    lines = tuple(line_of(screen.buffer[row]) for row in range(ROWS))
    if not frames or frames[-1].lines != lines:
        frames.append(Frame(at_s, lines))


def line_of(row: dict[int, pyte.screens.Char]) -> Line:
    """Return a row of the screen as runs, without the spaces at its end."""
    runs = []
    cells = [row[column] for column in range(COLUMNS)]
    for _, group in groupby(cells, key=lambda cell: cell._replace(data=cell.data if cell.data in BLOCKS else "")):
        alike = list(group)
        text = "".join(cell.data for cell in alike)
        runs.append(Run(text, colour_of(alike[0].fg), colour_of(alike[0].bg), alike[0].bold))
    while runs and not runs[-1].text.strip() and not runs[-1].behind:
        runs.pop()
    return tuple(runs)


def colour_of(name: str) -> str:
    """Return the colour of that name, or of those six digits; "" for the default."""
    return "" if name == "default" else COLOURS.get(name, f"#{name}")


def drawn(frames: Sequence[Frame]) -> str:
    """Return the animated SVG. It begins when half of the rows that will be used show something."""
    rows = max((n + 1 for frame in frames for n, line in enumerate(frame.lines) if line), default=1)
    width, height = COLUMNS * CHARACTER + 24, rows * LINE + 24
    frames = list(dropwhile(lambda frame: 2 * sum(map(bool, frame.lines)) < rows, frames))
    began = frames[0].at_s
    length = frames[-1].at_s - began + STANDS_S
    numbers: dict[Line, int] = {}
    strip = []
    for number, frame in enumerate(frames):
        for row, line in enumerate(frame.lines[:rows]):
            if line:
                name = numbers.setdefault(line, len(numbers))
                strip.append(f'<use href="#l{name}" y="{number * height + row * LINE + 24:g}"/>')
    symbols = "".join(f'<g id="l{number}">{_parts(line)}</g>' for line, number in numbers.items())
    steps = "".join(
        f"{100 * (frame.at_s - began) / length:.2f}%{{transform:translateY({-number * height:g}px)}}"
        for number, frame in enumerate(frames)
    )
    last = f"translateY({-(len(frames) - 1) * height:g}px)"
    style = (
        f"text{{{FONT};fill:{FOREGROUND}}}.b{{font-weight:600}}#strip{{animation:roll {length:.1f}s step-end infinite}}"
        f"@keyframes roll{{{steps}100%{{transform:{last}}}}}"
        f"@media(prefers-reduced-motion:reduce){{#strip{{animation:none;transform:{last}}}}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" width="{width:g}" height="{height}">'
        f"<style>{style}</style><defs>{symbols}</defs>"
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/><g id="strip">{"".join(strip)}</g></svg>\n'
    )


def _parts(line: Line) -> str:
    """Return the runs of a line, each at its column: fonts differ in the width of what they have."""
    paths: dict[str, str] = {}
    spans, column = [], 0
    for run in line:
        x, width = 12 + column * CHARACTER, len(run.text) * CHARACTER
        column += len(run.text)
        painted = [(0.0, 1.0, run.behind)] if run.behind else []
        if run.text[0] in BLOCKS:
            painted.append((*BLOCKS[run.text[0]], run.colour or FOREGROUND))
        elif text := run.text.strip():
            x += (len(run.text) - len(run.text.lstrip())) * CHARACTER
            look = (f' fill="{run.colour}"' if run.colour else "") + (' class="b"' if run.bold else "")
            spans.append(
                f'<tspan x="{x}" textLength="{len(text) * CHARACTER}" lengthAdjust="spacingAndGlyphs"{look}>'
                f"{escape(text, quote=False)}</tspan>"
            )
        for top, bottom, colour in painted:
            corner = f"M{x:g} {top * LINE - 13:g}h{width:g}v{(bottom - top) * LINE:g}h-{width:g}z"
            paths[colour] = paths.get(colour, "") + corner
    shapes = "".join(f'<path fill="{colour}" d="{path}"/>' for colour, path in paths.items())
    return shapes + (f"<text>{''.join(spans)}</text>" if spans else "")


def main(arguments: list[str]) -> None:
    """Record the command, and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("command", nargs="+")
    chosen = parser.parse_args(arguments)
    frames = record(chosen.command)
    chosen.out.write_text(drawn(frames), encoding="utf-8")
    print(f"cast: {len(frames)} frames, {chosen.out.stat().st_size // 1024} KiB, in {chosen.out}")


if __name__ == "__main__":
    main(sys.argv[1:])
