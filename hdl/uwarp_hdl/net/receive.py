"""From the MAC's frames to checked datagrams and their payload.

::

    rx > realign > 2 > 3 > coverage > 4 > sums > 5 > 6 > verdict > 7 > 8 > events > 9
                   |   |                                    |
                   |   +------ words -------4---------------)---> DatagramQueue --> datagrams
                   +> fields                 '-5-6-7--------+---> PacketFifo -----> payload

The figures are registers in the way of a frame's last word. Behind the realigner everything
advances in every cycle; nothing is ever held back, so that verdicts come at the same distance from
the words whatever the frames' lengths, and frames of one word each are no special case. The fields
that are taken for the checks stay until the same word of the next frame, so those of word 3 and
later outlive their frame's last word by 4 cycles.
"""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from uwarp.contract import Counter

from ..compare import equal
from ..data_register import data_fields
from ..interfaces import GroupLookupSignature, PacketSignature, PortLookupSignature
from ..layouts import Datagram, PacketBeat, PortConfig
from ..stream.packet_fifo import PacketFifo
from ..stream.queue import connect_streams
from .checksum import OnesComplementCheck
from .coverage import (
    IP_SUM_WIDTH,
    PSEUDO_HEADER_START,
    SEGMENT_LEAD,
    PayloadWindow,
    SumCoverage,
    UdpRemainder,
)
from .crc_check import CrcCheck
from .datagram_queue import DatagramQueue
from .group_lookup import GroupLookup
from .headers import CHECKED_FIELDS, ETHERNET_HEADER, UDP
from .port_lookup import PortLookup
from .realign import Realigner
from .verdict import Verdict
from .word import FieldCapture, FrameWord, WordNumbering

__all__ = ["FrameReceiver"]


