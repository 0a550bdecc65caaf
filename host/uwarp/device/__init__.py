"""The device: one contract, several forms. See :class:`~uwarp.device.base.Device`."""

from __future__ import annotations

from typing import Any

from .base import Device, DeviceError, Fate, Impairments, Link, WireRecord

__all__ = ["Device", "DeviceError", "Fate", "Impairments", "Link", "WireRecord", "open_link"]


_MIXED = ("rtl+model", "model+rtl")


def open_link(kind: str, **options: Any) -> Link:
    """Two devices joined by a wire: of one form, or of two.

    Parameters
    ----------
    kind : ``"model"`` (needs nothing) or ``"rtl"`` (needs Amaranth, Verilator and a C++ compiler),
        or ``"rtl+model"`` or ``"model+rtl"``: one device of each, in that order.
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
    if kind in _MIXED:
        from .mixed import MixedLink

        return MixedLink(_MIXED.index(kind), **options)
    raise DeviceError(
        f"there is no form {kind!r} of the device; it takes 'model' or 'rtl', "
        f"or {_MIXED[0]!r} or {_MIXED[1]!r} for one of each"
    )
