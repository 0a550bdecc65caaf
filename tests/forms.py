"""Which links the end-to-end tests run on; see ``uwarp.device.open_link``."""

__all__ = ["KINDS"]

KINDS = ("model", "rtl", "rtl+model", "model+rtl")
