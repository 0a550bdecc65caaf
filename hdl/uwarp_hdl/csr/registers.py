"""Register file: every register of the contract but the doorbell pages.

::

    access --+--> address decoded --> words of what changes by itself, effect --+--> value --> done
             +--> block RAM: constants, and all that was written ---------------+

What a write sets is kept twice: in registers for those who use it, and in the block RAM to be read
back. A reset clears the registers only; for the block RAM a bit of each word tells whether it was
written since. TABLE_DATA, of which registers hold the widest row's octets, is not touched by it.

An access takes 4 cycles, but the read of a counter or of its copy, and the writes of TABLE_COMMAND
and COUNTERS_SNAPSHOT, which wait for it, the command and the snapshot. While ``busy`` only STATUS
and the build parameters read as other than 0, and writes do nothing.
"""

from functools import reduce
from operator import or_

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from uwarp.contract import (
    MAGIC,
    TABLES,
    VERSION,
    AccessMode,
    CloseTarget,
    Control,
    DeviceStatus,
    Parameters,
    Register,
)

from ..compare import at_least
from ..data_register import data_register
from ..layouts import CloseRequest, EventRing, PortConfig
from .bus import AccessSignature
from .counters import CounterReadSignature, SnapshotSignature

__all__ = ["CommandSignature", "RegisterFile"]

_PAGE_BITS = 12
_DEFAULT_MTU = 1500
_WORDS = 1 << _PAGE_BITS - 3
_ROW_BITS = 8 * max(structure.size for structure in TABLES.values())
_ROW_WORDS = _ROW_BITS // 32


class CommandSignature(wiring.Signature):
    """TABLE_COMMAND: ``row`` of table ``kind`` becomes ``data``. ``request`` is held until
    ``done``, the rest for more cycles: they change with the next access at the earliest. Meanwhile
    ``word`` is the word of ``data`` that ``number`` named two cycles before."""

    def __init__(self) -> None:
        super().__init__(
            {
                "request": Out(1),
                "row": Out(16),
                "kind": Out(8),
                "data": Out(_ROW_BITS),
                "number": In(range(_ROW_WORDS)),
                "word": Out(32),
                "done": In(1),
            }
        )


