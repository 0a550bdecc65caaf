"""All of the receive side, from the MAC's frames to host memory, to be synthesised by itself.

::

    rx > [FrameReceiver] > [GroupCopies] > [DatagramReceiver] > [CompletionUnit] > [WriteArbiter]
                                                  '---- payload, maps --------------^
"""

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import Counter, Parameters

from .dma.channels import WRITE_CHANNELS
from .dma.write import WriteArbiter
from .iwarp.complete import CompletionUnit
from .iwarp.receive import DatagramReceiver
from .layouts import EventRequest
from .net.group_copies import GroupCopies
from .net.receive import FrameReceiver
from .stream.queue import connect_streams

__all__ = ["ReceiveSide"]

_FAULTS = ("qp_written", "qp_written_qpn", "failed", "cq_full", "cq_full_cq")
_READS = ("read_openings", "opened", "opened_ok", "trackers_full", "requests", "read_room")


class ReceiveSide(wiring.Component):
    """Frame receiver, datagram receiver and completion unit, composed as the NIC does it.

    The completion unit has no client but the receiver, and there are no tables: their reads are
    members.

    Members
    -------
    rx, config, ports, groups : as of FrameReceiver
    members : as of GroupCopies
    time, qp, region, receive_doorbells, wqe_read, close, close_done : as of DatagramReceiver
    qp_written, qp_written_qpn, failed, cq_full, cq_full_cq : as of DatagramReceiver
    read_openings, opened, opened_ok, trackers_full, requests, read_room : as of DatagramReceiver
    cq_doorbells, irq_set, irq_clear, irq_cq : as of CompletionUnit
    event_requests : Out(stream of EventRequest).array(3)
    bus : Out(WRITE_CHANNELS)
    events : Out(len(Counter)).array(4)
        Of the units.
    busy : Out(1)
    """

    def __init__(self, parameters: Parameters) -> None:
        self._frames = FrameReceiver(parameters)
        self._copies = GroupCopies(parameters)
        self._receiver = DatagramReceiver(parameters)
        self._completion = CompletionUnit(parameters, clients=1)
        frames, receiver, completion = (
            unit.signature.members for unit in (self._frames, self._receiver, self._completion)
        )
        super().__init__(
            {
                "rx": frames["rx"],
                "config": frames["config"],
                "ports": frames["ports"],
                "groups": frames["groups"],
                "members": self._copies.signature.members["members"],
                "time": In(47),
                "qp": receiver["qp"],
                "region": receiver["region"],
                "receive_doorbells": receiver["doorbells"],
                "wqe_read": receiver["wqe_read"],
                "close": receiver["close"],
                "close_done": receiver["close_done"],
                **{name: receiver[name] for name in (*_FAULTS, *_READS)},
                "event_requests": Out(stream.Signature(EventRequest)).array(3),
                "cq_doorbells": completion["doorbells"],
                "irq_set": Out(1),
                "irq_clear": Out(1),
                "irq_cq": Out(16),
                "bus": Out(WRITE_CHANNELS),
                "events": Out(len(Counter)).array(4),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.frames = frames = self._frames
        m.submodules.copies = copies = self._copies
        m.submodules.receiver = receiver = self._receiver
        m.submodules.completion = completion = self._completion
        m.submodules.write_arbiter = writes = WriteArbiter(3)

        connect_streams(m, self.rx, frames.rx)
        wiring.connect(m, frames.ports, wiring.flipped(self.ports))
        wiring.connect(m, frames.groups, wiring.flipped(self.groups))
        wiring.connect(m, copies.members, wiring.flipped(self.members))
        connect_streams(m, frames.datagrams, copies.datagrams_i)
        connect_streams(m, frames.payload, copies.payload_i)
        connect_streams(m, copies.datagrams_o, receiver.datagrams)
        connect_streams(m, copies.payload_o, receiver.payload)
        for name in ("qp", "region", "wqe_read"):
            wiring.connect(m, getattr(receiver, name), wiring.flipped(getattr(self, name)))
        connect_streams(m, self.receive_doorbells, receiver.doorbells)
        connect_streams(m, self.read_openings, receiver.read_openings)
        connect_streams(m, receiver.requests, self.requests)
        connect_streams(m, self.cq_doorbells, completion.doorbells)
        wiring.connect(m, receiver.credits, completion.credits[0])
        wiring.connect(m, receiver.completions, completion.completions[0])
        for client, port in enumerate(
            (receiver.payload_write, receiver.map_write, completion.write)
        ):
            wiring.connect(m, port, writes.clients[client])
        wiring.connect(m, writes.bus, wiring.flipped(self.bus))
        raised = (*receiver.event_requests, completion.event_requests)
        for source, sink in zip(raised, self.event_requests, strict=True):
            connect_streams(m, source, sink)
        m.d.comb += [
            frames.config.eq(self.config),
            receiver.waiting.eq(frames.waiting),
            receiver.more.eq(copies.more),
            frames.again.eq(copies.again),
            receiver.time.eq(self.time),
            receiver.close.eq(self.close),
            self.opened.eq(receiver.opened),
            self.opened_ok.eq(receiver.opened_ok),
            self.trackers_full.eq(receiver.trackers_full),
            receiver.read_room.eq(self.read_room),
            receiver.qp_written.eq(self.qp_written),
            receiver.qp_written_qpn.eq(self.qp_written_qpn),
            *(getattr(self, name).eq(getattr(receiver, name)) for name in _FAULTS[2:]),
            self.close_done.eq(receiver.close_done),
            receiver.unwritten.eq(completion.pending),
            receiver.written.eq(completion.write.done),
            completion.time.eq(self.time),
            self.busy.eq(receiver.busy | completion.busy),
        ]
        for name in ("irq_set", "irq_clear", "irq_cq"):
            m.d.comb += getattr(self, name).eq(getattr(completion, name))
        for events, unit in zip(self.events, (frames, copies, receiver, completion), strict=True):
            m.d.comb += events.eq(unit.events)
        return m
