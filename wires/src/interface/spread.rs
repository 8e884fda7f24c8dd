//! The program by which the kernel spreads an interface's frames over several sockets.

/// How TCP segments are spread over wires: by a hash of the peer's IPv4 address and both ports, with three odd multipliers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Multipliers of the address, of both ports, and of the mixture.
    pub multipliers: [u32; 3],
}

/// `IPPROTO_TCP`.
const TCP: u32 = 6;
/// The bits of a fragment's offset.
const FRAGMENT: u32 = 0x1fff;
/// Operand: the accumulator, or the index register.
const BPF_A: u32 = 0x10;
const BPF_X: u32 = 0x08;

impl Spread {
    /// The number of the wire, out of `wires`, for segments from this address. `ports` has the peer's in the upper half.
    pub fn number(self, address: u32, ports: u32, wires: u32) -> u32 {
        let [one, two, three] = self.multipliers;
        let sum = address.wrapping_mul(one) ^ ports.wrapping_mul(two);
        ((sum ^ sum >> 15).wrapping_mul(three) >> 16) % wires
    }

    /// A program that returns [`Spread::number`]; 0 for frames that are not whole TCP segments over IPv4.
    pub(super) fn program(self, wires: u32) -> [libc::sock_filter; 22] {
        use libc::{
            BPF_ABS, BPF_ALU, BPF_B, BPF_H, BPF_IND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_LDX,
            BPF_MEM, BPF_MISC, BPF_MSH, BPF_MUL, BPF_RET, BPF_ST, BPF_TAX, BPF_W, BPF_XOR,
        };
        const BPF_JSET: u32 = 0x40;
        const BPF_RSH: u32 = 0x70;
        const BPF_MOD: u32 = 0x90;
        // Offsets from the IP header, wherever the frame begins for the kernel.
        let ip = |at: u32| (libc::SKF_NET_OFF as u32).wrapping_add(at);
        let step = |code: u32, k: u32| filter(code, k, [0, 0]);
        let [one, two, three] = self.multipliers;
        let protocol = (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL) as u32;
        [
            step(BPF_LD | BPF_H | BPF_ABS, protocol),
            filter(BPF_JMP | BPF_JEQ | BPF_K, libc::ETH_P_IP as u32, [0, 19]),
            step(BPF_LD | BPF_B | BPF_ABS, ip(9)),
            filter(BPF_JMP | BPF_JEQ | BPF_K, TCP, [0, 17]),
            step(BPF_LD | BPF_H | BPF_ABS, ip(6)),
            filter(BPF_JMP | BPF_JSET | BPF_K, FRAGMENT, [15, 0]),
            step(BPF_LDX | BPF_B | BPF_MSH, ip(0)),
            step(BPF_LD | BPF_W | BPF_IND, ip(0)),
            step(BPF_ALU | BPF_MUL | BPF_K, two),
            step(BPF_ST, 0),
            step(BPF_LD | BPF_W | BPF_ABS, ip(12)),
            step(BPF_ALU | BPF_MUL | BPF_K, one),
            step(BPF_LDX | BPF_W | BPF_MEM, 0),
            step(BPF_ALU | BPF_XOR | BPF_X, 0),
            step(BPF_MISC | BPF_TAX, 0),
            step(BPF_ALU | BPF_RSH | BPF_K, 15),
            step(BPF_ALU | BPF_XOR | BPF_X, 0),
            step(BPF_ALU | BPF_MUL | BPF_K, three),
            step(BPF_ALU | BPF_RSH | BPF_K, 16),
            step(BPF_ALU | BPF_MOD | BPF_K, wires),
            step(BPF_RET | BPF_A, 0),
            step(BPF_RET | BPF_K, 0),
        ]
    }
}

/// One instruction of a filter. It skips `jt` instructions if its comparison holds, and `jf` if it does not.
pub(super) fn filter(code: u32, k: u32, [jt, jf]: [u8; 2]) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}
