"""Transmit path: from doorbells to frames and completions (device behaviour, section 7).

::

                                    +--> destinations ---------------+
                                    |                                v
    doorbells --> scheduler --> WQE fetch --> segmenter --+--> frame builder --> frame sender --> tx
                     ^   |          |            |        |          ^                  |
                     |   v          v            v        v          |                  v
                     | credits   wqe_read,    QP state  payload reader            completer
                     |           region                       |                     |     |
                     +--------------- retirements ------------|---------------------+     v
    requests --> responder --> (segmenter)                    v                      completions
                     ^    +--> terminates                payload_read
                     +------------------ released ------------------ completer

The wire's rate for every payload of a Write-Record but the empty one, one message a datagram, with
200 cycles of read latency for both WQE and payload: at most 12 cycles a message, 7 a datagram, 1 a
word. The stages are joined by queues; nothing upstream waits for the sender but for room.
"""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from uwarp.contract import Counter, Parameters

from ..data_register import data_register
from ..interfaces import (
    CompletionSignature,
    CreditSignature,
    PacketSignature,
    ReadClientSignature,
    TableReadSignature,
)
from ..layouts import (
    QP_ROW,
    REGION_ROW,
    CloseRequest,
    EventRequest,
    PortConfig,
    ReadOpening,
    ReadRequest,
    ReceivedTerminate,
    RingDoorbell,
)
from ..stream.queue import Queue, connect_streams
from .destination import destination_address
from .faults import has_failed
from .fetch import WqeFetch
from .frame_builder import FrameBuilder
from .frame_sender import FrameSender
from .payload_reader import PayloadReader
from .receive_layouts import failed_layout
from .responder import Responder
from .scheduler import SendScheduler, qp_width, retirement_layout, slot_count
from .segment import Segmenter, segment_layout
from .send_completion import SendCompleter
from .tables import TableWriteSignature
from .token_bucket import TokenBuckets

__all__ = ["TransmitPath"]

#: Segments that wait for their payload: a read latency of the smallest frames.
SEGMENTS = 32


