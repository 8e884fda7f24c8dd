//! Both ways to run the pipeline let 100 packets of a source through.

use my_pipeline::{LIMIT, Limit, MOST};
use wave_rmt::check::place;
use wave_rmt::devices::TOFINO1;
use wave_rmt::parser::parse;
use wave_rmt::{Gress, Interpreter, Phv, Specialised};

/// A frame of IPv4 without payload.
fn frame(source: [u8; 4]) -> [u8; 34] {
    let mut frame = [0; 34];
    frame[26..30].copy_from_slice(&source);
    frame
}

#[test]
fn a_source_sends_a_hundred_packets() {
    let mut interpreter: Interpreter<'_> = Interpreter::new(&LIMIT);
    let mut specialised: Specialised<Limit> = Specialised::default();
    for source in [[10, 0, 0, 1], [10, 0, 0, 2]] {
        let mut passed = 0;
        for _ in 0..250 {
            let mut phv = Phv::default();
            parse(LIMIT.parser, &frame(source), &mut phv).unwrap();
            let mut same = phv;
            let verdict = interpreter.pass(Gress::Ingress, &mut phv);
            assert_eq!(verdict, specialised.pass(Gress::Ingress, &mut same));
            passed += i64::from(!verdict.is_dropped);
        }
        assert_eq!(passed, MOST);
    }
}

#[test]
fn three_stages_are_enough() {
    let placement = place(&LIMIT, &TOFINO1);
    assert_eq!(placement.violations, []);
    assert_eq!(placement.stages.len(), 3);
}
