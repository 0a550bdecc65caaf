"""The send completer alone: what of CQE, CQ slot, message slot and response slot each message
frees."""

import random

from amaranth.sim import Simulator

from uwarp.contract import CQE, Parameters, Status
from uwarp_hdl.iwarp.segment import MessageWord, message_words
from uwarp_hdl.iwarp.send_completion import SendCompleter

PARAMETERS = Parameters(n_qp=4, n_region=4)

#: Fields that come with the message, the others are asked for by its slot.
DONE = ("slot", "status", "discard", "tracked", "silent")
WORDS = message_words(PARAMETERS)

#: Fields of a message done, and what comes of it: CQE, retirement with release, slot released.
CASES = {
    "signalled": ({"signaled": 1}, (True, 0, False)),
    "unsignalled": ({}, (False, 1, False)),
    "failed": ({"status": Status.GENERAL_ERR}, (True, 0, False)),
    "of a reset QP": ({"discard": 1, "signaled": 1}, (False, 1, False)),
    "Read": ({"opcode": 1, "signaled": 1, "tracked": 1}, (False, 0, False)),
    "Read unsignalled": ({"opcode": 1, "tracked": 1}, (False, 0, False)),
    "Read without a tracker": ({"opcode": 1, "status": Status.NO_TRACKER}, (True, 0, False)),
    "Read of a reset QP": ({"opcode": 1, "discard": 1}, (False, 1, False)),
    "response": ({"opcode": 0xD, "silent": 1}, (False, None, True)),
    "response failed": (
        {"opcode": 0xD, "silent": 1, "status": Status.GENERAL_ERR},
        (False, None, True),
    ),
    "response of a reset QP": ({"opcode": 0xD, "silent": 1, "discard": 1}, (False, None, True)),
}


def test_what_each_message_frees():
    seed = 5200
    rng = random.Random(seed)
    dut = SendCompleter(PARAMETERS)
    names = [name for name in CASES for _ in range(4)]
    rng.shuffle(names)
    messages = [
        {
            "opcode": 0xC,
            "slot": rng.randrange(60),
            "qpn": rng.randrange(4),
            "cq": rng.randrange(4),
            "index": rng.getrandbits(16),
            "length": rng.getrandbits(32),
            "msn": rng.getrandbits(32),
            "signaled": 0,
        }
        | CASES[name][0]
        for name in names
    ]
    cqes, retired, released = [], [], []
    for name, message in zip(names, messages, strict=True):
        has_cqe, release, is_released = CASES[name][1]
        status = message.get("status", Status.SUCCESS)
        if has_cqe:
            valid = message["length"] if status == Status.SUCCESS else 0
            fields = ("cq", "qpn", "index", "msn", "length", "opcode")
            cqes.append((*(message[field] for field in fields), status, valid))
        if release is not None:
            retired.append((message["slot"], message["qpn"], message["cq"], release))
        if is_released:
            released.append(message["slot"])

    async def testbench(ctx):
        got_cqes, got_retired, got_released = [], [], []
        requested, words = [], []
        completions = dut.completions.requests, dut.completions.words
        waiting, owed, finished = list(messages), 0, 0
        asks = [(0, None)] * 2  # of the last two cycles
        to_pass = len(messages)
        for _ in range(2000):
            ctx.set(dut.done.valid, bool(waiting))
            if waiting:
                done = {name: value for name, value in waiting[0].items() if name in DONE}
                ctx.set(dut.done.payload, done)
            was_ready, asked = asks.pop(0)
            if waiting and was_ready:
                assert asked.slot == waiting[0]["slot"]
                layout = WORDS[MessageWord(asked.word)]
                fields = {name: item for name, item in waiting[0].items() if name in layout.members}
                ctx.set(dut.recalled, layout.const(fields).as_bits())
                ctx.set(dut.recalled_msn, waiting[0]["msn"])
            else:
                ctx.set(dut.recalled, rng.getrandbits(len(dut.recalled)))
                ctx.set(dut.recalled_msn, rng.getrandbits(32))
            ctx.set(dut.recall_ready, rng.getrandbits(1))
            for port in (*completions, dut.retirements, dut.released):
                ctx.set(port.ready, rng.getrandbits(1))
            passes = bool(to_pass) and owed < 3 and rng.getrandbits(1)
            ctx.set(dut.passed, passes)
            to_pass -= passes
            owed += passes
            _, _, *values = await ctx.tick().sample(
                dut.done.valid & dut.done.ready,
                dut.finished,
                dut.completions.requests.valid & dut.completions.requests.ready,
                dut.completions.requests.payload,
                dut.completions.words.valid & dut.completions.words.ready,
                dut.completions.words.payload,
                dut.retirements.valid & dut.retirements.ready,
                dut.retirements.payload,
                dut.released.valid & dut.released.ready,
                dut.released.payload,
                dut.recall_ready,
                dut.recall,
            )
            *values, was_ready, asked = values
            asks.append((was_ready, asked))
            taken, is_finished, completes, request, has_word, word, *values = values
            retires, retirement, *values = values
            assert taken == is_finished
            if taken:
                waiting.pop(0)
                asks = [(0, None)] * 2
                owed -= 1
                finished += 1
                assert owed >= 0, "a message ended before its last frame had left"
            if completes:
                requested.append(request)
            if has_word:
                words.append(word)
            if requested and len(words) == CQE.size // 8:
                request = requested.pop(0)
                cqe = CQE.from_int(sum(word << 64 * at for at, word in enumerate(words)))
                words.clear()
                assert request.urgent == (cqe.status != Status.SUCCESS)
                fields = (cqe.qpn, cqe.wqe_index, cqe.msn, cqe.mlen, cqe.opcode, cqe.status)
                got_cqes.append((request.cq, *fields, cqe.valid))
            if retires:
                fields = (retirement.slot, retirement.qpn, retirement.cq, retirement.release)
                got_retired.append(fields)
            if values[0]:
                got_released.append(values[1])
        assert finished == len(messages), f"{finished} ended; seed {seed}"
        assert got_cqes == cqes, f"seed {seed}"
        assert got_retired == retired, f"seed {seed}"
        assert got_released == released, f"seed {seed}"

    simulator = Simulator(dut)
    simulator.add_clock(6.4e-9)
    simulator.add_testbench(testbench)
    simulator.run()
