//! Fields and registers of Laminar, for all its pipelines.

wave_rmt::fields! {
    /// 1 if a host sends the frame. The port sets it, before the parser.
    FROM_HOST = from_host: 1,
    /// EtherType.
    ETHER_TYPE = ether_type: 16,
    /// IP version and header length.
    VERSION = version: 8,
    /// Length of the IP packet in bytes.
    TOTAL_LENGTH = total_length: 16,
    /// Flags and offset of a fragment.
    FRAGMENT = fragment: 16,
    /// IP protocol.
    PROTOCOL = protocol: 8,
    /// Source address.
    SOURCE = source: 32,
    /// Destination address.
    DESTINATION = destination: 32,
    /// Source and destination port.
    PORTS = ports: 32,
    /// Length of the TCP header in words of 32 bits, in the upper four bits.
    OFFSET = offset: 8,
    /// Flags of the TCP header.
    FLAGS = flags: 8,
    /// The window, not scaled.
    RAW_WINDOW = raw_window: 16,
    /// First four bytes of the TCP options.
    OPTIONS = options: 32,
    /// The peer's timestamp.
    TIMESTAMP = timestamp: 32,
    /// The timestamp that the peer echoes.
    ECHO = echo: 32,
    /// Position in the stream of the first byte that a host sends.
    POSITION = position: 32,
    /// 1 if the connection of a host's frame exists.
    IS_KNOWN = is_known: 1,
    /// Not 0 if it belongs to another context.
    FOREIGN = foreign: 16,

    /// What the packet is, of [`kind`](super::kind).
    KIND = kind: 8,
    /// The connection.
    CONNECTION = connection: 16,
    /// The context of the connection's host.
    CONTEXT = context: 16,
    /// Sequence number of the first byte.
    SEQ = seq: 32,
    /// Number of bytes of payload; for SYNC, what it adds to a register.
    LENGTH = length: 32,
    /// Sequence number after the last byte; for SYNC, what it adds to a register.
    END = end: 32,
    /// 0: a bare acknowledgement. 1: there is payload. 3: a FIN without payload.
    HAS_PAYLOAD = has_payload: 8,
    /// The acknowledged sequence number. In a packet to send: the sequence number of its first byte.
    ACK = ack: 32,
    /// The peer's window in bytes.
    WINDOW = window: 32,
    /// Which register SYNC concerns, of [`sync`](super::transmit::sync).
    TARGET = target: 8,
    /// Most credits after a fast retransmission.
    HALF = half: 32,
    /// The sequence number of the first byte plus the most bytes that it may lie behind; for a pseudo segment its end, for SYNC bytes of
    /// room.
    BOUND = bound: 32,
    /// The acknowledged sequence number plus the most bytes that it may lie behind.
    NEWEST = newest: 32,

    /// Sequence number up to which all bytes are in the host's memory: what is acknowledged.
    LANDED = landed: 32,
    /// Whether the segment starts near the window: result of the comparators at `rx_landed`.
    PLAUSIBLE = plausible: 16,

    /// `rx_next` before this packet.
    OLD = old: 32,
    /// Where the segment lies: result of the comparators at `rx_next`.
    ORDER = order: 16,
    /// The segment's class, of [`class`](super::receive::class).
    CLASS = class: 8,
    /// Offset from `rx_next` of the first byte to copy to the host.
    START = start: 32,
    /// Number of bytes to copy.
    COPY = copy: 32,
    /// Offset behind the last byte from `rx_next`.
    AHEAD = ahead: 32,
    /// `rx_next` after this packet.
    NEXT = next: 32,
    /// Right edge of the window.
    EDGE = edge: 32,
    /// Bytes for which there is room.
    AVAIL = avail: 32,
    /// Whether the segment ends beyond them: result of the comparator at `rx_avail`.
    BEYOND = beyond: 16,
    /// End of the interval out of order, as an offset from `rx_next`.
    TAIL = tail: 32,
    /// `tail` before this packet.
    TAIL_BEFORE = tail_before: 32,
    /// Result of the comparators at `rx_ooo_tail`.
    JOIN = join: 16,
    /// Not 0 if the segment opens the interval.
    OPENED = opened: 32,
    /// Start of the interval, as an offset from `rx_next`.
    HEAD = head: 32,
    /// `head` before this packet.
    HEAD_BEFORE = head_before: 32,
    /// Result of the comparators at `rx_ooo_head`.
    TOUCH = touch: 16,
    /// Bytes that the pseudo segment merges.
    MERGED = merged: 32,
    /// End of the merged bytes: what the host may read up to.
    MERGE_END = merge_end: 32,
    /// 1 if the payload is placed into the host's memory.
    IS_PLACED = is_placed: 8,
    /// Number of this packet in its context's channel.
    PSN = psn: 32,

    /// `tx_next_ack` before this packet.
    UNA = una: 32,
    /// Where the acknowledgement lies: result of the comparators at `tx_next_ack` or `tx_window`.
    NEWS = news: 16,
    /// Sequence number after the last byte that was sent, before this packet.
    SENT = sent: 32,
    /// Bytes that are sent and not acknowledged.
    FLIGHT = flight: 32,
    /// Negative: the acknowledgement is too old, or of bytes that were never sent.
    AGE = age: 32,
    /// Bytes that are newly acknowledged.
    ACKED = acked: 32,
    /// Offset of the first byte to send from `tx_next_ack`; negative if it is acknowledged already.
    SENT_START = sent_start: 32,
    /// Distance from `tx_next_ack`: the bytes that an acknowledgement acknowledges, or the end of bytes to send.
    DISTANCE = distance: 32,
    /// 1 if the first byte to send is acknowledged already.
    IS_STALE = is_stale: 8,
    /// Duplicate acknowledgements in a row.
    DUPACKS = dupacks_seen: 8,
    /// Whether bytes were acknowledged that were never sent: result of the comparator at `tx_avail`.
    UNSENT = unsent: 16,
    /// Whether credits were there: result of the comparator at `tx_credits`.
    PAID = paid: 16,
    /// Whether the peer's window has room: result of the comparator at `tx_remote_avail`.
    ROOM = room: 16,
    /// The peer's window behind `tx_next_ack`, after this packet.
    REMOTE = remote: 32,
    /// Whether the peer's window is the same as before, and not closed: result of the comparators at `tx_remote_avail`.
    STEADY = steady: 16,

    /// Always [`PSEUDO`](super::kind::PSEUDO) in a packet that is mirrored.
    PSEUDO_KIND = pseudo_kind: 8,
    /// Not 0: the packet is dropped.
    DROP = drop: 8,
    /// Not 0: the mirror session.
    MIRROR = mirror: 8,
    /// Not 0: the digest.
    DIGEST = digest: 8,
    /// The mirror session that the packet comes from.
    SESSION = session: 8,
}

