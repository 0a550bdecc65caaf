"""What a Terminate says of a datagram that was dropped (device behaviour, 7.11), in few gates.

The codes differ in a few bits only (RFC 5040, section 4.8): these go from the receive side to the
frame, which puts the others back.
"""

from functools import reduce
from operator import and_, or_

from amaranth.hdl import Cat, Const, Mux, Value

from uwarp.contract import TERMINATE_CODES, Terminated

__all__ = ["CODE_WIDTH", "code_or", "is_reported", "terminate_code", "whole_code"]

CODE_WIDTH = 16

_CODES = [code for codes in TERMINATE_CODES.values() for code in codes.values()]
_ALIKE = reduce(and_, _CODES)
_VARYING = [bit for bit in range(CODE_WIDTH) if (reduce(or_, _CODES) ^ _ALIKE) >> bit & 1]
#: Low bits of a counter's number that tell those of TERMINATE_CODES apart.
_TELLING = next(
    width
    for width in range(1, 7)
    if len({counter % (1 << width) for counter in TERMINATE_CODES}) == len(TERMINATE_CODES)
)


def is_reported(drop: Value) -> Value:
    """Whether a datagram that ends in the counter ``drop`` may be answered by a Terminate."""
    return drop.matches(*TERMINATE_CODES)


def terminate_code(drop: Value, is_send: Value, is_request: Value) -> Value:
    """Upper half of the control word, of 16 bits, for a datagram that ends in ``drop``, one that
    ``is_reported``. Only the bits that :func:`whole_code` looks at are right."""
    low = drop[:_TELLING]

    def told(bit):
        terms = []
        for counter, codes in TERMINATE_CODES.items():
            untagged, tagged, request = (
                codes[kind] >> bit & 1
                for kind in (Terminated.UNTAGGED, Terminated.TAGGED, Terminated.READ_REQUEST)
            )
            value = Mux(is_request, request, Mux(is_send, untagged, tagged))
            if untagged == tagged == request:
                value = Const(untagged)
            terms.append((low == counter % (1 << _TELLING)) & value)
        return reduce(or_, terms)

    return Cat(told(bit) if bit in _VARYING else Const(0) for bit in range(CODE_WIDTH))


def code_or(report: Value, code: Value, other: Value) -> Value:
    """With ``report`` the ``code`` of :func:`terminate_code`, else ``other``, of 16 bits."""
    return Cat(
        Mux(report, code[bit], other[bit]) if bit in _VARYING else other[bit]
        for bit in range(CODE_WIDTH)
    )


def whole_code(code: Value) -> Value:
    """The 16 bits of a code of which :func:`terminate_code` has made those that differ."""
    return Cat(
        code[bit] if bit in _VARYING else Const(_ALIKE >> bit & 1) for bit in range(CODE_WIDTH)
    )
