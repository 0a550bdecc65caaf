"""The verbs API over any form of the device.

Names and signatures follow pyverbs where they apply. What differs: a QP's number is its UDP port, a
path MTU is octets of an IP packet, an immediate is a number in no byte order, received octets
begin at the buffer's first (no 40-octet GRH), and there are Write-Record, partial completions and
validity.
"""

from .addressing import AH, GID, AHAttr, GlobalRoute
from .attributes import QPAttr, QPCap, QPInitAttr
from .completion import CQ, CompChannel
from .context import PD, Context, DeviceAttr, PortAttr
from .enums import *  # noqa: F403
from .enums import __all__ as _enums
from .errors import (
    PyverbsError,
    PyverbsRDMAError,
    PyverbsUserError,
    VerbsError,
    VerbsRDMAError,
    VerbsUserError,
)
from .events import AsyncEvent, TerminateReport
from .queue_pair import QP
from .region import MR
from .validity import Validity
from .work import SGE, RecvWR, SendWR
from .work_completion import WC

__all__ = [
    "AH",
    "CQ",
    "GID",
    "MR",
    "PD",
    "QP",
    "SGE",
    "WC",
    "AHAttr",
    "AsyncEvent",
    "CompChannel",
    "Context",
    "DeviceAttr",
    "GlobalRoute",
    "PortAttr",
    "PyverbsError",
    "PyverbsRDMAError",
    "PyverbsUserError",
    "QPAttr",
    "QPCap",
    "QPInitAttr",
    "RecvWR",
    "SendWR",
    "TerminateReport",
    "Validity",
    "VerbsError",
    "VerbsRDMAError",
    "VerbsUserError",
    *_enums,
]
