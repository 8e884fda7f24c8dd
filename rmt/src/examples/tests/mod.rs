use std::collections::HashMap;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::check::place;
use crate::devices::{TOFINO1, TOFINO2};
use crate::{Constant, Gress, Interpreter, Phv, Specialised, State, Verdict, parser};

mod flowlet;
mod rate_limiter;

/// Times at which a clock of 32 bits starts: anywhere, or just before it wraps around or changes its sign.
fn starts() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u32>(),
        (0..20_000u32).prop_map(|before| u32::MAX - before),
        (0..20_000u32).prop_map(|before| (1 << 31) - before),
    ]
    .prop_map(u64::from)
}

/// A frame of IPv4 with ports: a flow of its own for each number.
fn frame(flow: u32) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([0x08, 0x00, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend((0x0a00_0000 | flow >> 8).to_be_bytes());
    frame.extend([10, 255, 0, 1]);
    frame.extend((1000 + (flow & 0xff) as u16).to_be_bytes());
    frame.extend([0, 53, 0, 8, 0, 0]);
    frame
}

struct Sketch;
impl Constant for Sketch {
    const PIPELINE: Pipeline<'static> = sketch::SKETCH;
}

struct HeavyHitters;
impl Constant for HeavyHitters {
    const PIPELINE: Pipeline<'static> = heavy_hitters::HEAVY_HITTERS;
}

/// Both ways of execution, which must agree.
struct Both<C: Constant> {
    interpreter: Interpreter<'static>,
    specialised: Specialised<C>,
}

impl<C: Constant> Both<C> {
    fn new() -> Both<C> {
        Both {
            interpreter: Interpreter::new(const { &C::PIPELINE }),
            specialised: Specialised::default(),
        }
    }

    /// Writes what the control plane writes.
    fn control(&mut self, write: impl Fn(&mut State)) {
        write(&mut self.interpreter.state);
        write(&mut self.specialised.state);
    }

    /// Parses a frame, and passes it through the ingress. `port` has the fields that the port sets.
    fn receive(&mut self, frame: &[u8], port: Phv) -> (Phv, Verdict) {
        let mut phv = port;
        parser::parse(C::PIPELINE.parser, frame, &mut phv).unwrap();
        let mut other = phv;
        let verdict = self.interpreter.pass(Gress::Ingress, &mut phv);
        assert_eq!(verdict, self.specialised.pass(Gress::Ingress, &mut other));
        assert_eq!(phv, other);
        (phv, verdict)
    }

    fn assert_same_state(&self) {
        assert_eq!(self.interpreter.state, self.specialised.state);
    }
}

/// Runs packets of flows, and shows the fields and the digest of each.
fn run<C: Constant>(flows: impl Iterator<Item = u32>, mut see: impl FnMut(u32, &Phv, u32)) {
    let mut both = Both::<C>::new();
    for flow in flows {
        let (phv, verdict) = both.receive(&frame(flow), Phv::default());
        see(flow, &phv, verdict.digest);
    }
    both.assert_same_state();
}

/// Flows of which a few send most packets.
fn skewed(packets: u32) -> impl Iterator<Item = u32> {
    let mut state = 1u32;
    (0..packets).map(move |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let draw = state >> 8;
        if draw.is_multiple_of(4) { draw % 5 } else { 100 + draw % 20_000 }
    })
}

#[test]
fn sketch_never_counts_too_few_packets() {
    let mut sent: HashMap<u32, u32> = HashMap::new();
    let mut over = 0;
    run::<Sketch>(skewed(60_000), |flow, phv, _| {
        let sent = sent.entry(flow).or_default();
        *sent += 1;
        let estimate = phv.get(sketch::COUNT_A);
        assert!(estimate >= *sent, "flow {flow}: {estimate} of {sent}");
        over += u32::from(estimate > *sent + 60);
    });
    // 60,000 packets in 4,096 counters: 15 for each, in the worst of three rows.
    assert!(over < 600, "{over} estimates are far too high");
}

