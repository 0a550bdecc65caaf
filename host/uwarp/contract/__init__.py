"""The device contract: registers, doorbells, ring entries, table rows, counters. Data, no
behaviour.

What the device does with them is written in ``docs/device.md``.
"""

from .counters import COUNTER_MEANINGS, DROPS, Counter, outcome_sum
from .descriptors import CQE, EVENT, RECV_WQE, SEND_WQE
from .enums import (
    Access,
    CloseTarget,
    CqeFlag,
    EventType,
    QpState,
    Status,
    Table,
    WqeFlag,
)
from .parameters import BURST_WORDS, Parameters
from .registers import (
    ADDRESS_BITS,
    DOORBELL_BASE,
    DOORBELL_PAGE,
    DOORBELLS,
    MAGIC,
    REGISTERS,
    TICK_CYCLES,
    VERSION,
    AccessMode,
    Control,
    DeviceStatus,
    Doorbell,
    Filter,
    Register,
    RegisterInfo,
    counter_address,
    doorbell_address,
)
from .structure import Field, Structure
from .tables import (
    CQ_ENTRY,
    MODERATION_ENTRY,
    PORT_ENTRY,
    QP_ENTRY,
    REGION_ENTRY,
    TABLES,
    port_rows,
)

__all__ = [
    "ADDRESS_BITS",
    "BURST_WORDS",
    "COUNTER_MEANINGS",
    "CQE",
    "CQ_ENTRY",
    "DOORBELLS",
    "DOORBELL_BASE",
    "DOORBELL_PAGE",
    "DROPS",
    "EVENT",
    "MAGIC",
    "MODERATION_ENTRY",
    "PORT_ENTRY",
    "QP_ENTRY",
    "RECV_WQE",
    "REGION_ENTRY",
    "REGISTERS",
    "SEND_WQE",
    "TABLES",
    "TICK_CYCLES",
    "VERSION",
    "Access",
    "AccessMode",
    "CloseTarget",
    "Control",
    "Counter",
    "CqeFlag",
    "DeviceStatus",
    "Doorbell",
    "EventType",
    "Field",
    "Filter",
    "Parameters",
    "QpState",
    "Register",
    "RegisterInfo",
    "Status",
    "Structure",
    "Table",
    "WqeFlag",
    "counter_address",
    "doorbell_address",
    "outcome_sum",
    "port_rows",
]
