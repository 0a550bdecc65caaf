"""Fetch of send WQEs, and their checks (device behaviour, 7.2).

::

    fetches --> burst --> memory --> words (FIFO) --> 8-word register --> checks --> messages
           +--> contexts (FIFO) -----------------------------------------^    ^
                                                            region table <----+

Up to 32 WQEs are on their way; the FIFO has room for all their words, so the read bus is never held
up. A WQE takes 11 cycles: 8 for its words, 3 for the checks.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import SEND_WQE, EventType, Parameters, Status, WqeFlag
from uwarp.wire import CRC_OCTETS, IPV4, UDP, Opcode
from uwarp.wire.segment import header_size

from ..interfaces import ReadClientSignature, TableReadSignature
from ..layouts import REGION_ROW, SEND_WQE_LAYOUT, EventRequest, ReadBeat
from ..stream.queue import Queue
from .scheduler import EPOCH_WIDTH, fetch_layout, qp_width, slot_width

__all__ = ["LENGTH_WIDTH", "OVERHEAD", "STATUS_WIDTH", "WqeFetch", "message_layout"]

OUTSTANDING = 32
WQE_WORDS = 8

#: Bits of a number of octets within one frame.
LENGTH_WIDTH = 14

#: Bits of the statuses that a send completes with.
STATUS_WIDTH = 5

#: IPv4 datagram of each opcode without its payload: IPv4 and UDP headers, DDP header, CRC.
OVERHEAD = {
    opcode: IPV4.size + UDP.size + header_size(opcode) + CRC_OCTETS
    for opcode in (Opcode.WRITE, Opcode.SEND, Opcode.WRITE_RECORD, Opcode.SEND_IMMEDIATE)
}


def message_layout(parameters: Parameters) -> data.StructLayout:
    """A WQE that was fetched and checked.

    ``address`` is the DMA address of the payload, ``room`` the most payload octets of a segment,
    ``granule_mask`` the granule less one.
    """
    return data.StructLayout(
        {
            "slot": slot_width(parameters),
            "qpn": qp_width(parameters),
            "cq": qp_width(parameters),
            "epoch": EPOCH_WIDTH,
            "index": 16,
            "status": STATUS_WIDTH,
            "opcode": 8,
            "signaled": 1,
            "solicited": 1,
            "immediate_valid": 1,
            "length": 32,
            "remote_to": 64,
            "stag": 32,
            "immediate": 32,
            "dest_ip": 32,
            "dest_port": 16,
            "dest_mac": 48,
            "traffic_class": 8,
            "hop_limit": 8,
            "udp_port": 16,
            "address": 64,
            "room": LENGTH_WIDTH,
            "granule_mask": 16,
        }
    )


class WqeFetch(wiring.Component):
    """Read and check WQEs, in the order asked for.

    A WQE that fails comes out like the others, with its status. One that could not be read has all
    fields zero. A QP's ``path_mtu`` outside 576 to ``max_mtu`` is taken as the nearer of the two.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    fetches : In(stream of fetch_layout)
    messages : Out(stream of message_layout)
    read : Out(ReadClientSignature)
    region : Out(TableReadSignature)
    event_requests : Out(stream of EventRequest)
        For each WQE that could not be read; taken before its message is given.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._index_width = (parameters.n_region - 1).bit_length()
        super().__init__(
            {
                "fetches": In(stream.Signature(fetch_layout(parameters))),
                "messages": Out(stream.Signature(message_layout(parameters))),
                "read": Out(ReadClientSignature()),
                "region": Out(TableReadSignature(REGION_ROW, self._index_width)),
                "event_requests": Out(stream.Signature(EventRequest)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        layout = fetch_layout(self._parameters)
        m.submodules.contexts = contexts = Queue(layout, OUTSTANDING)
        m.submodules.words = words = Queue(ReadBeat, OUTSTANDING * WQE_WORDS)

        # Ask. A context leaves its queue after its words have left theirs, so their room is there.
        burst = self.read.bursts
        fetch = self.fetches.p
        burst_free = ~burst.valid | burst.ready
        m.d.comb += [
            self.fetches.ready.eq(burst_free & contexts.i.ready),
            contexts.i.valid.eq(self.fetches.valid & burst_free),
            contexts.i.p.eq(fetch),
        ]
        with m.If(burst_free):
            m.d.sync += [
                burst.valid.eq(self.fetches.valid & contexts.i.ready),
                burst.p.address.eq((fetch.sq_addr + fetch.offset) << 6),
                burst.p.beats.eq(WQE_WORDS - 1),
            ]
        m.d.comb += [
            words.i.p.eq(self.read.beats.p),
            words.i.valid.eq(self.read.beats.valid),
            self.read.beats.ready.eq(words.i.ready),
        ]

        # Collect and check.
        wqe = Signal(SEND_WQE_LAYOUT)
        count = Signal(range(WQE_WORDS))
        failed = Signal()
        unreadable = Signal()
        context = contexts.o.p
        region = self.region.row
        # The row is there with the last word: it is looked up as the word with the lkey comes.
        lkey_word, lkey_bit = divmod(SEND_WQE.offset("sge_lkey"), 64)
        arriving_lkey = words.o.p.data[lkey_bit : lkey_bit + 32]
        m.d.comb += [
            unreadable.eq(failed | words.o.p.error),
            self.region.index.eq(
                Mux(count == lkey_word, arriving_lkey[8:], wqe.sge_lkey[8:]),
            ),
        ]

        opcodes = {opcode: Signal(name=f"is_{opcode.name.lower()}") for opcode in OVERHEAD}
        for opcode, matches in opcodes.items():
            m.d.comb += matches.eq(wqe.opcode == opcode)
        immediate_allowed = opcodes[Opcode.WRITE_RECORD] | opcodes[Opcode.SEND_IMMEDIATE]
        granule_log2 = Mux(wqe.granule_log2 == 0, 6, wqe.granule_log2)[:5]
        granule_wrong = (wqe.granule_log2 != 0) & ((wqe.granule_log2 < 6) | (wqe.granule_log2 > 16))
        flag = {item: wqe.flags[item.value.bit_length() - 1] for item in WqeFlag}

        granule = Signal(17)
        room = Signal(LENGTH_WIDTH)
        operation_wrong = Signal()
        length_wrong = Signal()
        allowed = Signal()
        offset = Signal(65)
        end = Signal(65)
        address = Signal(64)
        status = Signal(Status)
        max_mtu = self._parameters.max_mtu
        mtu = Signal(LENGTH_WIDTH)

        told = self.event_requests
        m.d.comb += [told.p.type.eq(EventType.DMA_READ), told.p.number.eq(context.qpn)]
        with m.If(told.ready):
            m.d.sync += told.valid.eq(0)
        with m.FSM():
            with m.State("COLLECT"):
                m.d.comb += words.o.ready.eq(1)
                m.d.sync += mtu.eq(
                    Mux(
                        context.path_mtu > max_mtu,
                        max_mtu,
                        Mux(context.path_mtu < 576, 576, context.path_mtu),
                    )
                )
                with m.If(words.o.valid):
                    m.d.sync += [failed.eq(unreadable), count.eq(count + 1)]
                    with m.Switch(count):
                        for index in range(WQE_WORDS):
                            with m.Case(index):
                                word = wqe.as_value().word_select(index, 64)
                                m.d.sync += word.eq(words.o.p.data)
                with m.If(words.o.valid & (count == WQE_WORDS - 1)):
                    with m.If(unreadable):
                        m.d.sync += wqe.eq(0)
                    m.d.sync += [
                        failed.eq(0),
                        told.valid.eq(unreadable),
                        granule.eq(1 << granule_log2),
                        operation_wrong.eq(
                            unreadable
                            | ~Cat(opcodes.values()).any()
                            | (wqe.num_sge > 1)
                            | (wqe.length != Mux(wqe.num_sge == 0, 0, wqe.sge_length))
                            | granule_wrong
                            | (flag[WqeFlag.IMMEDIATE] & ~immediate_allowed)
                            | (flag[WqeFlag.SOLICITED] & opcodes[Opcode.WRITE])
                        ),
                        allowed.eq(
                            region.valid
                            & (region.key == wqe.sge_lkey[:8])
                            & (region.pd == context.pd)
                            & ~wqe.sge_lkey[8 + self._index_width :].any()
                        ),
                        # Bit 64 is the borrow.
                        offset.eq(wqe.sge_addr - region.base_to),
                    ]
                    for opcode, matches in opcodes.items():
                        with m.If(matches):
                            m.d.sync += room.eq(mtu - OVERHEAD[opcode])
                    m.next = "ADD"

            with m.State("ADD"):
                m.d.sync += [
                    length_wrong.eq((wqe.length > room) & (granule > room)),
                    end.eq(offset[:64] + wqe.length),
                    address.eq(region.dma_addr + offset[:64]),
                ]
                m.next = "COMPARE"

            with m.State("COMPARE"):
                m.d.sync += allowed.eq(allowed & ~offset[64] & (end <= region.length))
                m.next = "STATUS"

            with m.State("STATUS"):
                with m.If(operation_wrong):
                    m.d.comb += status.eq(Status.LOC_QP_OP_ERR)
                with m.Elif(length_wrong):
                    m.d.comb += status.eq(Status.LOC_LEN_ERR)
                with m.Elif((wqe.length != 0) & ~allowed):
                    m.d.comb += status.eq(Status.LOC_PROT_ERR)
                with m.Else():
                    m.d.comb += status.eq(Status.SUCCESS)
                m.d.comb += self.messages.valid.eq(~told.valid)
                with m.If(self.messages.valid & self.messages.ready):
                    m.d.comb += contexts.o.ready.eq(1)
                    m.next = "COLLECT"

        message = self.messages.p
        m.d.comb += [
            message[name].eq(context[name])
            for name in ("slot", "qpn", "cq", "epoch", "index", "udp_port")
        ]
        m.d.comb += [
            message[name].eq(wqe[name])
            for name in (
                "opcode",
                "length",
                "remote_to",
                "immediate",
                "dest_ip",
                "dest_port",
                "dest_mac",
                "traffic_class",
                "hop_limit",
            )
        ]
        m.d.comb += [
            message.stag.eq(wqe.remote_stag),
            message.status.eq(status),
            message.signaled.eq(flag[WqeFlag.SIGNALED]),
            message.solicited.eq(flag[WqeFlag.SOLICITED]),
            message.immediate_valid.eq(flag[WqeFlag.IMMEDIATE]),
            message.address.eq(address),
            message.room.eq(room),
            message.granule_mask.eq(granule - 1),
        ]
        return m
