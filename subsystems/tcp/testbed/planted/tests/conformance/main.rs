//! The contract of a data path (docs/adr/0055, 0111), as one model of operations that every data path runs, and faults that it
//! must catch. To run another data path, add it to `over_each_data_path`. The histories are the same in each run; PROPTEST_CASES
//! asks for more of them.
//!
//! The model has two data paths, so that connections move between them. Hosts lose and repeat requests, peers send what they
//! like, copies and transmissions end in any order, and the control plane names connections that have gone. After each operation
//! the model checks what must hold at any time; at the end a fair host and a fair peer must be able to finish.

mod model;
mod operation;
mod peer;

use model::{Broken, Model, Rule, SUPER_BYTES};
use operation::{Ack, Arrival, Operation, PLACES, operation};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use wave_tcp::datapath::Settings;
use wave_tcp::datapaths::DatapathKind;
use wave_tcp::planted::{Planted, plant};
use wave_tcp::trace::Trace;
use wave_tcp_testbed_planted::{By, Data, Runs};

use crate::peer::MAC;

type Bytes = Vec<u8>;

/// Operations of a history, at most.
const OPERATIONS_MAX: usize = 300;

/// Makes one of the two data paths of a model, by its place.
type Make = fn(usize, Settings) -> Data<Bytes>;

fn run(make: Make, operations: &[Operation], super_bytes: u32) -> Result<(), Broken> {
    let made = [0, 1].map(|place| {
        let settings =
            Settings { mac: MAC, super_bytes, flows: PLACES as u32, key: (place as u64, 7) };
        make(place, settings)
    });
    Model::new(made).run(operations)
}

/// Runs histories until one breaks a rule, and returns it. PROPTEST_CASES asks for more than `histories`.
fn broken(make: Make, histories: u32) -> Option<(Option<Rule>, String)> {
    let cases = Config::default().cases.max(histories);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner =
        TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let histories = (
        prop::collection::vec(operation(), 1..OPERATIONS_MAX),
        prop_oneof![Just(0), Just(SUPER_BYTES)],
    );
    let found = runner.run(&histories, |(operations, super_bytes)| {
        let outcome = run(make, &operations, super_bytes);
        outcome.map_err(|broken| TestCaseError::fail(broken.to_string()))
    });
    match found {
        Ok(()) => None,
        Err(TestError::Fail(why, (operations, super_bytes))) => {
            // Histories over threads may go another way.
            let rule = run(make, &operations, super_bytes).err().map(|broken| broken.rule);
            Some((rule, format!("{why}\nsuper-packets of {super_bytes}: {operations:#?}")))
        }
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}

fn keeps_the_contract(make: Make, histories: u32) {
    if let Some((_, what)) = broken(make, histories) {
        panic!("{what}");
    }
}

fn made(kind: DatapathKind, settings: Settings) -> Data<Bytes> {
    Box::new(kind.make(settings, Trace::new(0).into()))
}

macro_rules! over_each_data_path {
    ($($name:ident: $make:expr, $histories:literal;)*) => { $(
        #[test]
        fn $name() {
            keeps_the_contract($make, $histories);
        }
    )* };
}

over_each_data_path! {
    flextoe_keeps_the_contract: |_, settings| made(DatapathKind::FlexToe, settings), 1_000;
    laminar_keeps_the_contract: |_, settings| made(DatapathKind::Laminar, settings), 1_000;
    connections_move_between_flextoe_and_laminar: |place, settings| {
        made([DatapathKind::FlexToe, DatapathKind::Laminar][place], settings)
    }, 1_000;
    inline_stages_with_sack_keep_the_contract:
        |_, settings| Runs::Inline.datapath(settings, By::Sack), 1_000;
    inline_stages_with_go_back_n_keep_the_contract:
        |_, settings| Runs::Inline.datapath(settings, By::GoBackN), 1_000;
    connections_move_between_recoveries: |place, settings| {
        Runs::Inline.datapath(settings, [By::Sack, By::GoBackN][place])
    }, 1_000;
    stages_in_virtual_time_keep_the_contract: |place, settings| {
        Runs::VirtualTime(place as u64).datapath(settings, [By::Sack, By::GoBackN][place])
    }, 500;
    connections_move_between_executors: |place, settings| {
        [Runs::Inline, Runs::VirtualTime(9)][place].datapath(settings, By::Sack)
    }, 500;
    stages_in_threads_keep_the_contract:
        |_, settings| Runs::Threads.datapath(settings, By::Sack), 256;
}

/// The model catches each of these faults, by one of these rules.
#[test]
fn faults_break_the_rule_that_forbids_them() {
    let faults: [(Planted, &[Rule]); 8] = [
        (Planted::NoSequencer, &[Rule::AfterCopy]),
        (Planted::NoChecksum, &[Rule::Copies]),
        (Planted::EarlyAcknowledgement, &[Rule::AfterCopy, Rule::Window]),
        (Planted::EarlyFinDropped, &[Rule::Fin]),
        (Planted::WindowShrunk, &[Rule::Window]),
        (Planted::FrozenWhileCopying, &[Rule::Frozen]),
        (Planted::OldNamesObeyed, &[Rule::Names]),
        (Planted::BudgetExceeded, &[Rule::Budget]),
    ];
    for (fault, rules) in faults {
        plant(Some(fault));
        let found = broken(|_, settings| Runs::Inline.datapath(settings, By::Sack), 10_000);
        plant(None);
        let (rule, what) = found.unwrap_or_else(|| panic!("{fault:?} is not found"));
        assert!(rule.is_some_and(|rule| rules.contains(&rule)), "{fault:?} breaks {what}");
    }
}

/// An engine that takes over does not know of a delayed acknowledgement, so a frozen connection has none.
#[test]
fn a_copy_that_ends_in_a_frozen_connection_is_acknowledged_at_once() {
    let arrive = |bytes| {
        let (skip, ack, window) = (0, Ack::All, u16::MAX);
        let (is_last, is_marked, is_corrupt) = (false, false, false);
        Operation::Arrive(0, Arrival { skip, bytes, ack, window, is_last, is_marked, is_corrupt })
    };
    let complete = [(); 3].map(|()| Operation::Complete(0));
    // The host has answered, so that the second segment's acknowledgement may wait for data.
    let mut operations = vec![Operation::Install(0), arrive(1), Operation::Poll(8)];
    operations.extend(complete);
    operations.extend([
        Operation::Poll(8),
        Operation::Write { at: 0, bytes: 1, tells: true },
        Operation::Poll(8),
    ]);
    operations.extend(complete);
    operations.extend([arrive(1), Operation::Poll(8), Operation::Freeze(0), Operation::Poll(8)]);
    operations.extend(complete);
    operations.extend([
        Operation::Poll(8),
        Operation::Wait { micros: 100_000 },
        Operation::Poll(8),
    ]);
    let outcome = run(|_, settings| Runs::Inline.datapath(settings, By::Sack), &operations, 0);
    assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
}