wave_rmt::registers! {
    /// Sequence number of the next byte in order.
    RX_NEXT = Register { name: "rx_next", bits: 32, is_pair: false, entries: super::CONNECTIONS },
    /// Bytes for which there is room behind it.
    RX_AVAIL = Register { name: "rx_avail", bits: 32, is_pair: false, entries: super::CONNECTIONS },
    /// End of the interval out of order, as an offset from `rx_next`; 0 without an interval.
    RX_OOO_TAIL = Register { name: "rx_ooo_tail", bits: 32, is_pair: false, entries: super::CONNECTIONS },
    /// Start of the interval, as an offset from `rx_next`.
    RX_OOO_HEAD = Register { name: "rx_ooo_head", bits: 32, is_pair: false, entries: super::CONNECTIONS },
    /// Sequence number of the first byte that is not acknowledged.
    TX_NEXT_ACK = Register { name: "tx_next_ack", bits: 32, is_pair: false, entries: super::CONNECTIONS },
    /// Duplicate acknowledgements in a row.
    TX_DUPACKS = Register { name: "tx_dupacks", bits: 8, is_pair: false, entries: super::CONNECTIONS },
    /// Distance from `tx_next_ack` to the end of what the host has offered, sent or not.
    TX_AVAIL = Register { name: "tx_avail", bits: 32, is_pair: false, entries: super::CONNECTIONS },
    /// Bytes that may be sent.
    TX_CREDITS = Register { name: "tx_credits", bits: 32, is_pair: false, entries: super::CONNECTIONS },
    /// Bytes that the peer has room for behind `tx_next_ack`.
    TX_REMOTE_AVAIL = Register { name: "tx_remote_avail", bits: 32, is_pair: false, entries: super::CONNECTIONS },
    /// Bytes acknowledged since congestion control looked.
    ACKED_BYTES = Register { name: "acked_bytes", bits: 32, is_pair: false, entries: super::CONNECTIONS },
    /// Those of them whose acknowledgements echo a mark.
    MARKED_BYTES = Register { name: "marked_bytes", bits: 32, is_pair: false, entries: super::CONNECTIONS },
    /// Fast retransmissions since congestion control looked.
    FAST_RETRANSMITS = Register { name: "fast_retransmits", bits: 8, is_pair: false, entries: super::CONNECTIONS },
    /// Number of the next packet to a context.
    CONTEXT_PSN = Register { name: "context_psn", bits: 32, is_pair: false, entries: super::CONTEXTS },
    /// Sequence number of the next byte in order (low), and right edge of the window (high).
    RX_WINDOW = Register { name: "rx_window", bits: 32, is_pair: true, entries: super::CONNECTIONS },
    /// Sequence number up to which all bytes are in the host's memory (low), and right edge of the window (high).
    RX_LANDED = Register { name: "rx_landed", bits: 32, is_pair: true, entries: super::CONNECTIONS },
    /// Sequence number of the first byte that is not acknowledged (low), and after the last byte that was sent (high).
    TX_WINDOW = Register { name: "tx_window", bits: 32, is_pair: true, entries: super::CONNECTIONS },
}
