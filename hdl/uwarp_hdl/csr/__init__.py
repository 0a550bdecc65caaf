"""Registers, doorbells, counters: what software sees of the NIC besides memory."""

from .unit import ControlUnit

__all__ = ["ControlUnit"]
