"""The NIC as one Verilog file, for Verilator and for the vendors' tools.

Its ports have the flattened names of ``Nic``'s members: ``clk``, ``rst``, ``rx__payload``,
``rx__valid``, ``bus__awaddr``, ``dma__awaddr``, ``irq`` and so on. The text depends on the
parameters only.
"""

import argparse
import dataclasses
import os
from pathlib import Path

from amaranth.back import verilog as backend

from uwarp.contract import Parameters

from .nic import Nic

__all__ = ["TOP", "main", "verilog"]

TOP = "uwarp_nic"


def verilog(parameters: Parameters) -> str:
    """The NIC's Verilog, with a top module ``uwarp_nic``.

    The Yosys that comes with Amaranth is used, so that the text does not depend on the machine.
    """
    before = os.environ.get("AMARANTH_USE_YOSYS")
    os.environ["AMARANTH_USE_YOSYS"] = "builtin"
    try:
        return backend.convert(Nic(parameters), name=TOP, emit_src=False, strip_internal_attrs=True)
    finally:
        if before is None:
            del os.environ["AMARANTH_USE_YOSYS"]
        else:
            os.environ["AMARANTH_USE_YOSYS"] = before


def main(arguments: list[str] | None = None) -> int:
    """Write the NIC's Verilog: ``python -m uwarp_hdl --output nic.v --n-qp 16``."""
    parser = argparse.ArgumentParser(
        prog="python -m uwarp_hdl", description="Write the NIC's Verilog."
    )
    parser.add_argument("--output", type=Path, help="file to write; standard output if not given")
    for field in dataclasses.fields(Parameters):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=int,
            default=field.default,
            help=f"default {field.default}",
        )
    options = vars(parser.parse_args(arguments))
    output = options.pop("output")
    try:
        parameters = Parameters(**options)
    except ValueError as error:
        parser.error(str(error))
    text = verilog(parameters)
    if output is None:
        print(text)
    else:
        output.write_text(text)
    return 0
