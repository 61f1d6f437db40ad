"""Draw the ring of the home page: python docs/builder/ring.py writes docs/ring.svg.

Four ranks, each with the vector in four ranges: its own is filled. In one pass each rank sends one range to the next.
"""

import math
from pathlib import Path

__all__ = ["draw"]

OUT = Path(__file__).parents[1] / "ring.svg"
RANKS, WIDTH, HEIGHT = 4, 720, 420
CENTRE, RADIUS = (360, 205), 150
INK, QUIET, PAPER = "#33415c", "#c3ccdb", "#ffffff"
COLORS = ["#3f51b5", "#b3541e", "#2e7d5b", "#8e3b8e"]  # of each range, and of the rank that owns it
CELL = 26  # of a range in a rank's vector


def draw() -> str:
    """Return the picture, as SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="14">',
        "<title>A ring of four ranks: each owns a quarter of the vector, and sends a quarter to the next one</title>",
        '<defs><marker id="head" markerWidth="9" markerHeight="8" refX="7" refY="4" orient="auto">'
        f'<path d="M0,0 L9,4 L0,8 z" fill="{INK}"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="12" fill="{PAPER}"/>',
    ]
    for rank in range(RANKS):
        parts += _arrow(rank)
    for rank in range(RANKS):
        parts += _rank(rank)
    parts += _texts()
    return "\n".join([*parts, "</svg>"]) + "\n"


def _angle(rank: float) -> float:
    return math.radians(-90 + 360 / RANKS * rank)


def _at(rank: float, radius: float = RADIUS) -> tuple[float, float]:
    return CENTRE[0] + 1.5 * radius * math.cos(_angle(rank)), CENTRE[1] + radius * math.sin(_angle(rank))


def _arrow(rank: int) -> list[str]:
    """From a rank to the next, with the range that it sends first: that of the rank before it."""
    (x0, y0), (x1, y1), (xm, ym) = _at(rank + 0.34), _at(rank + 0.66), _at(rank + 0.5, RADIUS * 1.06)
    color, (xt, yt) = COLORS[(rank - 1) % RANKS], _at(rank + 0.5, RADIUS * 1.02)
    return [
        f'<path d="M{x0:.0f},{y0:.0f} Q{xm:.0f},{ym:.0f} {x1:.0f},{y1:.0f}" fill="none" stroke="{INK}" '
        'stroke-width="2" marker-end="url(#head)"/>',
        f'<rect x="{xt - 9:.0f}" y="{yt - 9:.0f}" width="18" height="18" rx="3" fill="{color}" stroke="{PAPER}"/>',
    ]


def _rank(rank: int) -> list[str]:
    x, y = _at(rank)
    left, top = x - RANKS * CELL / 2, y - CELL / 2 + 8
    cells = [
        f'<rect x="{left + CELL * part:.0f}" y="{top:.0f}" width="{CELL}" height="{CELL}" stroke="{PAPER}" '
        f'fill="{COLORS[part] if part == rank else QUIET}"/>'
        for part in range(RANKS)
    ]
    return [
        f'<rect x="{left - 10:.0f}" y="{top - 28:.0f}" width="{RANKS * CELL + 20}" height="{CELL + 38}" rx="8" '
        f'fill="{PAPER}" stroke="{INK}"/>',
        _text(x, top - 8, f"rank {rank}", is_bold=True),
        *cells,
    ]


def _texts() -> list[str]:
    """In the middle: the three movements of a step."""
    movements = {
        "reduce": [f"{RANKS - 1} passes: each quarter's sum", "comes to the rank that owns it"],
        "update": ["each rank its quarter"],
        "gather": [f"{RANKS - 1} passes: new weights to all"],
    }
    lines, y = [], CENTRE[1] - 50
    for name, texts in movements.items():
        for number, text in enumerate([name, *texts]):
            lines.append(_text(CENTRE[0], y, text, is_bold=number == 0))
            y += 18
        y += 6
    return lines


def _text(x: float, y: float, text: str, is_bold: bool) -> str:
    weight = ' font-weight="bold"' if is_bold else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle" fill="{INK}"{weight}>{text}</text>'


if __name__ == "__main__":
    OUT.write_text(draw())
