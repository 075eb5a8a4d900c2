"""Draw the map of the rooms: `python -m tools.map` writes the picture and the table of docs/architecture.md.

Rooms are boxes, one row per level. An arrow points from a room to one that it imports from; arrows that a
longer path implies are left out. Both files follow from the source alone, and a test compares them with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from textwrap import wrap

from .document import DOCS, fill
from .rooms import LEVELS, files_by_room, reduce_graph, room_graph, summary_of

PICTURE = DOCS / "images" / "architecture.svg"
PAGE = DOCS / "architecture.md"

# pixels
WIDTH, BOX, BYPASS, SIDE = 960, 206, 14, 56
TITLE, LINE, PADDING, GAP = 18, 14, 9, 46
COLUMNS = 33  # characters per line of file names
SWEEPS = 8  # passes that order the rooms of each level

STYLE = """
  .page { fill: #ffffff } .box { fill: #f3f6fb; stroke: #4a6fa5 } .arrow { stroke: #6b7a90; fill: none }
  .head { fill: #6b7a90 } .band { stroke: #d5dbe5; stroke-dasharray: 2 4 } text { fill: #1c2430 }
  .name { font: bold 13px sans-serif }
  .files { font: 11px sans-serif } .level { font: 11px sans-serif; fill: #5a6778 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #1e2129 } .box { fill: #2a303c; stroke: #8fb0e0 } .arrow { stroke: #a3afc2 }
    .head { fill: #a3afc2 } .band { stroke: #3d4452 } text { fill: #e6eaf1 } .level { fill: #aab4c3 }
  }
"""


@dataclass(eq=False)
class Node:
    """A room in its row, or the point where an arrow passes a row.

    Attributes:
        level: its row.
        lines: the lines of file names; none for a point.
        room: its name; empty for a point.
        x: of its center.
    """

    level: int
    lines: Sequence[str] = ()
    room: str = ""
    x: float = 0.0

    @property
    def width(self) -> int:
        """Pixels from left to right."""
        return BOX if self.room else BYPASS

    @property
    def height(self) -> int:
        """Pixels from top to bottom."""
        return 2 * PADDING + TITLE + LINE * len(self.lines) if self.room else 0


Arrow = list[Node]  # from a room to the room it imports, by way of a point per row between them


def layers() -> tuple[list[list[Node]], list[Arrow]]:
    """The rows from the highest level to level 0, and the arrows between them."""
    rooms = files_by_room()
    nodes = {room: Node(LEVELS[room], wrap(", ".join(file_names(room)), COLUMNS), room) for room in rooms}
    rows: list[list[Node]] = [[] for _ in range(max(LEVELS[room] for room in rooms) + 1)]
    for node in nodes.values():
        rows[node.level].append(node)
    arrows = []
    for room, others in reduce_graph(room_graph()).items():
        for other in sorted(others):
            points = [Node(level) for level in range(LEVELS[room] - 1, LEVELS[other], -1)]
            for point in points:
                rows[point.level].append(point)
            arrows.append([nodes[room], *points, nodes[other]])
    return rows[::-1], arrows


def file_names(room: str) -> list[str]:
    """The files of a room without their suffix."""
    return [path.stem for path in files_by_room()[room] if path.stem != "__init__"]


def arrange(rows: list[list[Node]], arrows: list[Arrow]) -> None:
    """Order each row by the mean position of its neighbors, so that few arrows cross, and set x."""
    links = [pair for arrow in arrows for pair in pairwise(arrow)]
    for row in rows:
        place(row)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else rows[::-1]:
            for node in row:
                near = [a.x if b is node else b.x for a, b in links if node is (b if down else a)]
                node.x = sum(near) / len(near) if near else node.x
            row.sort(key=lambda node: node.x)
            place(row)


def place(row: list[Node]) -> None:
    """Spread a row over the width of the picture, in its order."""
    free = WIDTH - SIDE - sum(node.width for node in row)
    gap = free / (len(row) + 1)
    x = SIDE + gap
    for node in row:
        node.x = x + node.width / 2
        x += node.width + gap


def draw() -> str:
    """The picture as SVG."""
    rows, arrows = layers()
    arrange(rows, arrows)
    tops, y = {}, float(GAP) / 2
    heights = {row[0].level: max(node.height for node in row) for row in rows}
    for row in rows:
        tops[row[0].level] = y
        y += heights[row[0].level] + GAP
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y - GAP / 2:.0f}" role="img">',
        "<title>The rooms of FLARE, by level; an arrow points to a room that is imported</title>",
        f"<style>{STYLE}</style>",
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto">'
        '<path class="head" d="M0 0 8 4 0 8z"/></marker>',
        '<rect class="page" width="100%" height="100%"/>',
    ]
    for level, top in tops.items():
        if level:
            out.append(f'<path class="band" d="M0 {top + heights[level] + GAP / 2:.0f}H{WIDTH}"/>')
        out.append(f'<text class="level" x="8" y="{top + TITLE:.0f}">level {level}</text>')
    out += [draw_arrow(arrow, arrows, tops, heights) for arrow in arrows]
    out += [draw_box(node, tops[node.level]) for row in rows for node in row if node.room]
    return "\n".join([*out, "</svg>", ""])


def draw_box(node: Node, top: float) -> str:
    """A room with its name and files."""
    left = node.x - node.width / 2
    size = f'width="{node.width}" height="{node.height}"'
    lines = [
        f'<rect class="box" x="{left:.0f}" y="{top:.0f}" {size} rx="5"/>',
        f'<text class="name" x="{left + PADDING:.0f}" y="{top + TITLE:.0f}">{escape(node.room)}</text>',
    ]
    for index, line in enumerate(node.lines, 1):
        y = top + TITLE + LINE * index + 3
        lines.append(f'<text class="files" x="{left + PADDING:.0f}" y="{y:.0f}">{escape(line)}</text>')
    return "\n".join(lines)


def draw_arrow(arrow: Arrow, arrows: Sequence[Arrow], tops: dict[int, float], heights: dict[int, int]) -> str:
    """A curve from the foot of a room, straight past the rows between, to the head of another."""
    start, *points, end = arrow
    x = start.x + port(arrow, [a for a in arrows if a[0] is start], outgoing=True)
    y = tops[start.level] + start.height
    path = f"M{x:.0f} {y:.0f}"
    for node in points:
        path += bend(x, y, node.x, tops[node.level]) + f"V{tops[node.level] + heights[node.level]:.0f}"
        x, y = node.x, tops[node.level] + heights[node.level]
    last = end.x + port(arrow, [a for a in arrows if a[-1] is end], outgoing=False)
    return f'<path class="arrow" marker-end="url(#head)" d="{path}{bend(x, y, last, tops[end.level])}"/>'


def bend(x: float, y: float, to_x: float, to_y: float) -> str:
    """A curve that leaves and arrives vertically."""
    middle = (y + to_y) / 2
    return f"C{x:.0f} {middle:.0f} {to_x:.0f} {middle:.0f} {to_x:.0f} {to_y:.0f}"


def port(arrow: Arrow, others: Sequence[Arrow], outgoing: bool) -> float:
    """Where an arrow touches its box, from the center: side by side, in the order of the other ends."""
    order = sorted(others, key=lambda a: a[1].x if outgoing else a[-2].x)
    return (order.index(arrow) - (len(order) - 1) / 2) * min(30, BOX / (len(order) + 1))


def table() -> str:
    """The rooms as a table of Markdown."""
    lines = ["| room | level | what it holds | files |", "|---|---|---|---|"]
    for room in files_by_room():
        names = " ".join(f"`{name}`" for name in file_names(room))
        lines.append(f"| `{room}` | {LEVELS[room]} | {summary_of(room)} | {names} |")
    return "\n".join(lines)


def fill_page(text: str) -> str:
    """The text of the architecture page with its table."""
    return fill(text, "rooms", table())


def main() -> None:
    """Write the picture and the table."""
    PICTURE.write_text(draw(), encoding="utf-8")
    PAGE.write_text(fill_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
