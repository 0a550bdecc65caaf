"""The checks that need only a datagram, its QP, its region, and for a Send the posted receive.

    datagrams ----+-> rows -> differences -> sums -> granules -> verdict --> segments
    read_openings-'    '-> receive (Send) -> region -^
                       '-> held, span (open Send, Read) -^

Messages, closed or open, are the business of the unit behind (:mod:`.dispatch`); but where a
datagram of a Send or of a Read goes depends on whether its message is open, so that is asked here.
"""

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import Access, Counter, Parameters, QpState
from uwarp.wire import DEFAULT_GRANULE_LOG2, Opcode, QueueNumber

from ..interfaces import TableReadSignature
from ..layouts import QP_ROW, REGION_ROW, Datagram, ReadOpening
from .faults import has_failed
from .granules import SegmentGranules
from .receive_layouts import (
    DIGEST_WIDTH,
    NO_SENDS,
    covered_layout,
    failed_layout,
    message_digest,
    message_name,
    offset_width,
    segment_layout,
    span_layout,
)
from .receive_queue import ReceiveLookupSignature
from .tables import QP_READS, REGION_READS, half_words, keep_half_words

__all__ = ["SegmentCheck"]


#: From a datagram's offer to that of its segment; where it goes on is told where they are used.
_STATES = (
    "IDLE",
    "ROWS",
    "RECEIVE",
    "HELD",
    "SPAN",
    "REGION",
    "DIFFERENCES",
    "SUMS",
    "GRANULES",
    "VERDICT",
    "SETTLED",
    "SEGMENT",
)

#: Fields of a region that its tracker keeps for an open message.
_HELD_FIELDS = ("dma_addr", "granule_log2", "map_base")


def receives(qp):
    return (qp.state == QpState.RTR) | (qp.state == QpState.RTS)


