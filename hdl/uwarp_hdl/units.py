"""Every unit of the gateware by name, made as the NIC makes it: what ``uwarp synth`` looks up."""

from collections.abc import Callable

from amaranth.lib import wiring

from uwarp.contract import Parameters

from .csr.counters import EventCounters
from .csr.unit import ControlUnit
from .dma.read import ReadArbiter
from .dma.write import WriteArbiter
from .iwarp.check import SegmentCheck
from .iwarp.closed import ClosedMessages
from .iwarp.complete import CompletionUnit
from .iwarp.completion_queue import CompletionQueue
from .iwarp.cqe_writer import CqeWriter
from .iwarp.dispatch import Dispatch
from .iwarp.events import EventUnit, FullQueues
from .iwarp.faults import FailedQueuePairs
from .iwarp.fetch import WqeFetch
from .iwarp.frame_builder import FrameBuilder
from .iwarp.frame_check import FrameCheck
from .iwarp.frame_sender import FrameSender
from .iwarp.message_close import MessageClose
from .iwarp.moderation import ModerationTimers
from .iwarp.payload_reader import PayloadReader
from .iwarp.place import Placer
from .iwarp.receive import DatagramReceiver
from .iwarp.receive_prefetch import ReceivePrefetch, default_depth
from .iwarp.receive_queue import ReceiveQueue
from .iwarp.responder import Responder
from .iwarp.scheduler import SendScheduler
from .iwarp.segment import Segmenter
from .iwarp.snapshot import MapSnapshot
from .iwarp.token_bucket import TokenBuckets
from .iwarp.trackers import Trackers
from .iwarp.transmit import TransmitPath
from .iwarp.validity_map import ValidityMap
from .layouts import Datagram, PacketBeat
from .net.crc_check import CrcCheck
from .net.datagram_queue import DatagramQueue
from .net.group_copies import GroupCopies
from .net.group_table import GroupTable
from .net.loopback import Loopback
from .net.realign import Realigner
from .net.receive import FrameReceiver
from .nic import EVENT_SOURCES, Nic
from .receive_side import ReceiveSide
from .stream.packet_fifo import PacketFifo
from .stream.queue import Queue

__all__ = ["UNITS"]

Factory = Callable[[Parameters], wiring.Component]

UNITS: dict[str, Factory] = {
    "queue": lambda parameters: Queue(Datagram, 64),
    "packet_fifo": lambda parameters: PacketFifo(PacketBeat, 2048),
    "crc_check": lambda parameters: CrcCheck(2),
    "realigner": lambda parameters: Realigner(),
    "datagram_queue": lambda parameters: DatagramQueue(64),
    "frame_receiver": FrameReceiver,
    "loopback": Loopback,
    "group_table": GroupTable,
    "group_copies": GroupCopies,
    "segment_check": SegmentCheck,
    "receive_queue": ReceiveQueue,
    "receive_prefetch": lambda parameters: ReceivePrefetch(parameters, default_depth(parameters)),
    "dispatch": Dispatch,
    "trackers": Trackers,
    "closed_messages": ClosedMessages,
    "placer": Placer,
    "validity_map": ValidityMap,
    "map_snapshot": MapSnapshot,
    "completion_queue": CompletionQueue,
    "message_close": lambda parameters: MessageClose(64),
    "failed_queue_pairs": FailedQueuePairs,
    "datagram_receiver": DatagramReceiver,
    "receive_side": ReceiveSide,
    "send_scheduler": SendScheduler,
    "wqe_fetch": WqeFetch,
    "responder": Responder,
    "token_buckets": TokenBuckets,
    "segmenter": Segmenter,
    "payload_reader": PayloadReader,
    "frame_builder": FrameBuilder,
    "frame_check": lambda parameters: FrameCheck(),
    "frame_sender": FrameSender,
    "transmit_path": TransmitPath,
    "cqe_writer": lambda parameters: CqeWriter(clients=2),
    "moderation_timers": lambda parameters: ModerationTimers(parameters.n_cq),
    "completion_unit": lambda parameters: CompletionUnit(parameters, clients=2),
    "event_unit": lambda parameters: EventUnit(clients=6),
    "full_queues": FullQueues,
    "write_arbiter": lambda parameters: WriteArbiter(4),
    "read_arbiter": lambda parameters: ReadArbiter(3, parked=1),
    "event_counters": lambda parameters: EventCounters(EVENT_SOURCES),
    "control_unit": lambda parameters: ControlUnit(parameters, EVENT_SOURCES),
    "nic": Nic,
}
