"""The check of the CRC at the end of a segment that begins and ends anywhere within words."""

from amaranth.hdl import Array, Const, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..compare import equal
from ..iwarp import crc32c

__all__ = ["CrcCheck"]


class CrcCheck(wiring.Component):
    """Whether a segment's words end in its right CRC32c.

    Takes a word every cycle; ``right`` follows two cycles after it. The octets of the first word
    before the segment and those of the last word after its CRC are to be zero.

    Parameters
    ----------
    lead : int
        Octets of the first word before the segment, 0 to 7.

    Attributes
    ----------
    data : In(64)
    add : In(1)
        ``data`` is a word of the segment.
    restart : In(1)
        A new segment begins after this cycle.
    tail : In(3)
        Octets of the last word after the CRC; looked at in the cycle before ``right`` is.
    right : Out(1)
    """

    data: In(64)
    add: In(1)
    restart: In(1)
    tail: In(3)
    right: Out(1)

    def __init__(self, lead):
        if not 0 <= lead < 8:
            raise ValueError(f"lead is {lead}; it takes 0 to 7")
        self._start = self._state(crc32c.unstep(crc32c.INITIAL, lead))
        super().__init__()

    @staticmethod
    def _state(value):
        """What is kept for a state of the CRC: the one four zero octets before it. So a word adds
        the share of its first half and, as they are, the octets of its second."""
        return crc32c.unstep(value, 4)

    def elaborate(self, platform):
        m = Module()
        share = Signal(32, reset_less=True)
        add, restart = Signal(), Signal()
        state = Signal(32, init=self._start, reset_less=True)
        residue = Signal(32, reset_less=True)
        residues = Array(Const(self._state(value), 32) for value in crc32c.RESIDUES[:8])
        m.d.sync += [
            share.eq(crc32c.data_share(self.data[:32]) ^ self.data[32:]),
            add.eq(self.add),
            restart.eq(self.restart),
            residue.eq(residues[self.tail]),
        ]
        with m.If(restart):
            m.d.sync += state.eq(self._start)
        with m.Elif(add):
            m.d.sync += state.eq(crc32c.advance(state, 8) ^ share)
        m.d.comb += self.right.eq(equal(m, state, residue))
        return m
