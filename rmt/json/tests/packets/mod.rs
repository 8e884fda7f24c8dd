//! Random packets through a pipeline.
#![allow(dead_code, reason = "each test uses a part")]

use rand::Rng;
use wave_rmt::parser::parse;
use wave_rmt::{Entry, Field, Gress, Interpreter, Phv, Pipeline};

const GRESSES: [Gress; 2] = [Gress::Ingress, Gress::Egress];

/// Passes packets through both, which must agree.
pub fn behave_equally(one: &Pipeline<'_>, other: &Pipeline<'_>, rng: &mut impl Rng) {
    let mut machine = Interpreter::<32>::new(one);
    let mut other_machine = Interpreter::<32>::new(other);
    for _ in 0..1000 {
        let mut phv = fields(one, rng);
        let mut other_phv = phv;
        for gress in GRESSES {
            let verdict = machine.pass(gress, &mut phv);
            assert_eq!(verdict, other_machine.pass(gress, &mut other_phv));
            assert_eq!(phv, other_phv);
            assert_eq!(one.mirrored(verdict.mirror, &phv), other.mirrored(verdict.mirror, &phv));
        }
    }
    assert_eq!(machine.state, other_machine.state);
}

/// Parses packets and passes them, with entries of the control plane.
pub fn pass_some(pipeline: &Pipeline<'_>, rng: &mut impl Rng) {
    let mut machine = Interpreter::<32>::new(pipeline);
    for gress in GRESSES {
        for table in 0..pipeline.tables(gress).len() {
            let entry = Entry { action: rng.random_range(0..4), data: rng.random() };
            // A table takes one kind of entries, or none.
            let _ = machine.state.insert(gress, table, [0; 10], entry);
            let _ = machine.state.set(gress, table, 0, Some(entry));
        }
    }
    for _ in 0..8 {
        let mut phv = if rng.random() { fields(pipeline, rng) } else { Phv::default() };
        let bytes: [u8; 64] = rng.random();
        let _ = parse(pipeline.parser, &bytes[..rng.random_range(0..=bytes.len())], &mut phv);
        for gress in GRESSES {
            let verdict = machine.pass(gress, &mut phv);
            if let Some(mut copy) = pipeline.mirrored(verdict.mirror, &phv) {
                machine.pass(Gress::Egress, &mut copy);
            }
        }
    }
}

/// Random fields, half of them small.
fn fields(pipeline: &Pipeline<'_>, rng: &mut impl Rng) -> Phv {
    let mut phv = Phv::default();
    for (index, declared) in pipeline.fields.iter().enumerate() {
        let value: u32 = rng.random();
        let value = if rng.random() { value } else { value % 5 };
        phv.set(Field { index: index as u8, bits: declared.bits }, value);
    }
    phv
}