#[test]
fn heavy_flows_are_reported_once_and_light_ones_never() {
    let mut sent: HashMap<u32, u32> = HashMap::new();
    let mut reported: HashMap<u32, u32> = HashMap::new();
    run::<HeavyHitters>(skewed(60_000), |flow, _, digest| {
        *sent.entry(flow).or_default() += 1;
        if digest == heavy_hitters::DIGEST_HEAVY {
            *reported.entry(flow).or_default() += 1;
        }
    });
    for (flow, sent) in sent {
        let expected = u32::from(sent >= heavy_hitters::HEAVY);
        assert_eq!(
            reported.get(&flow).copied().unwrap_or(0),
            expected,
            "flow {flow}, {sent} packets"
        );
    }
}

#[test]
fn packets_without_entries_pass_alike() {
    use crate::{
        Access, Action, Alu, Field, Instruction, Op, Output, Register, Source, Table, register,
    };
    const INDEX: Field = Field { index: 0, bits: 16 };
    const SEEN: Field = Field { index: 1, bits: 32 };
    const COUNT: Action<'static> = Action {
        name: "count",
        access: Some(Access {
            register: 0,
            instruction: &Instruction {
                name: "count",
                alus: &[Alu::low(
                    register::Operation::Add,
                    register::Operand::Memory(register::Word::Low),
                    register::Operand::Constant(1),
                )],
                outputs: &[Output::word(0, register::Origin::Alu(register::Word::Low))],
                ..Instruction::NOTHING
            },
            index: INDEX,
            inputs: [None; 2],
        }),
        ops: &[Op::set(SEEN, Source::Output(0))],
    };
    struct Counter;
    impl Constant for Counter {
        const PIPELINE: Pipeline<'static> = Pipeline {
            registers: &[Register { name: "count", bits: 32, is_pair: false, entries: 4 }],
            ingress: &[Table { actions: &[COUNT], ..Table::NOTHING }],
            ..sketch::SKETCH
        };
    }
    let mut interpreter: Interpreter<'_> = Interpreter::new(&Counter::PIPELINE);
    let mut specialised: Specialised<Counter> = Specialised::default();
    for (index, seen) in [(3, 1), (4, 0), (3, 2), (u32::from(u16::MAX), 0)] {
        let mut phv = Phv::default().with(INDEX, index);
        let mut other = phv;
        interpreter.pass(Gress::Ingress, &mut phv);
        specialised.pass(Gress::Ingress, &mut other);
        assert_eq!((phv, phv.get(SEEN)), (other, seen));
    }
    assert_eq!(interpreter.state, specialised.state);
}

#[test]
fn examples_fit_both_tofinos() {
    for (example, _) in EXAMPLES {
        for device in [TOFINO1, TOFINO2] {
            example.must_fit(&device);
            place(example, &device).must_fit();
        }
    }
    let stages = place(&sketch::SKETCH, &TOFINO2).stages.len();
    // Hashes, rows beside each other, and two comparisons.
    assert_eq!(stages, 4);
}

#[test]
fn packets_that_no_state_accepts_are_refused() {
    use parser::NotParsed::{Rejected, Truncated};
    let parse = |frame: &[u8]| parser::parse(sketch::PARSER, frame, &mut Phv::<32>::default());
    let whole = frame(7);
    assert_eq!(parse(&whole), Ok(38));
    for length in 0..38 {
        assert_eq!(parse(&whole[..length]), Err(Truncated), "{length} bytes");
    }
    let mut other = whole.clone();
    other[12] = 0x86;
    assert_eq!(parse(&other), Err(Rejected));
    // Options before the ports.
    other = whole;
    other[14] = 0x46;
    assert_eq!(parse(&other), Err(Rejected));
}

#[test]
fn fragments_of_a_datagram_have_the_same_flow() {
    let parse = |flags_and_offset: [u8; 2]| {
        let mut fragment = frame(7);
        fragment[20..22].copy_from_slice(&flags_and_offset);
        let mut phv = Phv::<32>::default();
        let headers = parser::parse(sketch::PARSER, &fragment, &mut phv).unwrap();
        (headers, phv.get(sketch::PORTS))
    };
    let first_with_more = [0x20, 0];
    let middle = [0x20, 185];
    let last = [0, 185];
    for fragment in [first_with_more, middle, last] {
        assert_eq!(parse(fragment), (34, 0), "{fragment:?}");
    }
    let not_to_be_fragmented = [0x40, 0];
    assert_eq!(parse(not_to_be_fragmented), (38, 1007 << 16 | 53));
}
