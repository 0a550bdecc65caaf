"""The whole NIC.

::

    rx -> ReceiveGate -> Loopback -> FrameReceiver -> GroupCopies -> DatagramReceiver --+
                            |         |ports |groups    |members      |tables |credits   |
                            |    PortTable  GroupTable -+       RowTables  CompletionUnit+- arbiters
                            |                                         |tables |credits   |   - dma
    tx <- TransmitGate <----+--------------------------------------- TransmitPath -------+

    DMA errors, full CQs, Terminates of all of these -> EventUnit --events-- WriteArbiter

    bus -> ControlUnit -> rows, doorbells, config; <- events, interrupts
           SoftReset: halts the arbiters and the gates, then resets all between them

One word of 8 octets a cycle in each direction: 10 Gb/s at 156.25 MHz.
"""

from amaranth.hdl import Module, Mux, ResetInserter, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import ADDRESS_BITS, Counter, Parameters

from .csr import ControlUnit
from .csr.counters import EventSource
from .csr.reset import ReceiveGate, SoftReset, TransmitGate
from .dma import ReadArbiter, WriteArbiter
from .dma.channels import READ_CHANNELS, WRITE_CHANNELS
from .interfaces import Axi4LiteSignature, Axi4Signature, PacketSignature
from .iwarp.complete import CompletionUnit
from .iwarp.events import EventUnit, FullQueues
from .iwarp.receive import DatagramReceiver
from .iwarp.tables import QP_READS, REGION_READS, PortTable, RowTable
from .iwarp.transmit import TransmitPath
from .layouts import QP_ROW, REGION_ROW
from .net.group_copies import GroupCopies
from .net.group_table import GroupTable
from .net.loopback import Loopback
from .net.receive import FrameReceiver
from .stream.queue import connect_streams

__all__ = ["EVENT_SOURCES", "Nic"]

#: Datagrams that can wait for the receiver.
_DATAGRAMS = 64

#: Cycles from a frame's last word into the frame receiver to its datagram's offer, with a margin.
_FRAME_RECEIVER_CYCLES = 15

#: In the order of the NIC's units: loopback, frame receiver, group copies, datagram receiver,
#: transmitter, completion unit, event unit, write arbiter, read arbiter. A frame, and a datagram,
#: ends in one outcome. RX_MANAGEMENT and RX_PLACED are outcomes, too, but counted alone: so the
#: numbers of the others follow each other, and 16 and 32 words of LUT RAM are enough.
EVENT_SOURCES = (
    EventSource(frozenset({Counter.RX_FRAMES, Counter.DROP_OVERFLOW})),
    EventSource(
        frozenset({Counter.RX_FRAMES, Counter.DROP_OVERFLOW, Counter.RX_MANAGEMENT}),
        range(Counter.DROP_MAC_ERROR, Counter.DROP_OPCODE + 1),
    ),
    EventSource(frozenset({Counter.RX_COPIES})),
    EventSource(
        frozenset({Counter.RX_PLACED}),
        range(Counter.DROP_QP_STATE, Counter.DROP_READ_BUSY + 1),
    ),
    EventSource(frozenset({Counter.TX_FRAMES, Counter.TX_TERMINATES, Counter.EVENTS_LOST})),
    EventSource(frozenset({Counter.CQES, Counter.MESSAGES_PARTIAL})),
    EventSource(frozenset({Counter.EVENTS, Counter.EVENTS_LOST})),
    EventSource(frozenset({Counter.DMA_ERRORS})),
    EventSource(frozenset({Counter.DMA_ERRORS})),
)


