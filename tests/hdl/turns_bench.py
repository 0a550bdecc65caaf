"""The transmit path's surroundings, wide rings and the receive side's ports as well.

Frames are compared with those of ``uwarp.wire``.
"""

from collections import deque

from transmit_bench import DATA, DATA_TO, IPV4, LKEY, MAC, PEER_MAC, Bench

from uwarp.contract import SEND_WQE, SEND_WQE_EXTENSION, WqeFlag
from uwarp.wire import TAGGED_OPCODES, Opcode, Segment, UdpFrame, ipv4_of, mapped_ipv4, segments

READ = 0x1
PEER = mapped_ipv4(0x0A00_0002)
PEER6 = 0x2001_0DB8 << 96 | 0x1234
OWN6 = 0xFE80 << 112 | 1


class TurnsBench(Bench):
    """Requests and openings of Reads as well. ``opens`` answers openings, ``None`` does not.
    ``told`` are the Terminates that came, taken while ``tells``."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.requests = deque()
        self.openings = []
        self.opens = True
        self.told = []
        self.tells = True
        self._answers = deque()
        self.offered_request = None

    async def cycle(self):
        ctx, dut = self.ctx, self.dut
        # One that came needs no room.
        room = bool(self.requests) and (
            bool(self.requests[0].get("terminate")) or bool(ctx.get(dut.read_room))
        )
        self.set(dut.requests.valid, room)
        tells = self.tells and not self.stalls()
        self.set(dut.terminates.ready, tells)
        if tells and ctx.get(dut.terminates.valid):
            self.told.append(ctx.get(dut.terminates.payload))
        if self.requests and self.requests[0] is not self.offered_request:
            self.offered_request = self.requests[0]
            ctx.set(dut.requests.payload, self.offered_request)
        self.set(dut.read_openings.ready, 1)
        request_taken = ctx.get(dut.requests.valid) and ctx.get(dut.requests.ready)
        opening = ctx.get(dut.read_openings.payload) if ctx.get(dut.read_openings.valid) else None
        answered = bool(self._answers) and self._answers[0] <= self.now
        self.set(dut.opened, answered)
        self.set(dut.opened_ok, bool(self.opens))
        await super().cycle()
        if answered:
            self._answers.popleft()
        if request_taken:
            self.requests.popleft()
        if opening is not None:
            self.openings.append(opening)
            if self.opens is not None:
                self._answers.append(self.now + 20)

    def write_qp(self, qpn, **fields):
        """``set_qp``, and the strobe of the write."""
        self.set_qp(qpn, **fields)
        port = self.dut.qp_written
        self.ctx.set(port.row.as_value(), self.qp[qpn])
        self.ctx.set(port.index, qpn)
        self.ctx.set(port.enable, 1)

    async def written(self):
        await self.cycle()
        self.ctx.set(self.dut.qp_written.enable, 0)
        await self.idle(30)

    def request(self, qpn, offset, size, source=PEER):
        """A Read Request accepted. Returns its fields."""
        rng = self.rng
        fields = {
            "qpn": qpn,
            "source_mac": PEER_MAC,
            "source_ip": source,
            "source_port": rng.getrandbits(16),
            "msn": rng.getrandbits(32),
            "sink_stag": rng.getrandbits(32),
            "sink_to": rng.getrandbits(64),
            "size": size,
            "address": DATA + offset,
        }
        self.requests.append(fields)
        return fields

    def response(self, request):
        """Its frames: device behaviour, 7.8."""
        row = self.qp_fields[request["qpn"]]
        version = 6 if ipv4_of(request["source_ip"]) is None else 4
        size, start, sink = request["size"], request["address"], request["sink_to"]
        frames = []
        for offset, octets in segments(
            Opcode.READ_RESPONSE_RECORD, size, row["path_mtu"], to=sink, ip_version=version
        ):
            segment = Segment(
                opcode=Opcode.READ_RESPONSE_RECORD,
                payload=bytes(self.memory[start + offset : start + offset + octets]),
                last=offset + octets == size,
                stag=request["sink_stag"],
                to=(sink + offset) % 2**64,
                msn=request["msn"],
                mo=offset,
                mlen=size,
            )
            frame = UdpFrame(
                dest_mac=request["source_mac"],
                source_mac=MAC,
                source_ip=IPV4 if version == 4 else OWN6,
                dest_ip=ipv4_of(request["source_ip"]) or request["source_ip"],
                source_port=row["udp_port"],
                dest_port=request["source_port"],
                payload=segment.to_datagram(),
                traffic_class=0,
                hop_limit=64,
                ip_version=version,
            )
            frames.append(frame.encode())
        return frames

    def post_wide(self, qpn, opcode, spans=(), *, inline=None, ipv6=None, vlan=None, **fields):
        """Write a WQE with its extension: SGEs of ``spans``, each an offset in the region and a
        length, or the octets ``inline``. Returns its fields."""
        rng = self.rng
        flags = fields.pop("flags", WqeFlag.SIGNALED)
        flags |= WqeFlag.INLINE if inline is not None else 0
        flags |= WqeFlag.IPV6 if ipv6 is not None else 0
        flags |= WqeFlag.VLAN if vlan is not None else 0
        spans = [*spans, *((rng.randrange(4096), rng.randrange(99)) for _ in range(4))][:4]
        names = ("sge", "sge1", "sge2", "sge3")
        sges = {}
        for name, (offset, octets) in zip(names, spans, strict=True):
            sges |= {f"{name}_addr": DATA_TO + offset, f"{name}_length": octets}
            sges |= {f"{name}_lkey": LKEY}
        wqe = {
            "opcode": opcode,
            "flags": flags,
            "granule_log2": 0,
            "remote_to": rng.getrandbits(64),
            "remote_stag": rng.getrandbits(32),
            "immediate": rng.getrandbits(32),
            "dest_ip": PEER & 0xFFFF_FFFF,
            "dest_ipv6": rng.getrandbits(128) if ipv6 is None else ipv6,
            "dest_port": rng.getrandbits(16),
            "vlan": rng.getrandbits(16) if vlan is None else vlan,
            "dest_mac": PEER_MAC,
            "traffic_class": rng.getrandbits(8),
            "hop_limit": rng.randint(1, 255),
        }
        wqe |= sges | fields
        extension = SEND_WQE_EXTENSION.pack(
            **{item.name: wqe[item.name] for item in SEND_WQE_EXTENSION.fields}
        )
        if inline is not None:
            extension = inline + extension[len(inline) :]
        names = {item.name for item in SEND_WQE.fields}
        entry = SEND_WQE.pack(**{key: value for key, value in wqe.items() if key in names})
        row = self.qp_fields[qpn]
        place = row["sq_addr"] * 64 + self.producer[qpn] % (1 << row["sq_log2"]) * 128
        self.memory[place : place + 128] = entry + extension
        wqe["index"] = self.producer[qpn]
        self.producer[qpn] += 1
        self.ring(qpn)
        return wqe

    def frames_of(self, qpn, wqe, msn, payload):
        """The frames of a good WQE that is no Read."""
        row, flags = self.qp_fields[qpn], wqe["flags"]
        opcode = Opcode(wqe["opcode"])
        version = 6 if flags & WqeFlag.IPV6 else 4
        tagged = opcode in TAGGED_OPCODES
        record = opcode in (Opcode.WRITE_RECORD, Opcode.SEND_IMMEDIATE)
        to = wqe["remote_to"]
        frames = []
        for offset, octets in segments(
            opcode,
            len(payload),
            row["path_mtu"],
            to=to if tagged else 0,
            granule=1 << (wqe["granule_log2"] or 6),
            ip_version=version,
        ):
            has_immediate = opcode is Opcode.SEND_IMMEDIATE or flags & WqeFlag.IMMEDIATE
            solicited = bool(flags & WqeFlag.SOLICITED)
            segment = Segment(
                opcode=Opcode.SEND_SOLICITED if solicited and opcode is Opcode.SEND else opcode,
                payload=payload[offset : offset + octets],
                last=offset + octets == len(payload),
                solicited=record and solicited,
                immediate_valid=record and bool(flags & WqeFlag.IMMEDIATE),
                immediate=wqe["immediate"] if record and has_immediate else 0,
                stag=wqe["remote_stag"] if tagged else 0,
                to=(to + offset) % 2**64 if tagged else 0,
                msn=0 if opcode is Opcode.WRITE else msn,
                mo=0 if opcode is Opcode.WRITE else offset,
                mlen=0 if opcode is Opcode.WRITE else len(payload),
            )
            frames.append(self.frame_of(qpn, wqe, segment))
        return frames

    def frame_of(self, qpn, wqe, segment):
        six = bool(wqe["flags"] & WqeFlag.IPV6)
        return UdpFrame(
            dest_mac=wqe["dest_mac"],
            source_mac=MAC,
            source_ip=OWN6 if six else IPV4,
            dest_ip=wqe["dest_ipv6"] if six else wqe["dest_ip"],
            source_port=self.qp_fields[qpn]["udp_port"],
            dest_port=wqe["dest_port"],
            payload=segment.to_datagram(),
            traffic_class=wqe["traffic_class"],
            hop_limit=wqe["hop_limit"],
            ip_version=6 if six else 4,
            vlan_tags=(0x8100 << 16 | wqe["vlan"],) if wqe["flags"] & WqeFlag.VLAN else (),
        ).encode()

    def octets_of(self, spans):
        return b"".join(bytes(self.memory[DATA + at : DATA + at + n]) for at, n in spans)

    def run(self, script):
        async def with_address(bench):
            bench.ctx.set(bench.dut.config.ipv6, OWN6)
            await script(bench)

        super().run(with_address)

    def opcodes(self):
        """The opcode of each frame to an IPv4 peer that went out."""
        return [frame[43] & 15 for frame in self.frames]
