"""Pictures of octets: what the demo sends if given no file, and what it shows of what came."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

__all__ = ["Raster", "default_picture", "received_picture", "validity_picture"]

WIDTH, HEIGHT = 768, 512
HOLE = (255, 0, 200)  # in no natural picture, and far from both black and white
VALID, MISSING, BEYOND = (40, 160, 90), (225, 50, 60), (24, 24, 28)


@dataclass(frozen=True)
class Raster:
    """How octets are shown: ``channels`` octets a pixel (1 grey, 3 RGB), ``width`` pixels a row."""

    width: int
    channels: int

    @classmethod
    def for_octets(cls, length: int) -> Raster:
        """Grey, about square, rows of a multiple of 64 octets."""
        return cls(max(64, math.isqrt(length) // 64 * 64), 1)


def default_picture() -> tuple[bytes, Raster]:
    """Raw RGB pixels of a picture made here: interfering waves over a gradient, and a name."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float64)
    u, v = x / WIDTH, y / HEIGHT
    sources = [(0.22, 0.30), (0.80, 0.22), (0.55, 0.95)]
    waves = np.zeros_like(x)
    for number, (a, b) in enumerate(sources):
        distance = np.hypot((u - a) * WIDTH / HEIGHT, v - b)
        waves += np.cos(distance * (70 + 9 * number)) * np.exp(-1.6 * distance)
    waves /= len(sources)
    red = 25 + 50 * u**2 + 90 * np.clip(waves, 0, 1) * 2
    green = 40 + 70 * (1 - v) + 80 * waves
    blue = 110 + 70 * v - 60 * waves
    pixels = np.clip(np.stack([red, green, blue], axis=-1), 0, 255).astype(np.uint8)
    image = Image.fromarray(pixels, "RGB")
    draw = ImageDraw.Draw(image, "RGBA")
    middle = (WIDTH // 2, HEIGHT // 2)
    big, small = ImageFont.load_default(150), ImageFont.load_default(24)
    for shift, colour in ((5, (0, 0, 0, 110)), (0, (255, 250, 240, 255))):
        place = (middle[0] + shift, middle[1] + shift - 20)
        draw.text(place, "uwarp", font=big, anchor="mm", fill=colour)
        place = (middle[0] + shift // 3, middle[1] + shift // 3 + 90)
        draw.text(place, "remote DMA over plain UDP", font=small, anchor="mm", fill=colour)
    return image.tobytes(), Raster(WIDTH, 3)


def _rows(pixels: npt.NDArray[np.uint8], width: int) -> Image.Image:
    """Pixels (n, 3) as a picture, the last row filled up."""
    height = max(1, -(-len(pixels) // width))
    canvas = np.empty((height * width, 3), dtype=np.uint8)
    canvas[:] = BEYOND
    canvas[: len(pixels)] = pixels
    return Image.fromarray(canvas.reshape(height, width, 3), "RGB")


def received_picture(
    octets: npt.NDArray[np.uint8], valid: npt.NDArray[np.bool_], raster: Raster, path: Path
) -> None:
    """Write the octets as a picture; a pixel with an octet that is not valid is a hole."""
    channels = raster.channels
    fill = -len(octets) % channels
    pixels = np.pad(octets, (0, fill)).reshape(-1, channels)
    whole = np.pad(valid, (0, fill), constant_values=True).reshape(-1, channels).all(axis=1)
    colours = np.broadcast_to(pixels, (len(pixels), 3)).copy()
    colours[~whole] = HOLE
    _rows(colours, raster.width).save(path)


def validity_picture(granules: npt.NDArray[np.bool_], path: Path) -> None:
    """Write the map as a picture, one pixel a granule, rows of a power of two of them."""
    colours = np.where(granules[:, None], VALID, MISSING).astype(np.uint8)
    width = 1 << max(0, (math.isqrt(2 * len(granules))).bit_length() - 1)
    _rows(colours, width).save(path)
