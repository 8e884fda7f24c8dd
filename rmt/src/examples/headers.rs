//! Headers that the examples parse: Ethernet, IPv4 without options, and the ports of TCP and UDP.
//!
//! Only the first fragment of a datagram has ports. The parser reads none of any fragment, so that all have the same flow.

/// Declares fields for these headers, the given fields after them, and `PARSER` for both.
macro_rules! flow_fields {
    ($($more:tt)*) => {
        $crate::fields! {
            /// EtherType.
            ETHER_TYPE = ether_type: 16,
            /// IP version and header length.
            VERSION = version: 8,
            /// Flags and offset of a fragment.
            FRAGMENT = fragment: 16,
            /// IP protocol.
            PROTOCOL = protocol: 8,
            /// Source address.
            SOURCE = source: 32,
            /// Destination address.
            DESTINATION = destination: 32,
            /// Both ports, the source's first.
            PORTS = ports: 32,
            $($more)*
        }

        /// The parser: other packets are refused.
        pub const PARSER: &[$crate::parser::ParserState<'static>] = &{
            use $crate::parser::{Case, Extract, Next, ParserState, Select};
            const fn equal(field: $crate::Field, value: u32, next: Next) -> Case {
                Case { field, mask: value | 0xff, value, next }
            }
            [
                ParserState {
                    name: "ethernet",
                    extracts: &[Extract { field: ETHER_TYPE, offset_bits: 96 }],
                    advance: 14,
                    next: Select {
                        cases: &[Case { field: ETHER_TYPE, mask: 0xffff, value: 0x0800, next: Next::State(1) }],
                        otherwise: Next::Reject,
                    },
                },
                ParserState {
                    name: "ipv4",
                    extracts: &[
                        Extract { field: VERSION, offset_bits: 0 },
                        Extract { field: FRAGMENT, offset_bits: 48 },
                        Extract { field: PROTOCOL, offset_bits: 72 },
                        Extract { field: SOURCE, offset_bits: 96 },
                        Extract { field: DESTINATION, offset_bits: 128 },
                    ],
                    advance: 20,
                    // 4 for the version, and 5 words: no options.
                    next: Select { cases: &[equal(VERSION, 0x45, Next::State(2))], otherwise: Next::Reject },
                },
                ParserState {
                    name: "fragment",
                    extracts: &[],
                    advance: 0,
                    next: Select {
                        // Neither more fragments nor an offset.
                        cases: &[Case { field: FRAGMENT, mask: 0x3fff, value: 0, next: Next::State(3) }],
                        otherwise: Next::Accept,
                    },
                },
                ParserState {
                    name: "transport",
                    extracts: &[],
                    advance: 0,
                    next: Select {
                        cases: &[equal(PROTOCOL, 6, Next::State(4)), equal(PROTOCOL, 17, Next::State(4))],
                        otherwise: Next::Accept,
                    },
                },
                ParserState {
                    name: "ports",
                    extracts: &[Extract { field: PORTS, offset_bits: 0 }],
                    advance: 4,
                    next: Select { cases: &[], otherwise: Next::Accept },
                },
            ]
        };
    };
}
pub(super) use flow_fields;