class Nic(wiring.Component):
    """A datagram-iWARP NIC between a MAC, a host's memory and its BAR 0.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    rx : In(PacketSignature())
        Frames from the MAC, without FCS. Never held up.
    tx : Out(PacketSignature())
        Frames to the MAC. Once a frame has begun, each of its beats is there when the MAC wants it.
    bus : In(Axi4LiteSignature(ADDRESS_BITS))
    dma : Out(Axi4Signature())
    irq : Out(1)
        Level.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        super().__init__(
            {
                "rx": In(PacketSignature()),
                "tx": Out(PacketSignature()),
                "bus": In(Axi4LiteSignature(ADDRESS_BITS)),
                "dma": Out(Axi4Signature()),
                "irq": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters = self._parameters

        # Neither the gates, nor the arbiters, nor the control side's bus are reset by software.
        m.submodules.reset = reset = SoftReset()
        m.submodules.receive_gate = receive_gate = ReceiveGate()
        m.submodules.transmit_gate = transmit_gate = TransmitGate()
        m.submodules.write_arbiter = writes = WriteArbiter(4)
        m.submodules.read_arbiter = reads = ReadArbiter(3, parked=1)
        m.submodules.control = control = ControlUnit(parameters, EVENT_SOURCES)

        loopback = Loopback(parameters)
        frames = FrameReceiver(parameters, datagrams=_DATAGRAMS)
        receiver = DatagramReceiver(parameters, datagrams_ahead=_DATAGRAMS)
        transmitter = TransmitPath(parameters)
        completion = CompletionUnit(parameters, clients=2)
        full_queues = FullQueues(parameters)
        ports = PortTable(parameters)
        groups = GroupTable(parameters, datagrams=_DATAGRAMS)
        copies = GroupCopies(parameters)
        queue_pairs = RowTable(QP_ROW, parameters.n_qp, QP_READS)
        regions = RowTable(REGION_ROW, parameters.n_region, REGION_READS)
        clear = ResetInserter(reset.reset)
        m.submodules.loopback = clear(loopback)
        m.submodules.frames = clear(frames)
        m.submodules.receiver = clear(receiver)
        m.submodules.transmitter = clear(transmitter)
        m.submodules.completion = clear(completion)
        m.submodules.full_queues = clear(full_queues)
        m.submodules.ports = clear(ports)
        m.submodules.groups = clear(groups)
        m.submodules.copies = clear(copies)
        m.submodules.queue_pairs = clear(queue_pairs)
        m.submodules.regions = clear(regions)

        # Receive.
        connect_streams(m, self.rx, receive_gate.i)
        connect_streams(m, receive_gate.o, loopback.rx)
        connect_streams(m, loopback.o, frames.rx)
        wiring.connect(m, frames.ports, ports.lookup)
        wiring.connect(m, frames.groups, groups.lookup)
        wiring.connect(m, copies.members, groups.members)
        connect_streams(m, frames.datagrams, copies.datagrams_i)
        connect_streams(m, frames.payload, copies.payload_i)
        connect_streams(m, copies.datagrams_o, receiver.datagrams)
        connect_streams(m, copies.payload_o, receiver.payload)
        m.d.comb += [
            receiver.waiting.eq(frames.waiting),
            receiver.more.eq(copies.more),
            frames.again.eq(copies.again),
            frames.cut.eq(loopback.cut),
            frames.config.eq(control.config),
            receiver.time.eq(control.time),
            receiver.close.eq(control.close),
            receiver.unwritten.eq(completion.pending),
            receiver.written.eq(completion.write.done),
        ]

        # Transmit.
        connect_streams(m, transmitter.tx, loopback.sent)
        connect_streams(m, loopback.tx, transmit_gate.i)
        connect_streams(m, transmit_gate.o, self.tx)
        m.d.comb += [
            transmitter.config.eq(control.config),
            transmitter.qp_written.index.eq(control.qp.index),
            transmitter.qp_written.row.eq(control.qp.row),
            transmitter.qp_written.enable.eq(control.qp.enable),
            loopback.own.eq(transmitter.own),
            loopback.group.eq(transmitter.group),
            loopback.loop_groups.eq(control.config.loop_groups),
        ]

        # Reads: own ones are opened there, those of peers answered here. So are Terminates.
        connect_streams(m, transmitter.read_openings, receiver.read_openings)
        connect_streams(m, receiver.requests, transmitter.requests)
        m.d.comb += [
            transmitter.opened.eq(receiver.opened),
            transmitter.opened_ok.eq(receiver.opened_ok),
            transmitter.trackers_full.eq(receiver.trackers_full),
            receiver.read_room.eq(transmitter.read_room),
        ]

        # MESSAGES_CLOSE: first what comes in, so that no request comes behind, then responses.
        received = Signal()
        with m.If(receiver.close_done):
            m.d.sync += received.eq(1)
        with m.Elif(transmitter.close_done | reset.reset):
            m.d.sync += received.eq(0)
        m.d.comb += [
            transmitter.close.eq(control.close),
            transmitter.close.active.eq(control.close.active & received),
            control.close_done.eq(transmitter.close_done),
        ]

        # What both look up, reserve and complete.
        m.d.comb += completion.time.eq(control.time)
        for side, unit in enumerate((receiver, transmitter)):
            wiring.connect(m, unit.qp, queue_pairs.reads[side])
            wiring.connect(m, unit.region, regions.reads[side])
            wiring.connect(m, unit.credits, completion.credits[side])
            wiring.connect(m, unit.completions, completion.completions[side])

        # Events.
        raised = (
            *receiver.event_requests,
            *transmitter.event_requests,
            completion.event_requests,
            full_queues.requests,
        )
        event_unit = EventUnit(len(raised))
        m.submodules.event_unit = clear(event_unit)
        for source, sink in zip(raised, event_unit.requests, strict=True):
            connect_streams(m, source, sink)
        connect_streams(m, transmitter.terminates, event_unit.terminates)
        m.d.comb += [
            full_queues.full.eq(receiver.cq_full),
            full_queues.full_cq.eq(receiver.cq_full_cq),
            full_queues.touched.eq(completion.cq_touched),
            full_queues.touched_cq.eq(completion.cq_touched_cq),
            event_unit.ring.eq(control.event_ring),
            event_unit.clear.eq(control.event_clear),
            event_unit.consumer.eq(control.event_consumer),
            event_unit.time.eq(control.time),
            control.event_written.eq(event_unit.written),
            receiver.qp_written.eq(control.qp.enable),
            receiver.qp_written_qpn.eq(control.qp.index),
            transmitter.failed.eq(receiver.failed),
        ]

        # Host memory.
        for client, port in enumerate(
            (receiver.payload_write, receiver.map_write, completion.write, event_unit.write)
        ):
            wiring.connect(m, port, writes.clients[client])
        for client, port in enumerate(
            (receiver.wqe_read, transmitter.wqe_read, transmitter.payload_read)
        ):
            wiring.connect(m, port, reads.clients[client])
        for arbiter, channels in ((writes, WRITE_CHANNELS), (reads, READ_CHANNELS)):
            for name, member in channels.members.items():
                inner, outer = getattr(arbiter.bus, name), getattr(self.dma, name)
                sink, source = (outer, inner) if member.flow is Out else (inner, outer)
                m.d.comb += sink.eq(source)

        # Control.
        wiring.connect(m, wiring.flipped(self.bus), control.bus)
        wiring.connect(m, control.qp, queue_pairs.write)
        wiring.connect(m, control.region, regions.write)
        wiring.connect(m, control.port, ports.write)
        wiring.connect(m, control.group, groups.write)
        m.d.comb += control.group_written.eq(groups.written)
        connect_streams(m, control.receive, receiver.doorbells)
        connect_streams(m, control.send, transmitter.doorbells)
        connect_streams(m, control.completion, completion.doorbells)
        counting = (loopback, frames, copies, receiver, transmitter, completion, event_unit)
        for index, unit in enumerate(counting):
            m.d.comb += control.events[index].eq(unit.events)
        for index, arbiter in enumerate((writes, reads), len(counting)):
            m.d.comb += control.events[index][Counter.DMA_ERRORS].eq(arbiter.failed)
        for name in ("irq_set", "irq_clear", "irq_cq"):
            m.d.comb += getattr(control, name).eq(getattr(completion, name))
        m.d.comb += self.irq.eq(control.irq)

        # A frame in the frame receiver is seen by its traces only: words in, a datagram out.
        settling = Signal(range(_FRAME_RECEIVER_CYCLES + 1))
        settle = Mux(settling == 0, 0, settling - 1)
        m.d.sync += [
            settling.eq(Mux(loopback.o.valid, _FRAME_RECEIVER_CYCLES, settle)),
            control.open_messages.eq(
                receiver.open_messages
                + completion.pending
                + (loopback.busy | frames.waiting | (settling != 0))
            ),
        ]

        # Reset.
        sweepers = (
            receiver,
            transmitter,
            completion,
            full_queues,
            ports,
            groups,
            queue_pairs,
            regions,
        )
        sweeping = control.sweeping
        for unit in sweepers:
            sweeping = sweeping | unit.busy
        sweeps, halted = Signal(init=1), Signal()
        m.d.comb += [
            reset.sweeping.eq(sweeps),
            reset.request.eq(control.reset_request),
            control.clear.eq(reset.reset),
            control.busy.eq(reset.busy),
            writes.halt.eq(reset.halt),
            reads.halt.eq(reset.halt),
            transmit_gate.halt.eq(reset.halt),
            receive_gate.cut.eq(reset.reset),
        ]
        # The gates are told a cycle late, and yet before anything is cut.
        m.d.sync += [
            halted.eq(reset.halt),
            # All sweep from the cycle after a reset on, and when the device begins.
            sweeps.eq(sweeping | reset.reset),
            # Once all are idle after a halt they stay so.
            reset.quiet.eq(halted & writes.idle & reads.idle & transmit_gate.idle),
            receive_gate.open.eq(control.config.enable & ~reset.busy),
        ]
        return m