class RegisterFile(wiring.Component):
    """The registers.

    Parameters
    ----------
    parameters : Parameters

    Members
    -------
    access : In(AccessSignature())
        All but the writes of doorbells; beyond the registers a read gives 0.
    config : Out(PortConfig)
    reset_request : Out(1)
        Strobe: CONTROL.RESET was written.
    busy : In(1)
        STATUS.BUSY.
    time : In(47)
    open_messages : In(32)
    counter : Out(CounterReadSignature())
    snapshot : Out(SnapshotSignature())
    command : Out(CommandSignature())
    irq_set, irq_clear, irq_cq : In
        As from the completion unit, of a CQ that exists.
    event_ring : Out(EventRing)
    event_clear : Out(1)
        Strobe: EVENT_RING was written.
    event_consumer : Out(32)
        0 after a write of EVENT_RING.
    event_written : In(1)
        Strobe: an event is in memory.
    close : Out(CloseRequest)
        ``active`` from the write of MESSAGES_CLOSE until ``close_done``; never for a target or a
        row that does not exist.
    close_done : In(1)
        Strobe.
    irq : Out(1)
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        super().__init__(
            {
                "access": In(AccessSignature()),
                "config": Out(PortConfig, init={"mtu": _DEFAULT_MTU}),
                "reset_request": Out(1),
                "busy": In(1),
                "time": In(47),
                "open_messages": In(32),
                "counter": Out(CounterReadSignature()),
                "snapshot": Out(SnapshotSignature()),
                "command": Out(CommandSignature()),
                "irq_set": In(1),
                "irq_clear": In(1),
                "irq_cq": In(16),
                "event_ring": Out(EventRing),
                "event_clear": Out(1),
                "event_consumer": Out(32),
                "event_written": In(1),
                "close": Out(CloseRequest),
                "close_done": In(1),
                "irq": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parameters = self._parameters
        access = self.access
        decoded = Signal()
        fetched = Signal()
        gathered = Signal()
        in_page = access.address[_PAGE_BITS:] == 0
        offset = access.address[2:_PAGE_BITS]

        irq_enable = Signal()
        irq_status = Signal(parameters.n_cq)
        event_status = Signal()
        ring = self.event_ring
        table_select = Signal(24)
        row = Signal(_ROW_BITS, reset_less=True)
        time_high = Signal(15)
        counter_high = Signal(32)
        status_words = [irq_status[i : i + 32] for i in range(0, parameters.n_cq, 32)]

        constants = {
            Register.MAGIC: MAGIC,
            Register.VERSION: VERSION,
            Register.N_QP: parameters.n_qp,
            Register.N_REGION: parameters.n_region,
            Register.N_TRACKER: parameters.n_tracker,
            Register.N_CLOSED: parameters.n_closed,
            Register.MAP_BITS: parameters.map_bits,
            Register.MAX_MTU: parameters.max_mtu,
            Register.CLOCK_HZ: parameters.clock_hz,
            Register.N_GROUP: parameters.n_group,
            Register.N_READ: parameters.n_read,
        }
        # What a write sets, and a read gets from the block RAM: words, the least significant first.
        storage = {
            Register.MAC_LOW: [self.config.mac[:32]],
            Register.MAC_HIGH: [self.config.mac[32:]],
            Register.IPV4: [self.config.ipv4],
            Register.MTU: [self.config.mtu],
            Register.IPV6: [self.config.ipv6[i : i + 32] for i in range(0, 128, 32)],
            Register.EVENT_ADDR_LOW: [ring.address[:32]],
            Register.EVENT_ADDR_HIGH: [ring.address[32:]],
            Register.TABLE_SELECT: [table_select],
        }
        # The others that a write sets, of few bits.
        filters = Cat(
            self.config.accept_multicast, self.config.accept_foreign, self.config.loop_groups
        )
        flags = {Register.FILTER: filters, Register.IRQ_ENABLE: irq_enable}
        # Few bits that are read as they are.
        moving = flags | {
            Register.CONTROL: self.config.enable * Control.ENABLE,
            Register.TIME_HIGH: time_high,
            Register.EVENT_STATUS: event_status,
            Register.EVENT_RING: Cat(ring.log2, Const(0, 4), ring.enabled),
            Register.MESSAGES_CLOSE: self.close.active,
        }

        selected = {
            register: Signal(name=f"is_{register.name.lower()}", reset_less=True)
            for register in Register
        }
        # The word of an array, should it be that array's.
        numbers = {
            register: Signal(range(register.value.count), name=f"{register.name.lower()}_number")
            for register in Register
            if register.value.count > 1
        }
        m.d.sync += [
            decoded.eq(access.request & ~access.done),
            fetched.eq(access.request & ~access.done & decoded),
            gathered.eq(access.request & ~access.done & fetched),
        ]
        m.d.sync += [signal.eq(0) for signal in selected.values()]
        with m.If(in_page):
            with m.Switch(offset):
                for register in Register:
                    for index in range(register.value.count):
                        with m.Case(register.at(index) >> 2):
                            m.d.sync += selected[register].eq(1)
        for register, number in numbers.items():
            stride = exact_log2(register.at(1) - register.at(0) >> 2)
            m.d.sync += number.eq((offset - (register.at(0) >> 2))[stride:])

        words = [0] * _WORDS
        for register, word in constants.items():
            words[register.address >> 2] = word
        m.submodules.kept = kept = memory.Memory(
            shape=32, depth=_WORDS, init=words, attrs={"ram_style": "block"}
        )
        keep, kept_word = kept.write_port(), kept.read_port()
        m.d.comb += [
            kept_word.addr.eq(
                Mux(
                    self.command.request,
                    (Register.TABLE_DATA.address >> 2) + self.command.number,
                    offset,
                )
            ),
            keep.addr.eq(offset),
            # A word is written when its access has been decoded, and what is read then is not
            # looked at.
            kept_word.en.eq(~keep.en),
        ]
        # Of the address of the cycle before; what is decoded of it; and what is read at it.
        in_kept, is_constant, is_stale = Signal(), Signal(), Signal()
        constant_words = [register.address >> 2 for register in constants]
        is_idle = Signal()
        m.d.sync += [
            in_kept.eq(in_page & (offset < _WORDS)),
            is_constant.eq(offset <= max(constant_words)),
            is_idle.eq(~self.busy),
        ]
        sources = [
            (Signal(32, name=f"{name}_word", reset_less=True), chosen, word)
            for name, chosen, word in (
                ("kept", in_kept & (is_constant | is_idle & ~is_stale), kept_word.data),
                ("time", selected[Register.TIME_LOW] & is_idle, self.time[:32]),
                ("open", selected[Register.OPEN_MESSAGES] & is_idle, self.open_messages),
                ("high", selected[Register.COUNTERS_HIGH] & is_idle, counter_high),
                ("busy", selected[Register.STATUS], self.busy * DeviceStatus.BUSY),
                *(
                    (
                        f"irq{number}",
                        selected[Register.IRQ_STATUS]
                        & (numbers[Register.IRQ_STATUS] == number)
                        & is_idle,
                        word,
                    )
                    for number, word in enumerate(status_words)
                ),
            )
        ]
        for word, chosen, source in sources:
            with m.If(chosen):
                m.d.sync += word.eq(source)
            with m.Else():
                m.d.sync += word.eq(0)
        moving_word = Signal(16, reset_less=True)
        m.d.sync += moving_word.eq(
            reduce(or_, (Mux(selected[register], word, 0) for register, word in moving.items()))
            | Mux(selected[Register.MTU] & is_stale, _DEFAULT_MTU, 0)
        )

        # What an access does begins when its word has been gathered, in the next cycle.
        counter, command, snapshot = self.counter, self.command, self.snapshot
        begin = fetched & ~gathered & ~access.done
        write = begin & access.write & ~self.busy
        read = begin & ~access.write
        is_copy = selected[Register.SNAPSHOT_LOW] | selected[Register.SNAPSHOT_HIGH]
        read_counter = read & (selected[Register.COUNTERS_LOW] | is_copy) & ~self.busy
        writes = {}
        for register in Register:
            if register.value.access is not AccessMode.RO:
                writes[register] = Signal(name=f"write_{register.name.lower()}")
                m.d.sync += writes[register].eq(write & selected[register])
        is_short = Signal()
        m.d.sync += is_short.eq(
            begin
            & ~read_counter
            & ~(write & selected[Register.TABLE_COMMAND])
            & ~(write & selected[Register.COUNTERS_SNAPSHOT])
        )
        for port, starts in (
            (counter, read_counter),
            (command, write & selected[Register.TABLE_COMMAND]),
            (snapshot, write & selected[Register.COUNTERS_SNAPSHOT]),
        ):
            with m.If(starts):
                m.d.sync += port.request.eq(1)
            with m.Elif(port.done):
                m.d.sync += port.request.eq(0)
        m.d.sync += access.done.eq(is_short | counter.done | command.done | snapshot.done)
        # The low half of a counter, which stays while the high one comes.
        value = data_register(m, access.value)
        with m.If(~counter.done):
            m.d.sync += value.eq(
                reduce(or_, (word for word, _, _ in sources))
                | Mux(is_idle, moving_word, 0)
                | Mux(counter.low, counter.value, 0)
            )
        with m.If(counter.done & ~counter.copy):
            m.d.sync += counter_high.eq(counter.value)
        m.d.comb += [
            counter.index.eq(numbers[Register.COUNTERS_LOW]),
            counter.copy.eq(is_copy),
            counter.word.eq(offset),
            command.row.eq(table_select),
            command.kind.eq(table_select[16:]),
            command.data.eq(row),
        ]
        m.d.sync += data_register(m, command.word).eq(kept_word.data)
        # With the low half, which goes into ``time_word`` in the same cycle.
        with m.If(read & selected[Register.TIME_LOW]):
            m.d.sync += time_high.eq(self.time[32:])
        write_data = writes[Register.TABLE_DATA]
        stale = []
        for register, words in storage.items():
            assert register.value.access is AccessMode.RW
            for index, word in enumerate(words):
                is_word = numbers[register] == index if len(words) > 1 else Const(1, 1)
                was_written = Signal(name=f"{register.name.lower()}_{index}_written")
                with m.If(writes[register] & is_word):
                    m.d.sync += [word.eq(access.data), was_written.eq(1)]
                stale.append(selected[register] & is_word & ~was_written)
        for register, word in flags.items():
            with m.If(writes[register]):
                m.d.sync += word.eq(access.data)
        # A word is kept as wide as it is.
        narrow = {register: len(words[0]) for register, words in storage.items()}
        m.d.sync += is_stale.eq(reduce(or_, stale))
        m.d.comb += [
            keep.en.eq(reduce(or_, (writes[register] for register in storage)) | write_data),
            keep.data.eq(
                Cat(
                    access.data[bit]
                    & ~reduce(
                        or_,
                        (selected[register] for register, width in narrow.items() if width <= bit),
                        Const(0, 1),
                    )
                    for bit in range(32)
                )
            ),
        ]
        for index in range(0, _ROW_BITS, 32):
            with m.If(write_data & (numbers[Register.TABLE_DATA] == index // 32)):
                m.d.sync += row[index : index + 32].eq(access.data)
        with m.If(writes[Register.CONTROL]):
            m.d.sync += [
                self.config.enable.eq((access.data & Control.ENABLE).any()),
                self.reset_request.eq((access.data & Control.RESET).any()),
            ]
        with m.Else():
            m.d.sync += self.reset_request.eq(0)
        write_ring = writes[Register.EVENT_RING]
        m.d.sync += self.event_clear.eq(write_ring)
        with m.If(writes[Register.EVENT_CONSUMER]):
            m.d.sync += self.event_consumer.eq(access.data)
        with m.If(write_ring):
            m.d.sync += [
                ring.log2.eq(access.data),
                ring.enabled.eq(access.data[8]),
                self.event_consumer.eq(0),
            ]
        target, close_row = access.data[16:24], access.data[:16]
        # By the cycle before: the data was there then, and what is closed stands far from it.
        exists = Signal(reset_less=True)
        m.d.sync += exists.eq(
            ((target == CloseTarget.QP) & ~at_least(close_row, parameters.n_qp))
            | ((target == CloseTarget.REGION) & ~at_least(close_row, parameters.n_region))
        )
        with m.If(writes[Register.MESSAGES_CLOSE] & ~self.close.active):
            m.d.sync += [
                self.close.active.eq(exists),
                self.close.target.eq(target),
                self.close.row.eq(close_row),
            ]
        with m.If(self.close.active & self.close_done):
            m.d.sync += self.close.active.eq(0)

        # Interrupts: a CQ that fires in the cycle in which its bit is cleared stays set.
        irq_bits = Signal(parameters.n_cq, reset_less=True)
        is_irq_set = Signal()
        m.d.sync += [
            is_irq_set.eq(self.irq_set),
            irq_bits.eq(
                Mux(
                    self.irq_set | self.irq_clear,
                    1 << self.irq_cq[: exact_log2(parameters.n_cq)],
                    0,
                )
            ),
        ]
        for number, word in enumerate(status_words):
            bits = irq_bits[32 * number :][: len(word)]
            cleared = Signal(len(word), name=f"cleared_{number}", reset_less=True)
            written = writes[Register.IRQ_STATUS] & (numbers[Register.IRQ_STATUS] == number)
            m.d.sync += [
                cleared.eq(Mux(written, access.data, 0)),
                word.eq((word & ~cleared & ~bits) | Mux(is_irq_set, bits, 0)),
            ]
        with m.If(self.event_written):
            m.d.sync += event_status.eq(1)
        with m.Elif(writes[Register.EVENT_STATUS] & access.data[0]):
            m.d.sync += event_status.eq(0)
        m.d.sync += self.irq.eq(irq_enable & (irq_status.any() | event_status))
        return m
