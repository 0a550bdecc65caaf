"""A picture of throughput by payload: what was placed, and what the wire can carry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from .measure import Row

__all__ = ["plot"]

SCALE = 3  # drawn as many times larger, then made smaller: smooth lines
WIDTH, HEIGHT = 1040, 560
LEFT, RIGHT, TOP, BOTTOM = 60, 310, 60, 64
GBPS = 10
PAPER, INK, GRID, CEILING = (255, 255, 255), (40, 44, 52), (228, 231, 235), (150, 156, 165)
COLOURS = (
    (31, 119, 180),
    (230, 126, 34),
    (39, 152, 90),
    (200, 55, 75),
    (126, 87, 194),
    (140, 100, 75),
)
Point = tuple[float, float]


class _Chart:
    """Axes: payload from 1 octet upward, logarithmic; Gb/s from 0 to 10."""

    def __init__(self, largest: int) -> None:
        self._image = Image.new("RGB", (WIDTH * SCALE, HEIGHT * SCALE), PAPER)
        self._draw = ImageDraw.Draw(self._image)
        self._octaves = max(1.0, math.log2(largest) + 0.2)

    def point(self, payload: float, gbps: float) -> Point:
        x = LEFT + (WIDTH - LEFT - RIGHT) * math.log2(payload) / self._octaves
        y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * gbps / GBPS
        return x, y

    def text(
        self,
        at: Point,
        text: str,
        anchor: str,
        size: int = 13,
        colour: tuple[int, int, int] = INK,
    ) -> None:
        font = ImageFont.load_default(size * SCALE)
        self._draw.text((at[0] * SCALE, at[1] * SCALE), text, colour, font, anchor)

    def line(self, points: Sequence[Point], colour: tuple[int, int, int], width: float) -> None:
        scaled = [(x * SCALE, y * SCALE) for x, y in points]
        self._draw.line(scaled, colour, round(width * SCALE), joint="curve")

    def dot(self, at: Point, colour: tuple[int, int, int], radius: float) -> None:
        box = [(at[axis] + sign * radius) * SCALE for sign in (-1, 1) for axis in (0, 1)]
        self._draw.ellipse(box, colour)

    def axes(self) -> None:
        for gbps in range(0, GBPS + 1, 2):
            left, right = self.point(1, gbps), self.point(2**self._octaves, gbps)
            self.line([left, right], GRID, 1)
            self.text((left[0] - 10, left[1]), str(gbps), "rm")
        for octave in range(int(self._octaves) + 1):
            low, high = self.point(1 << octave, 0), self.point(1 << octave, GBPS)
            self.line([low, high], GRID, 1)
            self.text((low[0], low[1] + 10), str(1 << octave), "mt")
        middle = self.point(2 ** (self._octaves / 2), 0)
        self.text((middle[0], middle[1] + 34), "payload of a datagram, octets", "mt")
        self.text((LEFT, 22), "Payload placed (rx) or sent (tx) by one NIC, Gb/s", "lt", 17)

    def save(self, path: Path) -> None:
        self._image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).save(path, "PNG")


def plot(rows: Sequence[Row], path: Path) -> None:
    """Write a PNG: a line for each kind of message, over the wire's ceiling."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(row.kind, []).append(row)
    for series in kinds.values():
        series.sort(key=lambda row: row.case.payload)
    chart = _Chart(max(row.case.payload for row in rows))
    chart.axes()
    for series in kinds.values():
        ceiling = [chart.point(row.case.payload, row.case.ceiling_gbps) for row in series]
        chart.line(ceiling, CEILING, 5)
    for number, (kind, series) in enumerate(kinds.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = [chart.point(row.case.payload, row.gbps) for row in series]
        chart.line(points, colour, 1.6)
        for point in points:
            # Where kinds agree the later dots are smaller, so that all can be seen.
            chart.dot(point, colour, 6.2 - 0.9 * (number % len(COLOURS)))
        _entry(chart, 1 + number, colour, kind, series)
    x, y = _place(0)
    chart.line([(x, y), (x + 22, y)], CEILING, 5)
    chart.text((x + 30, y), "the wire's ceiling", "lm")
    chart.save(path)


def _place(number: int) -> Point:
    return WIDTH - RIGHT + 24, TOP + 14 + 42 * number


def _entry(
    chart: _Chart, number: int, colour: tuple[int, int, int], kind: str, series: Sequence[Row]
) -> None:
    """One entry of the key: the kind, and how much of the ceiling it reaches at worst."""
    x, y = _place(number)
    chart.line([(x, y), (x + 22, y)], colour, 1.6)
    chart.dot((x + 11, y), colour, 3.4)
    chart.text((x + 30, y), kind, "lm")
    worst = min(series, key=lambda row: row.percent)
    note = f"{worst.percent:.1f} % of it or more"
    dropped = sum(row.dropped for row in series)
    if dropped:
        note += f", {dropped:,} dropped"
    chart.text((x + 30, y + 16), note, "lm", 11, CEILING)