class FrameReceiver(wiring.Component):
    """Section 2 of the device behaviour: count, check and strip frames.

    One word a cycle, frames of any length with no gap between. A Datagram is offered 8 cycles after
    the last word of its frame, or 7 if what that holds moves into the word before, and one more if
    that has octets of its header, its payload 11 or 10 cycles after, if those before have gone. No
    word of a frame that is dropped leaves. A frame whose payload or Datagram finds no room is
    dropped whole, and so is one during which a register was written that rules it out or not.
    Frames that their headers (up to the opcode) rule out take no room. Of a datagram to a group
    ``qpn`` is the row of the group table.

    Parameters
    ----------
    parameters : uwarp.contract.Parameters
    payload_words : int
        Room for payload, in words of 8 octets: a power of two that holds the largest frame.
    datagrams : int
        Room for Datagrams, as of DatagramQueue.

    Attributes
    ----------
    rx : In(PacketSignature)
        Always ready.
    cut : In(1)
        The frame that comes in, 10 cycles after its first word or later, is dropped as one that
        finds no room.
    config : In(PortConfig)
    ports : Out(PortLookupSignature)
    groups : Out(GroupLookupSignature)
    datagrams : Out(stream of Datagram)
    waiting : Out(1)
        There is a Datagram, offered or not yet.
    payload : Out(stream of PacketBeat)
        The words that hold payload, as they lie in the frame without tags and options; ``count`` of
        the last one is where it ends. The payloads are in the order of ``datagrams``.
    again : In(1)
        The payload that is offered is to be offered once more, as of PacketFifo. Until then it
        keeps its room: of the longest frames to a group of more than one member there is room for
        one at a time.
    events : Out
        Bit ``c`` is 1 for one cycle for each count of Counter ``c``: RX_FRAMES together with what
        became of the frame, or alone if it became a Datagram.
    """

    def __init__(self, parameters, payload_words=2048, datagrams=64):
        largest = -(-(parameters.max_mtu + ETHERNET_HEADER) // 8)
        if payload_words < largest:
            raise ValueError(
                f"payload_words is {payload_words}; an MTU of {parameters.max_mtu} takes {largest}"
            )
        self._parameters = parameters
        self._payload_words = payload_words
        self._datagrams = datagrams
        super().__init__(
            {
                "rx": In(PacketSignature()),
                "cut": In(1),
                "config": In(PortConfig),
                "ports": Out(PortLookupSignature(parameters)),
                "groups": Out(GroupLookupSignature((parameters.n_group - 1).bit_length())),
                "datagrams": Out(stream.Signature(Datagram)),
                "waiting": Out(1),
                "payload": Out(stream.Signature(PacketBeat)),
                "again": In(1),
                "events": Out(len(Counter)),
            }
        )

    def elaborate(self, platform):
        m = Module()

        m.submodules.realigner = realigner = Realigner()
        m.submodules.numbering = numbering = WordNumbering()
        m.d.comb += [
            self.rx.ready.eq(1),
            realigner.beat.eq(self.rx.payload),
            realigner.beat_valid.eq(self.rx.valid),
            numbering.i.eq(realigner.word),
            numbering.ends.eq(realigner.ends),
            numbering.enable.eq(self.config.enable),
        ]
        words = [numbering.word]
        for stage in range(1, 6):
            word = data_fields(FrameWord, f"word{stage}")
            m.d.sync += word.eq(words[-1])
            words.append(word)

        m.submodules.link = link = FieldCapture({"destination_mac": (0, 6)}, "index")
        m.submodules.checked = checked = FieldCapture(CHECKED_FIELDS, "step")
        m.d.comb += [
            # A cycle late: the verdict on a frame of one word does not ask for it.
            link.word.eq(words[1]),
            checked.word.eq(words[0]),
        ]

        m.submodules.lookup = lookup = PortLookup(self._parameters)
        m.submodules.group = group = GroupLookup(self._parameters)
        wiring.connect(m, lookup.ports, wiring.flipped(self.ports))
        wiring.connect(m, group.groups, wiring.flipped(self.groups))
        m.d.comb += [
            lookup.port.eq(checked.fields.destination_port),
            group.word.eq(words[0]),
            group.row.eq(lookup.qpn),
            group.is_group.eq(lookup.is_group),
        ]

        # The realigner has the source address of a frame of 8 words in any case until its word 4 is
        # ``words[0]``; and this one has ended when word 2 of the next is ``words[2]``.
        source_mac = Signal(48, reset_less=True)
        is_own = Signal()
        with m.If(words[2].valid & words[2].at(2)):
            m.d.sync += source_mac.eq(realigner.source_mac)
        m.d.sync += is_own.eq(equal(m, source_mac, self.config.mac))

        m.submodules.remainder = remainder = UdpRemainder()
        m.d.comb += [
            remainder.word.eq(words[0]),
            remainder.udp_length.eq(checked.fields.udp_length),
        ]
        m.submodules.verdict = verdict = Verdict()
        self._connect_sums(m, words, remainder, checked.fields.udp_length, verdict)
        m.d.comb += [
            verdict.following.eq(words[0]),
            verdict.word.eq(words[1]),
            verdict.destination_mac.eq(link.fields.destination_mac),
            verdict.destination.eq(group.destination),
            numbering.before_udp.eq(verdict.before_udp),
            verdict.fields.eq(checked.fields),
            verdict.config.eq(self.config),
            verdict.hit.eq(lookup.hit),
            verdict.match.eq(group.match),
        ]

        m.submodules.window = window = PayloadWindow()
        m.d.comb += [
            window.word.eq(words[1]),
            window.remainder.eq(remainder.octets),
            window.many.eq(remainder.many),
            window.opcode.eq(checked.fields.rdmap_control[:4]),
            window.udp_length.eq(checked.fields.udp_length),
        ]
        inside, last, count = window.inside, window.last, window.count
        puts, skips_word = Signal(), Signal()
        own, to_group = verdict.promising, verdict.promising_group
        for stage in range(3, 6):
            if stage == 5:
                promising = own | to_group & group.match
                m.d.sync += [puts.eq(inside & promising), skips_word.eq(inside & ~promising)]
            items = {"inside": inside, "last": last, "count": count, "own": own, "group": to_group}
            held = [Signal(len(item), name=f"{name}{stage}") for name, item in items.items()]
            m.d.sync += [a.eq(b) for a, b in zip(held, items.values(), strict=True)]
            inside, last, count, own, to_group = held

        m.submodules.payloads = payloads = PacketFifo(PacketBeat, self._payload_words, repeats=True)
        m.submodules.queue = queue = DatagramQueue(self._datagrams)
        m.d.comb += payloads.again.eq(self.again)
        connect_streams(m, payloads.o, self.payload)
        connect_streams(m, queue.o, self.datagrams)

        end, lost, earlier_lost, fits = Signal(), Signal(), Signal(), Signal()
        commit, discard = Signal(), Signal()
        # A register was written during the frame.
        skips, earlier_skipped = Signal(), Signal()
        m.d.comb += [
            queue.following.eq(words[0]),
            queue.word.eq(words[1]),
            queue.source_mac.eq(source_mac),
            queue.opcode.eq(checked.fields.rdmap_control[:4]),
            queue.details.qpn.eq(lookup.qpn),
            queue.details.payload_length.eq(window.length),
            queue.details.own.eq(is_own),
            queue.details.group.eq(lookup.is_group),
            self.waiting.eq(queue.waiting),
            payloads.i.payload.data.eq(words[5].data),
            payloads.i.payload.count.eq(count),
            payloads.i.payload.last.eq(last),
            payloads.i.valid.eq(puts & ~earlier_lost),
            skips.eq(earlier_skipped | skips_word),
            lost.eq(earlier_lost | puts & ~payloads.i.ready),
            fits.eq(~lost & ~skips & queue.ready),
            commit.eq(end & verdict.accept & fits),
            discard.eq(end & ~(verdict.accept & fits)),
            queue.commit.eq(commit),
            queue.discard.eq(discard),
        ]
        queued = Signal()
        # The payload has time, and no word of the next frame's comes so soon.
        m.d.sync += [
            payloads.commit.eq(commit),
            payloads.discard.eq(discard),
            queued.eq(commit & lookup.is_group),
        ]
        m.d.comb += self.groups.queued.eq(queued)
        ended, had_no_room, was_accepted = Signal(2), Signal(2), Signal(2)
        outcome = Signal(len(verdict.outcome), reset_less=True)
        m.d.sync += [
            end.eq(words[4].valid & words[4].last),
            earlier_lost.eq((lost | self.cut) & ~end),
            earlier_skipped.eq(skips & ~end),
            ended.eq(Cat(end, ended)),
            had_no_room.eq(Cat(lost | verdict.accept & ~fits, had_no_room)),
            was_accepted.eq(Cat(verdict.accept, was_accepted)),
            outcome.eq(verdict.outcome),
            self.events.eq(0),
        ]
        with m.If(ended[1]):
            m.d.sync += self.events[Counter.RX_FRAMES].eq(1)
            with m.If(had_no_room[1]):
                m.d.sync += self.events[Counter.DROP_OVERFLOW].eq(1)
            with m.Elif(~was_accepted[1]):
                m.d.sync += self.events.bit_select(outcome, 1).eq(1)
        return m

    def _connect_sums(self, m, words, remainder, udp_length, verdict):
        m.submodules.coverage = coverage = SumCoverage()
        m.submodules.ip_sum = ip_sum = OnesComplementCheck(IP_SUM_WIDTH)
        m.submodules.udp_sum = udp_sum = OnesComplementCheck(start=PSEUDO_HEADER_START)
        m.submodules.crc = crc = CrcCheck(SEGMENT_LEAD)
        for unit, lanes in ((ip_sum, coverage.ip_lanes), (udp_sum, coverage.udp_lanes)):
            m.d.comb += [a.eq(b) for a, b in zip(unit.lanes, lanes, strict=True)]
        m.d.comb += [
            coverage.following.eq(words[0]),
            coverage.word.eq(words[1]),
            coverage.covered.eq(remainder.covered),
            ip_sum.add.eq(coverage.ip_add),
            ip_sum.restart.eq(coverage.ip_restart),
            udp_sum.add.eq(coverage.udp_add),
            udp_sum.restart.eq(coverage.udp_restart),
            crc.data.eq(coverage.crc_data),
            crc.add.eq(coverage.crc_add),
            crc.restart.eq(coverage.crc_restart),
            # The UDP datagram ends udp_length after octet 2 of a word.
            crc.tail.eq(-(udp_length + UDP)),
            verdict.ip_right.eq(ip_sum.right),
            verdict.udp_right.eq(udp_sum.right),
            verdict.crc_right.eq(crc.right),
        ]