class TransmitPath(wiring.Component):
    """Send what the send rings hold.

    Once the first beat of a frame is valid, every further one is, each cycle until the last.

    A QP that is reset while messages of it are under way: those not yet cut into their last segment
    end without a completion and give their CQ slot back; a datagram already cut still goes out.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    doorbells : In(stream of RingDoorbell)
        Producer indices of send rings, and resets.
    config : In(PortConfig)
    qp, region : Out(TableReadSignature)
    credits : Out(CreditSignature())
    wqe_read, payload_read : Out(ReadClientSignature())
    tx : Out(PacketSignature())
    own, group : Out(1)
        Of the frame that ``tx`` offers: its destination is the port's own MAC address, or has the
        group bit.
    completions : Out(CompletionSignature)
        After the last beat of the message's last frame was taken.
    qp_written : In(TableWriteSignature)
        Writes of the QP table, for the rates.
    read_openings : Out(stream of ReadOpening)
    opened, opened_ok : In(1)
        Strobe, and with it whether the oldest opening has a tracker.
    trackers_full : In(1)
        At most 6 cycles after ``opened``.
    requests : In(stream of ReadRequest)
        Only while there is ``read_room``, but for Terminates that came.
    terminates : Out(stream of ReceivedTerminate)
        Those.
    read_room : Out(1)
    close, close_done : In(CloseRequest), Out(1)
        Responses to be dropped; a strobe when nothing more is read for them.
    failed : In(failed_layout)
        QPs that have failed: no further message of theirs begins.
    event_requests : Out(stream of EventRequest).array(2)
        For each burst of the two reads that failed.
    events : Out(len(Counter))
        TX_FRAMES and TX_TERMINATES, in the cycle in which the last beat of a frame is taken;
        EVENTS_LOST.
    busy : Out(1)
        Memories are being cleared after a reset.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        region_width = (parameters.n_region - 1).bit_length()
        super().__init__(
            {
                "doorbells": In(stream.Signature(RingDoorbell)),
                "config": In(PortConfig),
                "qp": Out(TableReadSignature(QP_ROW, qp_width(parameters), 4)),
                "region": Out(TableReadSignature(REGION_ROW, region_width, 4)),
                "credits": Out(CreditSignature()),
                "wqe_read": Out(ReadClientSignature()),
                "payload_read": Out(ReadClientSignature()),
                "tx": Out(PacketSignature()),
                "own": Out(1),
                "group": Out(1),
                "completions": Out(CompletionSignature()),
                "qp_written": In(TableWriteSignature(QP_ROW, qp_width(parameters))),
                "read_openings": Out(stream.Signature(ReadOpening)),
                "opened": In(1),
                "opened_ok": In(1),
                "trackers_full": In(1),
                "requests": In(stream.Signature(ReadRequest)),
                "read_room": Out(1),
                "terminates": Out(stream.Signature(ReceivedTerminate)),
                "close": In(CloseRequest),
                "close_done": Out(1),
                "failed": In(failed_layout(parameters)),
                "event_requests": Out(stream.Signature(EventRequest)).array(2),
                "events": Out(len(Counter)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters = self._parameters
        m.submodules.scheduler = scheduler = SendScheduler(parameters)
        m.submodules.fetch = fetch = WqeFetch(parameters)
        m.submodules.responder = responder = Responder(parameters)
        m.submodules.buckets = buckets = TokenBuckets(parameters)
        m.submodules.segmenter = segmenter = Segmenter(parameters)
        m.submodules.segments = segments = Queue(segment_layout(parameters), SEGMENTS, block=True)
        # No word is read, to be looked at, in the cycle in which it is written: synthesis need not
        # add logic for that case.
        m.submodules.destinations = destinations = Memory(
            shape=64,
            depth=1 << destination_address(parameters).size,
            init=[],
            attrs={"no_rw_check": 1},
        )
        destination_read, destination_write = destinations.read_port(), destinations.write_port()
        # The memory's own output register: its readers stand far apart.
        destination = Signal(64, reset_less=True)
        m.d.sync += destination.eq(destination_read.data)
        m.submodules.reader = reader = PayloadReader(parameters)
        m.submodules.builder = builder = FrameBuilder(parameters)
        m.submodules.sender = sender = FrameSender(parameters)
        m.submodules.completer = completer = SendCompleter(parameters)
        # It holds all messages there can be, so that the completer never waits for the scheduler.
        m.submodules.retirements = retirements = Queue(
            retirement_layout(parameters), slot_count(parameters), direct=False, bounded=False
        )

        for source, sink in (
            (self.doorbells, scheduler.doorbells),
            (scheduler.fetches, fetch.fetches),
            (fetch.messages, segmenter.messages),
            (responder.rows, segmenter.responses),
            (responder.messages, segmenter.responding),
            (scheduler.resets, segmenter.resets),
            (self.requests, responder.requests),
            (responder.terminates, self.terminates),
            (completer.released, responder.released),
            (segmenter.read_openings, self.read_openings),
            (buckets.wakes, segmenter.wakes),
            (segmenter.segments, segments.i),
            (segments.o, builder.segments),
            (reader.o, builder.payload),
            (builder.frames, sender.frames),
            (builder.checks, sender.checks),
            (builder.done, completer.done),
            (completer.retirements, retirements.i),
            (retirements.o, scheduler.retirements),
            (sender.tx, self.tx),
            (fetch.event_requests, self.event_requests[0]),
            (reader.event_requests, self.event_requests[1]),
        ):
            connect_streams(m, source, sink)
        wiring.connect(m, scheduler.credits, wiring.flipped(self.credits))
        wiring.connect(m, completer.completions, wiring.flipped(self.completions))
        wiring.connect(m, fetch.read, wiring.flipped(self.wqe_read))
        wiring.connect(m, fetch.region, wiring.flipped(self.region))
        wiring.connect(m, reader.read, wiring.flipped(self.payload_read))

        # A job every other cycle is more than the segmenter makes.
        job = reader.jobs
        m.d.comb += segmenter.reads.ready.eq(~job.valid)
        read = data_register(m, job.p)
        with m.If(~job.valid):
            m.d.sync += [job.valid.eq(segmenter.reads.valid), read.eq(segmenter.reads.p)]
        with m.Elif(job.ready):
            m.d.sync += job.valid.eq(0)

        # Whether the QP has failed, with its row.
        row_index = Signal.like(self.qp.index, reset_less=True)
        failed = Signal()
        m.d.sync += row_index.eq(self.qp.index)
        m.d.comb += failed.eq(has_failed(m, self.failed, row_index))

        leaves = self.tx.valid & self.tx.ready & self.tx.p.last
        m.d.comb += [
            responder.fetched.eq(fetch.destination),
            responder.fetched_valid.eq(fetch.destination_written),
            destination_write.addr.eq(responder.written.address),
            destination_write.data.eq(responder.written.word),
            destination_write.en.eq(responder.written_valid),
            destination_read.addr.eq(
                Mux(
                    builder.destination_taken,
                    builder.destination.index,
                    Mux(
                        responder.destination_asked,
                        responder.destination.index,
                        segmenter.destination.index,
                    ),
                )
            ),
            responder.destination_taken.eq(builder.destination_taken),
            responder.destination.row.eq(destination),
            builder.destination.row.eq(destination),
            segmenter.destination.row.eq(destination),
            segmenter.destination_taken.eq(builder.destination_taken | responder.destination_asked),
            builder.quads.eq(segmenter.quads),
            builder.coming.eq(segmenter.coming & (segments.level == 0)),
            builder.coming_slot.eq(segmenter.failed_slot),
            builder.comes.eq(segmenter.comes),
            segmenter.recall.eq(completer.recall),
            completer.recalled.eq(segmenter.recalled),
            completer.recalled_msn.eq(segmenter.recalled_msn),
            completer.recall_ready.eq(segmenter.recall_ready),
            segmenter.messages_begin.eq(fetch.messages_begin),
            segmenter.pieces.eq(fetch.pieces),
            segmenter.opened.eq(self.opened),
            segmenter.trackers_full.eq(self.trackers_full),
            builder.opened.eq(self.opened),
            builder.opened_ok.eq(self.opened_ok),
            self.read_room.eq(responder.read_room),
            responder.close.eq(self.close),
            self.close_done.eq(responder.close_done),
            responder.look.eq(segmenter.failed_slot),
            segmenter.dropped.eq(responder.dropped),
            responder.between.eq(segmenter.between),
            responder.cut.eq(segmenter.segments.valid & segmenter.segments.ready),
            responder.built.eq(builder.built),
            buckets.written.eq(self.qp_written.enable),
            buckets.written_qpn.eq(self.qp_written.index),
            buckets.written_row.eq(self.qp_written.row),
            buckets.charge.eq(segmenter.charge),
            buckets.look.eq(segmenter.turn),
            segmenter.dry.eq(buckets.dry),
            segmenter.qp_failed.eq(failed),
            self.qp.index.eq(Mux(segmenter.qp_taken, segmenter.qp.index, scheduler.qp.index)),
            self.qp.word.eq(Mux(segmenter.qp_taken, segmenter.qp.word, scheduler.qp.word)),
            scheduler.qp.row.eq(self.qp.row),
            scheduler.qp.held.eq(self.qp.held),
            segmenter.qp.held.eq(self.qp.held),
            segmenter.qp.row.eq(self.qp.row),
            scheduler.qp_taken.eq(segmenter.qp_taken),
            builder.failed_slot.eq(segmenter.failed_slot),
            segmenter.failed.eq(builder.failed),
            scheduler.qp_failed.eq(failed),
            scheduler.enable.eq(self.config.enable),
            segmenter.enable.eq(self.config.enable),
            sender.enable.eq(self.config.enable),
            builder.config.eq(self.config),
            sender.write_low.eq(builder.write_low),
            sender.write_high.eq(builder.write_high),
            sender.write_low_address.eq(builder.write_low_address),
            sender.write_high_address.eq(builder.write_high_address),
            sender.write_data.eq(builder.write_data),
            builder.tail.eq(sender.tail),
            self.own.eq(sender.own),
            self.group.eq(sender.group),
            completer.passed.eq(sender.passed & sender.completes),
            builder.finished.eq((sender.passed & ~sender.completes) + completer.finished),
            self.events[Counter.TX_FRAMES].eq(leaves),
            self.events[Counter.TX_TERMINATES].eq(leaves & sender.terminate),
            self.events[Counter.EVENTS_LOST].eq(responder.lost),
            self.busy.eq(scheduler.busy | segmenter.busy | builder.busy | responder.busy),
        ]
        return m
