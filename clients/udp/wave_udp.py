"""A client of `wave agent --udp`. Its retries never execute a non-idempotent request twice.

    import wave_udp
    client = wave_udp.Client("127.0.0.1", 50052)
    status, reply = client.call(method=1, message=b"...", idempotent=True)

clients/udp/src/wire.rs describes the format.
"""

import errno
import secrets
import socket
import struct
import time

HEADER = struct.Struct("<HBBBBHQQQI")
MAGIC, VERSION = 0x7657, 1
IDEMPOTENT, REFUSED, REPLY = 0x01, 0x40, 0x80
OK, CHALLENGE, OUTCOME_UNKNOWN = 0, 64, 65
DATAGRAM_MAX = 65_507
# Errors after which a retry may succeed: no front listens yet, the datagram exceeded the path's MTU (the kernel fragments the
# retry), there is no route yet, or a queue is full.
MAY_PASS = {errno.ECONNREFUSED, errno.EMSGSIZE, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENOBUFS}


class Refused(Exception):
    """The request was not executed. Arguments: a gRPC status code and a text."""


class OutcomeUnknown(Exception):
    """The agent or the host ended meanwhile: the request was executed once or not at all."""


class NoAnswer(Exception):
    """No answer arrived. A non-idempotent request may have been executed once."""


class Client:
    """Makes one request at a time, over its own socket."""

    def __init__(self, host, port, patience_s=5.0):
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        self.socket = socket.socket(family, kind, protocol)
        self.socket.connect(address)
        self.patience_s = patience_s
        # Random, so that a stranger who cannot see the traffic cannot guess the next id.
        self.id = secrets.randbits(62)
        self.incarnation = self.cookie = 0

    def call(self, method, message=b"", idempotent=False, class_=0, work_ns=0):
        """Returns the method's status (a gRPC code) and its reply."""
        if HEADER.size + len(message) > DATAGRAM_MAX:
            raise ValueError("the message does not fit a datagram")
        if not (0 <= method < 1 << 16 and 0 <= class_ < 1 << 8 and 0 <= work_ns < 1 << 32):
            raise ValueError("method, class_ or work_ns is out of range")
        self.id += 1
        # The same in all tries: a later agent then knows that an earlier one may have executed the request.
        incarnation, cookie = self.incarnation, self.cookie
        flags = IDEMPOTENT if idempotent else 0
        end, retry_s = time.monotonic() + self.patience_s, 0.01
        while True:
            header = HEADER.pack(
                MAGIC, VERSION, flags, class_, 0, method, self.id, incarnation, cookie, work_ns
            )
            try:
                self.socket.send(header + message)
            except OSError as error:
                if error.errno not in MAY_PASS:
                    raise
            answer = self._answer(min(time.monotonic() + retry_s, end))
            if answer is None:
                if time.monotonic() >= end:
                    raise NoAnswer(f"no answer within {self.patience_s} s")
                retry_s = min(2 * retry_s, 1.0)
                continue
            flags_of, status, new_incarnation, new_cookie, reply = answer
            # Late: adopting the new incarnation could execute the request again.
            if status == CHALLENGE and incarnation != 0 and not idempotent:
                continue
            if status in (CHALLENGE, OUTCOME_UNKNOWN):
                self.incarnation, self.cookie = new_incarnation, new_cookie
                incarnation, cookie = new_incarnation, new_cookie
            if status == OUTCOME_UNKNOWN:
                raise OutcomeUnknown("the agent or the host ended meanwhile")
            if status == CHALLENGE:
                continue
            if flags_of & REFUSED:
                raise Refused(status, reply.decode(errors="replace"))
            return status, reply

    def _answer(self, until):
        while (left := until - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                datagram = self.socket.recv(DATAGRAM_MAX)
            except TimeoutError:
                return None
            except OSError as error:
                if error.errno not in MAY_PASS:
                    raise
                continue
            if len(datagram) < HEADER.size:
                continue
            magic, version, flags, _, status, _, id_, incarnation, cookie, _ = HEADER.unpack_from(datagram)
            if (magic, version, id_) == (MAGIC, VERSION, self.id) and flags & REPLY:
                return flags, status, incarnation, cookie, datagram[HEADER.size :]
        return None
