"""Responder: Read Requests that were accepted become messages to send (device behaviour, 7.8).

::

    requests --> slot --> messages --> (segmenter ... completer) --> released --+
                  ^                                                             |
                  +---------------------- free slots <--------------------------+

A request takes a cycle.
"""

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import Parameters
from uwarp.wire import DEFAULT_GRANULE, Opcode

from ..layouts import ReadRequest
from ..stream.queue import Queue
from .fetch import message_layout
from .scheduler import slot_count, slot_width

__all__ = ["Responder"]

_HOP_LIMIT = 64
_MAPPED = 0xFFFF  # upper 96 bits of an IPv4 address mapped into IPv6 (RFC 4291, 2.5.5.2)


class Responder(wiring.Component):
    """Give each request a slot of its own, behind those of the send rings.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    requests : In(stream of ReadRequest)
        Only while there is ``read_room``.
    messages : Out(stream of message_layout)
    released : In(stream of slot)
        The response in this slot is through.
    read_room : Out(1)
        Fewer than ``n_read`` requests wait; it knows of one the cycle after it is taken.
    busy : Out(1)
        Slots are being made ready after a reset.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        super().__init__(
            {
                "requests": In(stream.Signature(ReadRequest)),
                "messages": Out(stream.Signature(message_layout(parameters))),
                "released": In(stream.Signature(slot_width(parameters))),
                "read_room": Out(1),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        n_read, first = self._parameters.n_read, slot_count(self._parameters)
        m.submodules.free = free = Queue(slot_width(self._parameters), n_read)
        m.submodules.waiting = waiting = Queue(ReadRequest, n_read)

        waits = Signal(range(n_read + 1))
        sweep = Signal(range(n_read + 1))
        taken = self.requests.valid & self.requests.ready
        returned = self.released.valid & self.released.ready
        m.d.comb += [
            self.busy.eq(sweep != n_read),
            self.read_room.eq(waits != n_read),
            waiting.i.p.eq(self.requests.p),
            waiting.i.valid.eq(self.requests.valid),
            self.requests.ready.eq(waiting.i.ready),
            self.released.ready.eq(~self.busy & free.i.ready),
            free.i.p.eq(Mux(self.busy, first + sweep, self.released.p)),
            free.i.valid.eq(self.busy | self.released.valid),
        ]
        m.d.sync += waits.eq(waits + taken - returned)
        with m.If(self.busy):
            m.d.sync += sweep.eq(sweep + 1)

        request, message = waiting.o.p, self.messages.p
        ready = free.o.valid & ~self.busy
        m.d.comb += [
            self.messages.valid.eq(waiting.o.valid & ready),
            waiting.o.ready.eq(self.messages.ready & ready),
            free.o.ready.eq(self.messages.ready & waiting.o.valid & ready),
            message.slot.eq(free.o.p),
            message.qpn.eq(request.qpn),
            message.opcode.eq(Opcode.READ_RESPONSE_RECORD),
            message.silent.eq(1),
            message.ipv6.eq(request.source_ip[32:] != _MAPPED),
            message.length.eq(request.size),
            message.remote_to.eq(request.sink_to),
            message.stag.eq(request.sink_stag),
            message.immediate.eq(request.msn),
            message.dest_ip.eq(request.source_ip),
            message.dest_port.eq(request.source_port),
            message.dest_mac.eq(request.source_mac),
            message.hop_limit.eq(Const(_HOP_LIMIT)),
            message.address.eq(request.address),
            message.granule_mask.eq(DEFAULT_GRANULE - 1),
        ]
        return m
