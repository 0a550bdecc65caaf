"""The device: one contract, several forms. See :class:`~uwarp.device.base.Device`."""

from __future__ import annotations

from typing import Any

from .base import Device, DeviceError, Fate, Impairments, Link, WireRecord

__all__ = ["Device", "DeviceError", "Fate", "Impairments", "Link", "WireRecord", "open_link"]


def open_link(kind: str, **options: Any) -> Link:
    """Two devices of one form, joined by a wire.

    Parameters
    ----------
    kind : ``"model"`` (needs nothing) or ``"rtl"`` (needs Amaranth, Verilator and a C++ compiler).
    options : of the form: ``parameters`` and ``impairments`` of both; see
        :class:`~uwarp.device.rtl.RtlLink` for the rest.

    Raises
    ------
    DeviceError
        If the form is not there, or cannot be made here.
    """
    if kind == "model":
        from .model import ModelLink

        return ModelLink(**options)
    if kind == "rtl":
        from .rtl import RtlLink

        return RtlLink(**options)
    raise DeviceError(f"there is no form {kind!r} of the device; it takes 'model' or 'rtl'")
