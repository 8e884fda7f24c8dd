//! Damage in a window: a message arrives unchanged, or the damage is detected. Without checksums, a soak test that wrote into a
//! window got 34 wrong values of 3,839, in calls that ended with OK.

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use wave_core::endpoint::{Receiver, Sender};
use wave_core::layout::{Config, Layout};
use wave_core::link::{Home, LINE_WORDS, Side};
use wave_core::message::Subject;
use wave_core_testing::nasty::{Link, NastyPort};
use wave_core_testing::{seeds, shape};
use wave_rpc::boxes::{BadFrame, FRAME_BYTES_MAX, Inbox, Outbox};
use wave_rpc::extents::{Extents, PayloadConfig};
use wave_rpc::wire::{Head, MESSAGE};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// The message arrived unchanged.
    Right,
    /// A different message arrived.
    Wrong,
    /// An error: the peer, or the memory, is at fault.
    Damage,
    /// Nothing arrived, which the watchdog would detect.
    Nothing,
}

struct Rig {
    link: Link,
    host: (NastyPort, Outbox),
    agent: (NastyPort, Inbox, Extents),
}

impl Rig {
    fn new(name: &str, payloads: PayloadConfig, is_checked: bool, seed: u64) -> Rig {
        let (messages, decisions) = shape(name, 64, 64);
        let pools = payloads.pools();
        let config = Config { messages, decisions, pools, prestage: 0, ..Config::coherent(1) };
        let layout = Layout::new(config).unwrap();
        let link = Link::new(&layout, name == "coherent", seed);
        let [host, agent] = [Side::Host, Side::Agent].map(|side| link.port(side, &layout));
        let sender = Sender::new(&layout.messages[0], Side::Host);
        let mut outbox = Outbox::new(sender, Extents::new(&layout, 0, Side::Host));
        let mut inbox = Inbox::new(Receiver::new(&layout.messages[0], Side::Agent));
        if is_checked {
            outbox.check();
            inbox.check();
        }
        let extents = Extents::new(&layout, 0, Side::Agent);
        Rig { link, host: (host, outbox), agent: (agent, inbox, extents) }
    }

    /// Sends a message, flips a bit of the window, and receives.
    fn run(mut self, rng: &mut Pcg32) -> Found {
        let mut message = vec![0; rng.random_range(1..2_000)];
        rng.fill(&mut message[..]);
        let head = Head::new(MESSAGE, Subject { id: 1, generation: 1 });
        let head = Head { lengths: [0, message.len() as u32], ..head };
        let (port, outbox) = &mut self.host;
        outbox.send(port, &head, &[], &message).unwrap();
        for _ in 0..1_000 {
            outbox.flush(port).unwrap();
            outbox.publish(port);
            self.link.tick();
        }
        // Picks a word that was written.
        loop {
            let home = if rng.random() { Home::Nic } else { Home::Host };
            let line = rng.random_range(0..self.link.lines(home));
            let word = rng.random_range(0..LINE_WORDS);
            let was = self.link.peek(home, line, word);
            if was != 0 {
                self.link.poke(home, line, word, was ^ 1 << rng.random_range(0..64));
                break;
            }
        }
        let (port, inbox, extents) = &mut self.agent;
        for _ in 0..1_000 {
            match inbox.next(port, 1, extents) {
                Err(_) => return Found::Damage,
                Ok(Some(frame)) => {
                    let is_right = frame.second == message && frame.head == head;
                    return if is_right { Found::Right } else { Found::Wrong };
                }
                Ok(None) => self.link.tick(),
            }
        }
        Found::Nothing
    }
}

#[test]
fn checksums_detect_every_damaged_message() {
    let payloads = PayloadConfig { extents: 8, lines: 8, inline_max: 300 };
    for name in ["coherent", "pcie"] {
        let mut wrong = [0, 0];
        let mut found = 0;
        for seed in seeds(400) {
            for (is_checked, wrong) in [false, true].into_iter().zip(&mut wrong) {
                let mut rng = Pcg32::seed_from_u64(seed);
                match Rig::new(name, payloads, is_checked, seed).run(&mut rng) {
                    Found::Wrong => *wrong += 1,
                    Found::Damage if is_checked => found += 1,
                    _ => {}
                }
            }
        }
        assert_eq!(wrong[1], 0, "{name}: damage was not detected");
        assert!(wrong[0] > 0 && found > 0, "{name}: {wrong:?} wrong, {found} found: no damage");
    }
}

/// Otherwise a reply that its sender may send ends the host.
#[test]
fn the_longest_frame_is_as_long_with_a_checksum() {
    for is_checked in [false, true] {
        let Rig { link, host: (port, mut outbox), agent: (its, mut inbox, mut extents) } =
            Rig::new("coherent", PayloadConfig::NONE, is_checked, 1);
        let lengths = [1, FRAME_BYTES_MAX as u32 - 1];
        let head = Head { lengths, ..Head::new(MESSAGE, Subject::default()) };
        outbox.send(&port, &head, b"a", &vec![7; lengths[1] as usize]).unwrap();
        let mut took = 0;
        // The head is judged when it arrives.
        while took < 10 {
            outbox.flush(&port).unwrap();
            outbox.publish(&port);
            link.tick();
            assert!(matches!(inbox.next(&its, 64, &mut extents), Ok(None)), "{is_checked}");
            took += u32::from(inbox.took());
        }
    }
}

#[test]
fn frames_with_and_without_checksums_do_not_mix() {
    let send = |sends: bool, wants: bool| {
        let Rig { link, host: (port, mut outbox), agent: (its, mut inbox, mut extents) } =
            Rig::new("coherent", PayloadConfig::NONE, false, 1);
        if sends {
            outbox.check();
        }
        if wants {
            inbox.check();
        }
        let head = Head { lengths: [2, 40], ..Head::new(MESSAGE, Subject::default()) };
        outbox.send(&port, &head, b"ab", &[7; 40]).unwrap();
        for _ in 0..1_000 {
            outbox.publish(&port);
            link.tick();
            match inbox.next(&its, 64, &mut extents) {
                Ok(None) => {}
                came => {
                    return came
                        .map(|frame| frame.map(|frame| (frame.head, frame.second.to_vec())));
                }
            }
        }
        panic!("no frame arrived");
    };
    let head = Head { lengths: [2, 40], ..Head::new(MESSAGE, Subject::default()) };
    let whole = Ok(Some((head, vec![7; 40])));
    // An agent requires checksums only if its host's frames have them.
    assert_eq!(
        [send(false, false), send(true, true), send(true, false)],
        [(); 3].map(|()| whole.clone())
    );
    assert_eq!(send(false, true), Err(BadFrame::Unchecked(MESSAGE)));
}
