"""Let the output register of a block RAM take the place of the flip-flops behind it.

A word leaves a block RAM of the ECP5 4.3 ns after the clock, more than half of a cycle of
156.25 MHz; out of its output register it comes in about 1 ns. Yosys uses none of these registers.
Where all bits of a read port go to flip-flops with one enable and nowhere else, these are the
port's output register, with the same cycles::

    DP16KD -> FF -> o            becomes            DP16KD (OUTREG) -> o
              CE                                    OCE

The output register is not reset: neither may the flip-flops be (in Amaranth ``reset_less``). Both
begin with zeros. An enable of the RAM itself does not hold the output register (FPGA-TN-02204,
memory usage of the ECP5: CE enables the memory, OCE the register).
"""

from __future__ import annotations

from .netlist import Net, Netlist

__all__ = ["fold_output_registers"]

_WHOLE_WIDTH = 36


def _is_whole_width(netlist: Netlist, name: str) -> bool:
    """Whether the RAM has one read port, B, with 18 bits at DOA and 18 at DOB."""
    parameters = netlist.cells[name]["parameters"]
    return {int(parameters[f"DATA_WIDTH_{side}"], 2) for side in "AB"} == {_WHOLE_WIDTH}


def _register(netlist: Netlist, name: str, port: str, clock: Net) -> str | None:
    """The flip-flop that alone reads an output of a block RAM; None if the output register can't
    take its place."""
    readers = netlist.read_from(name, port)
    if len(readers) != 1:
        return None
    ((register, pin),) = readers
    if netlist.kind(register) != "TRELLIS_FF" or pin != "DI":
        return None
    parameters = netlist.cells[register]["parameters"]
    plain = (
        parameters["REGSET"] == "RESET"
        and parameters["CLKMUX"] == "CLK"
        and netlist.pin(register, "CLK") == clock
        and netlist.pin(register, "LSR") == "0"
    )
    return register if plain else None


def _fold_port(netlist: Netlist, name: str, sides: str) -> None:
    """Fold what reads the outputs of ``sides`` of a block RAM, the last of which has the clock."""
    cell = netlist.cells[name]
    control = sides[-1]
    registers: dict[str, str] = {}
    for port in [port for side in sides for port in cell["connections"] if port[:3] == "DO" + side]:
        if not netlist.read_from(name, port):
            continue
        register = _register(netlist, name, port, netlist.pin(name, f"CLK{control}"))
        if register is None:
            return
        registers[port] = register
    enables = {netlist.enable(register) for register in registers.values()}
    if len(enables) != 1 or None in enables:
        return
    ((enable, enabled),) = filter(None, enables)
    for port, register in registers.items():
        result = netlist.pin(register, "Q")
        netlist.remove(register)
        netlist.drive(name, port, result)
    for side in sides:
        cell["parameters"][f"REGMODE_{side}"] = "OUTREG"
    netlist.connect(name, f"OCE{control}", enable)
    cell["parameters"][f"OCE{control}MUX"] = f"OCE{control}" if enabled else "INV"


def fold_output_registers(netlist: Netlist) -> None:
    """Fold the flip-flops of ``netlist`` that hold what block RAMs give."""
    for name in [name for name in netlist.cells if netlist.kind(name) == "DP16KD"]:
        for sides in ("AB",) if _is_whole_width(netlist, name) else ("A", "B"):
            _fold_port(netlist, name, sides)