class SegmentCheck(wiring.Component):
    """Checks of section 3 of the device behaviour but those that ask for messages and CQ slots.

    One tagged datagram, Read Request or Terminate in 7 cycles, a Send in 10 or, after a pause, 11;
    one of an open Send or of a Read in 12. A Send waits for its WQE if that is not in the cache;
    and is given out only when the Send before it has met its fate, or for that of an open message
    every datagram before it.

    A Read to be opened goes the way of a tagged datagram. It takes turns with those that wait.

    Of a Send checks 7, 9, 10 and 12 are not in ``drop`` but in ``receive`` and ``mapped``: they
    come after others that are not made here.

    Members
    -------
    datagrams : In(stream of Datagram)
    read_openings : In(stream of ReadOpening)
    open : In(1)
        One of them may be taken.
    qp, region : Out(TableReadSignature)
        What is held back of ``qp`` is ``datagrams`` and ``read_openings``.
    qp_used : Out(1)
        ``qp.index`` is in use in this cycle, or waits for ``open``.
    failed : In(failed_layout)
        QPs that have failed.
    look : Out(ReceiveLookupSignature)
    found, begin, span, own, renew, opened, still, hold : In or Out
        See :class:`.dispatch.Dispatch`.
    segments : Out(stream of segment)
    covered : Out(covered)
        Of the segment that was taken in the cycle before.
    active : Out(1)
        A datagram is in here.
    """

    def __init__(self, parameters: Parameters):
        self._parameters = parameters
        super().__init__(
            {
                "datagrams": In(stream.Signature(Datagram)),
                "read_openings": In(stream.Signature(ReadOpening)),
                "open": In(1),
                "qp": Out(TableReadSignature(QP_ROW, exact_log2(parameters.n_qp), 4)),
                "qp_used": Out(1),
                "region": Out(TableReadSignature(REGION_ROW, exact_log2(parameters.n_region), 4)),
                "failed": In(failed_layout(parameters)),
                "look": Out(ReceiveLookupSignature(parameters)),
                "found": In(1),
                "span": In(span_layout(parameters)),
                "own": In(1),
                "begin": Out(1),
                "renew": Out(1),
                "opened": In(1),
                "still": In(1),
                "hold": Out(1),
                "segments": Out(stream.Signature(segment_layout(parameters))),
                "covered": Out(covered_layout(parameters)),
                "active": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        n_qp = self._parameters.n_qp
        n_region = self._parameters.n_region
        offset_shape = offset_width(self._parameters)
        m.submodules.granules = granules = SegmentGranules(self._parameters)

        datagram = Signal(Datagram, reset_less=True)
        qp = Signal(QP_ROW, reset_less=True)
        qp_failed = Signal(reset_less=True)
        region = Signal(REGION_ROW, reset_less=True)
        receive = Signal(
            data.StructLayout({"available": 1, "error": 1, "index": 16}), reset_less=True
        )
        # Registers, as ``datagram``.
        is_opening, is_write, is_request, is_terminate, is_record, is_response, is_send = [
            Signal(name=f"is_{name}")
            for name in ("opening", "write", "request", "terminate", "record", "response", "send")
        ]

        # The extent must lie inside the region: the message, the Write's payload, what is to be
        # read, or the SGE.
        stag = Signal(32, reset_less=True)
        base = Signal(64, reset_less=True)
        below_zero = Signal(reset_less=True)
        extent_length = Signal(32, reset_less=True)
        start = Signal(64, reset_less=True)
        below = Signal(reset_less=True)

        # The datagram is one of an open Send or Read: what lies in ``region`` is of its tracker.
        is_held = Signal()
        doubtful = Signal()  # a message was opened since its tracker was looked at
        may_be_open = (is_send | is_response) & receives(qp)
        is_open = may_be_open & self.found

        digest = Signal(DIGEST_WIDTH, reset_less=True)

        segment = self.segments.payload
        look = self.look

        # A Read to be opened, chosen a cycle before, looks like a segment of its response. It comes
        # a long way, so it is taken from a register.
        opening = Signal(ReadOpening, reset_less=True)
        # Only then, so that synthesis does not take it for a register that is far from here.
        with m.If(self.read_openings.valid):
            m.d.sync += opening.eq(self.read_openings.payload)
        chosen = Signal()
        incoming = Signal(Datagram)
        incoming_valid = Signal()
        m.d.comb += [
            incoming.eq(self.datagrams.payload),
            incoming_valid.eq(chosen | self.datagrams.valid),
        ]
        with m.If(chosen):
            for name in ("qpn", "msn", "mlen", "source_ip", "source_port"):
                m.d.comb += incoming[name].eq(opening[name])
            m.d.comb += [
                incoming.opcode.eq(Opcode.READ_RESPONSE_RECORD),
                incoming.stag.eq(opening.lkey),
                incoming.to.eq(opening.addr),
                incoming.mo.eq(0),
                incoming.payload_length.eq(0),
                incoming.group.eq(0),
            ]
        is_failed = has_failed(m, self.failed, datagram.qpn[: exact_log2(n_qp)])
        # A register for each state: nothing is to be decoded.
        states = {name: Signal(name=name.lower(), init=name == "IDLE") for name in _STATES}
        (
            in_idle,
            in_rows,
            in_receive,
            in_held,
            in_span,
            in_region,
            in_differences,
            in_sums,
            in_granules,
            in_verdict,
            in_settled,
            in_segment,
        ) = states.values()
        begins_qp, begins_region = Signal(), Signal()
        # Kept, since a receive's region comes late: it is to be chosen last.
        early_row = Signal.like(self.region.index, attrs={"keep": 1})
        self._read_rows(m, qp, region, begins_qp, begins_region, is_held, in_idle & incoming_valid)
        takes = in_idle & self.open & incoming_valid
        m.d.comb += [
            self.datagrams.ready.eq(in_idle & self.open & ~chosen),
            self.read_openings.ready.eq(in_idle & self.open & chosen),
            self.renew.eq(in_idle),
            self.begin.eq(in_receive),
            look.lookup.eq(takes | (in_segment & incoming_valid) | in_rows | in_receive),
            # An opening takes no receive: whose is looked up for it does not matter.
            look.qpn.eq(Mux(in_idle | in_segment, self.datagrams.p.qpn, datagram.qpn)),
            # Nothing is read for a QP that is not up: its ring may be gone.
            look.waiting.eq(in_receive & is_send & receives(qp) & ~self.found & ~self.region.held),
            look.dismiss.eq(in_receive & is_open),
            look.offered.eq(in_segment),
            look.given.eq(in_segment & self.segments.ready),
            # Not read in a segment's state.
            self.qp.index.eq(Mux(in_idle, incoming.qpn, datagram.qpn)),
            begins_qp.eq(takes),
            early_row.eq(Mux(in_idle, incoming.stag[8:], stag[8:])),
            self.region.index.eq(Mux(in_receive, look.receive.lkey[8:], early_row)),
            begins_region.eq(in_idle | in_receive),
            granules.begin.eq(in_differences),
            self.segments.valid.eq(in_segment),
            self.hold.eq(in_settled | (in_segment & is_held)),
            self.active.eq(~in_idle),
        ]

        with m.If(~is_held):
            m.d.sync += Cat(start, below).eq(base - region.base_to)
        with m.If(self.opened):
            m.d.sync += doubtful.eq(1)
        opcode = self.datagrams.p.opcode
        with m.If(in_idle):
            m.d.sync += [
                datagram.eq(incoming),
                stag.eq(incoming.stag),
                receive.eq(0),
                receive.index.eq(Mux(chosen, opening.wqe_index, 0)),
                is_opening.eq(chosen),
                is_write.eq(~chosen & (opcode == Opcode.WRITE)),
                is_request.eq(~chosen & (opcode == Opcode.READ_REQUEST)),
                is_terminate.eq(~chosen & (opcode == Opcode.TERMINATE)),
                is_record.eq(~chosen & (opcode == Opcode.WRITE_RECORD)),
                is_response.eq(~chosen & (opcode == Opcode.READ_RESPONSE_RECORD)),
                is_send.eq(~chosen & ~opcode.matches(*NO_SENDS)),
                is_held.eq(0),
                digest.eq(message_digest(message_name(self._parameters, incoming))),
            ]
        with m.If(in_rows):
            m.d.sync += [
                qp_failed.eq(is_failed),
                # A Write has an ``mo`` of 0, and a Read Request that has not is dropped.
                Cat(base, below_zero).eq(datagram.to - datagram.mo),
                extent_length.eq(Mux(is_write, datagram.payload_length, datagram.mlen)),
            ]
        with m.If(in_receive):
            m.d.sync += [
                is_held.eq(0),
                doubtful.eq(self.opened),
                receive.available.eq(look.receive.available),
                receive.error.eq(look.receive.error),
                receive.index.eq(look.receive.index),
                extent_length.eq(look.receive.length),
            ]
        with m.If(in_receive & is_send):
            m.d.sync += [stag.eq(look.receive.lkey), base.eq(look.receive.addr)]
        with m.If(in_span):
            m.d.sync += [is_held.eq(1), start.eq(self.span.start), below.eq(0)]

        # What is open goes to what its tracker holds, a Send to the region of its WQE.
        meets = in_receive & is_open
        misses = in_receive & (is_response | ~receives(qp)) & ~is_open
        waits = in_receive & may_be_open & is_send & ~self.found
        posted = look.known & ~self.region.held
        # A message of the same digest; unless another was opened there meanwhile.
        other = in_granules & is_held & ~self.own
        by_tracker = is_held | is_response
        # Two judges: ``still`` is known late, and of those without a tracker nothing waits for it.
        held_judged = in_verdict & by_tracker & self.still
        judged = in_verdict & ~by_tracker & ~look.unsettled & ~self.opened
        fails = look.wrong | is_open
        doubts = (is_open != is_held) | doubtful
        following = {
            "IDLE": (in_idle & ~takes) | (in_segment & self.segments.ready),
            "ROWS": takes,
            "RECEIVE": (in_rows & (is_send | is_response))
            | (waits & ~posted)
            | other
            | (judged & fails)
            | (in_settled & doubts),
            "HELD": meets,
            "SPAN": in_held,
            "REGION": in_span | (waits & posted),
            "DIFFERENCES": (in_rows & ~(is_send | is_response)) | misses | in_region,
            "SUMS": in_differences,
            "GRANULES": in_sums,
            "VERDICT": (in_granules & ~other) | (in_verdict & ~judged & ~held_judged),
            "SETTLED": held_judged,
            "SEGMENT": (judged & ~fails)
            | (in_settled & ~doubts)
            | (in_segment & ~self.segments.ready),
        }
        m.d.sync += [states[name].eq(condition) for name, condition in following.items()]
        # It stays valid until it is taken: what is chosen is there.
        opening_waits = Signal()
        opening_leaves = self.read_openings.valid & self.read_openings.ready
        m.d.sync += [
            opening_waits.eq(self.read_openings.valid & ~opening_leaves),
            chosen.eq(self.read_openings.valid & opening_waits & ~Mux(in_idle, chosen, is_opening)),
        ]

        # Each register below is right two, three, ... cycles after the rows and stays so: the
        # states only count the cycles.
        offset = Signal(64, reset_less=True)
        address = Signal(64, reset_less=True)
        message_end = Signal(33, reset_less=True)
        beyond = Signal(signed(34), reset_less=True)
        last_number = Signal(32, reset_less=True)  # of the message's octets
        last_octet = Signal(offset_shape, reset_less=True)
        last_octet_next = Signal(offset_shape)
        payload_end = Signal(offset_shape, reset_less=True)
        room = Signal(signed(65), reset_less=True)
        above = Signal(reset_less=True)
        low_end = Signal(33, reset_less=True)
        at_top = Signal(reset_less=True)
        wraps = Signal(reset_less=True)
        no_payload = Signal(reset_less=True)
        no_octets = Signal(reset_less=True)
        is_mapped = Signal(reset_less=True)
        checked_region = Signal(reset_less=True)
        m.d.sync += [
            message_end.eq(datagram.mo + datagram.payload_length),
            last_number.eq(datagram.mlen - 1),
            no_payload.eq(datagram.payload_length == 0),
            no_octets.eq(datagram.mlen == 0),
            segment.starts.eq(datagram.mo == 0),
            # Only the low half of the base can carry, if all above is ones.
            low_end.eq(base[:32] + extent_length),
            at_top.eq(base[32:].all()),
            # Of the octets' last number, which comes a shorter way.
            segment.receive.short.eq(~no_octets & (last_number >= extent_length)),
        ]
        m.d.sync += [
            beyond.eq(datagram.mlen - message_end),
            wraps.eq(at_top & low_end[32] & low_end[:32].any()),
            room.eq(region.length - start),
            offset.eq(start + datagram.mo),
            last_octet.eq(last_octet_next),
            is_mapped.eq(region.mapped & ~no_octets),
            checked_region.eq(
                is_opening | is_request | (is_record & ~no_octets) | (is_write & ~no_payload)
            ),
        ]
        m.d.sync += [
            segment.ends.eq(beyond == 0),
            above.eq((room < 0) | (~room[32:64].any() & (room[:32] < extent_length))),
            address.eq(region.dma_addr + offset),
            payload_end.eq(offset + datagram.payload_length),
            segment.mapped.eq(is_mapped & ~(is_send & ~granules.aligned)),
        ]
        m.d.comb += [
            granules.log2.eq(region.granule_log2),
            granules.start.eq(start),
            granules.end.eq(last_octet_next),
            last_octet_next.eq(start + last_number),
            granules.offset.eq(offset),
            granules.payload_end.eq(payload_end),
            granules.starts.eq(segment.starts),
            granules.ends.eq(segment.ends),
            segment.first.eq(granules.first),
            segment.last.eq(granules.last),
            self.covered.eq(granules.covered),
        ]

        # The peer's address comes in two halves, the second in time for the verdict.
        foreign_half = Signal(reset_less=True)
        foreign_port = Signal(reset_less=True)
        own_port = Signal(reset_less=True)
        differs = (datagram.source_ip ^ qp.peer_ip) & qp.peer_mask
        m.d.sync += [
            own_port.eq(datagram.source_port == qp.udp_port),
            foreign_half.eq(differs[:64].any()),
            foreign_port.eq((qp.peer_port != 0) & (qp.peer_port != datagram.source_port)),
        ]

        # What is known early of the verdict.
        beyond_table = Signal(reset_less=True)
        other_queue = Signal(reset_less=True)
        other_opcode = Signal(reset_less=True)
        queue = Mux(
            is_terminate,
            QueueNumber.TERMINATE,
            Mux(is_request, QueueNumber.REQUEST, QueueNumber.SEND),
        )
        m.d.sync += [
            beyond_table.eq(datagram.qpn[exact_log2(n_qp) :].any()),
            other_queue.eq((is_send | is_request | is_terminate) & (datagram.qn != queue)),
            other_opcode.eq(~is_opening & ~qp.opcodes.bit_select(datagram.opcode, 1)),
        ]

        # All of it but ``above``.
        stag_row = stag[8 + exact_log2(n_region) :].any()
        stag_key = region.key != stag[:8]
        stag_pd = region.pd != qp.pd
        sends = qp.state == QpState.RTS
        is_down = Mux(is_opening | is_request, ~sends, ~receives(qp))
        has_length = ~is_write & ~is_terminate
        bad_request = ~segment.starts | ~no_payload | no_octets
        local_write, remote_write, remote_read = (
            region.access[exact_log2(access)]
            for access in (Access.LOCAL_WRITE, Access.REMOTE_WRITE, Access.REMOTE_READ)
        )
        access = Mux(is_request, remote_read, Mux(is_opening, local_write, remote_write))
        failures = [
            (Counter.DROP_QP_STATE, is_down | qp_failed | beyond_table),
            (Counter.DROP_OWN_GROUP, datagram.group & datagram.own & own_port),
            (Counter.DROP_PEER, ~is_opening & (foreign_half | foreign_port | differs[64:].any())),
            (Counter.DROP_QP_OPCODE, other_opcode),
            (Counter.DROP_UNTAGGED_QN, other_queue),
            (
                Counter.DROP_MESSAGE_LENGTH,
                Mux(is_request, bad_request, has_length & (beyond < 0)),
            ),
            (Counter.DROP_LATE, is_response & ~is_held),
            (Counter.DROP_STAG_INVALID, checked_region & (~region.valid | stag_row)),
            (Counter.DROP_STAG_KEY, checked_region & stag_key),
            (Counter.DROP_STAG_PD, checked_region & stag_pd),
            (Counter.DROP_STAG_ACCESS, checked_region & ~access),
            (Counter.DROP_TO_WRAP, checked_region & (below_zero | wraps)),
            (
                Counter.DROP_NO_TRACKER,
                is_opening & (~is_mapped | (region.granule_log2[:5] != DEFAULT_GRANULE_LOG2)),
            ),
        ]
        failed = Signal(len(failures), reset_less=True)
        outside = Signal(reset_less=True)
        may_write = Signal(reset_less=True)
        sge_empty = Signal(reset_less=True)
        m.d.sync += [
            failed.eq(Cat(condition for _, condition in failures)),
            outside.eq(stag_row | ~region.valid | stag_key | stag_pd | below),
            may_write.eq(local_write),
            sge_empty.eq(extent_length == 0),
        ]

        verdict = Mux(checked_region & (below | above), Counter.DROP_BOUNDS, 0)
        for index, (counter, _) in reversed(list(enumerate(failures))):
            verdict = Mux(failed[index], counter, verdict)
        m.d.sync += [
            segment.drop.eq(verdict),
            segment.receive.fault.eq(
                ~no_octets & (receive.error | (~sge_empty & (outside | above | ~may_write)))
            ),
        ]
        complete = segment.starts & segment.ends
        m.d.comb += [
            look.may_take.eq(
                (segment.drop == 0)
                & segment.receive.available
                & (segment.receive.fault | (~segment.receive.short & (complete | segment.mapped)))
            ),
            segment.datagram.eq(datagram),
            segment.datagram.stag.eq(stag),
            segment.opening.eq(is_opening),
            segment.reports.eq(
                qp.terminate & sends & ~is_opening & ~datagram.group & ~is_terminate
            ),
            segment.digest.eq(digest),
            segment.held.eq(is_held),
            segment.receive.available.eq(receive.available),
            segment.receive.index.eq(receive.index),
            segment.cq.eq(Mux(is_opening, qp.send_cq, qp.recv_cq)),
            segment.timeout.eq(qp.timeout),
            segment.address.eq(address),
            segment.base.eq(base),
            segment.dma_addr.eq(region.dma_addr),
            segment.granule_log2.eq(region.granule_log2),
            segment.map_base.eq(region.map_base),
            segment.map_addr.eq(region.map_addr),
            segment.start.eq(start),
            segment.end.eq(last_octet),
        ]
        return m

    def _read_rows(self, m, qp, region, begins_qp, begins_region, is_held, may_begin):
        """Rows, as they come, into registers: the first read of a QP's is asked for in the cycle
        with ``begins_qp``, of a region's in the last one with ``begins_region``, and what it gives
        is there two cycles later. With ``is_held`` the region is what its tracker says."""
        came = []
        for name, begins, port in (
            ("qp", begins_qp, self.qp),
            ("region", begins_region, self.region),
        ):
            came.append(comes := Signal(4, name=f"{name}_comes"))
            m.d.sync += comes.eq(Mux(begins, 1, comes << 1))
            m.d.comb += port.word.eq(Mux(begins, 0, Cat(comes[0] | comes[2], comes[1] | comes[2])))
        qp_comes, region_comes = came
        m.d.comb += self.qp_used.eq(may_begin | qp_comes[:3].any())

        given = Signal(REGION_ROW)
        m.d.comb += given.eq(self.region.row)
        with m.If(is_held):
            m.d.comb += [given[name].eq(self.span[name]) for name in _HELD_FIELDS]
        # The span is there with the third read.
        held_comes = is_held & region_comes[2]
        last_comes = ~is_held & region_comes[3]
        for reads, strobes, source, sink in (
            (QP_READS[0], qp_comes, self.qp.row, qp),
            (REGION_READS[0], Cat(region_comes[:3], last_comes), given, region),
        ):
            known = set()
            for strobe, numbers in zip(strobes, map(half_words, reads), strict=True):
                with m.If(strobe):
                    new = (number for number in numbers if number not in known)
                    m.d.sync += keep_half_words(sink, source, new)
                known |= set(numbers)
        with m.If(held_comes):
            m.d.sync += [region[name].eq(given[name]) for name in _HELD_FIELDS]
