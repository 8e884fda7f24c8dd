use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use wave_core::clock::{Clock, Nanos};
use wave_core::link::{
    Dma, Doorbell, Home, LINE_WORDS, Mapping, Port, Side, Span, Ticket, Waiter, Window,
};

use super::*;
use crate::costs::Costs;
use crate::doorbell::EventFd;
use crate::memory::Memory;

const LINES: u32 = 64;
const START: u64 = 1_000_000;

/// First lines of the NIC region's parts, by the host's page type.
const UC: u32 = 0;
const WC: u32 = 16;
const WT: u32 = 48;

type Manual = ModelPort<ManualTime>;

struct Link {
    memory: Arc<Memory>,
    costs: Costs,
    time: ManualTime,
}

impl Link {
    fn new(name: &str) -> Link {
        let extra = extra_lines(LINES, LINES);
        let (memory, _fd) = Memory::create("test", LINES, LINES, extra).unwrap();
        let costs = Costs::builtin(name).unwrap();
        Link { memory: Arc::new(memory), costs, time: ManualTime::new(Nanos(START)) }
    }

    fn host(&self) -> Manual {
        self.host_seeded(1)
    }

    fn host_seeded(&self, seed: u64) -> Manual {
        let nic = |line, lines| Span { home: Home::Nic, line, lines };
        let mut pages = vec![];
        if !self.costs.coherent {
            pages.push((nic(WC, WT - WC), Mapping::WriteCombining));
            pages.push((nic(WT, LINES - WT), Mapping::WriteThrough));
        }
        self.port(Side::Host, &pages, seed)
    }

    fn agent(&self) -> Manual {
        self.port(Side::Agent, &[], 2)
    }

    fn port(&self, side: Side, pages: &[(Span, Mapping)], seed: u64) -> Manual {
        let time = self.time.clone();
        ModelPort::new(self.memory.clone(), side, &self.costs, pages, time, seed).unwrap()
    }

    fn pass(&self, ns: u64) {
        self.time.spend(Nanos(ns));
    }

    /// How long `action` keeps its context busy.
    fn cost<R>(&self, action: impl FnOnce() -> R) -> (R, u64) {
        let before = self.time.now();
        let result = action();
        (result, self.time.now().since(before).0)
    }
}

fn nic(port: &Manual) -> &ModelWindow<ManualTime> {
    port.window(Home::Nic)
}

fn host_memory(port: &Manual) -> &ModelWindow<ManualTime> {
    port.window(Home::Host)
}

#[test]
fn a_forgotten_publish_stays_invisible() {
    let link = Link::new("mount-evans");
    let (host, agent) = (link.host(), link.agent());
    let ((), spent) = link.cost(|| nic(&host).write_line(WC, &[1, 2], 3));
    assert_eq!(spent, 0);
    link.pass(1_000_000_000);
    assert_eq!(nic(&agent).load(WC, 7), 0);
    let ((), spent) = link.cost(|| nic(&host).publish());
    assert_eq!(spent, link.costs.line_drain.nanos().0);
    assert_eq!(nic(&agent).load(WC, 7), 0);
    link.pass(374);
    assert_eq!(nic(&agent).load(WC, 7), 0);
    link.pass(1);
    assert_eq!(nic(&agent).load(WC, 7), 3);
    let mut words = [9; 7];
    nic(&agent).read_line(WC, &mut words);
    assert_eq!(words, [1, 2, 0, 0, 0, 0, 0]);
    assert_eq!(host.charges().line_drains, Tally { count: 1, ns: link.costs.line_drain.nanos().0 });
}

#[test]
fn a_fence_publishes() {
    let link = Link::new("mount-evans");
    let (host, agent) = (link.host(), link.agent());
    nic(&host).store(WC, 0, 5);
    nic(&host).fence();
    link.pass(375);
    assert_eq!(nic(&agent).load(WC, 0), 5);
}

#[test]
fn a_forgotten_flush_serves_stale_lines_for_ever() {
    let link = Link::new("mount-evans");
    let (host, agent) = (link.host(), link.agent());
    let (value, spent) = link.cost(|| nic(&host).load(WT, 7));
    assert_eq!((value, spent), (0, 750));
    nic(&agent).write_line(WT, &[1], 2);
    link.pass(1_000_000_000);
    let (value, spent) = link.cost(|| nic(&host).load(WT, 7));
    assert_eq!((value, spent), (0, 0));
    assert_eq!(host.charges().stale_hits, 1);
    let ((), spent) = link.cost(|| nic(&host).flush(WT));
    assert_eq!(spent, 100);
    let (value, spent) = link.cost(|| nic(&host).load(WT, 7));
    assert_eq!((value, spent), (2, 750));
    let (value, spent) = link.cost(|| nic(&host).load(WT, 0));
    assert_eq!((value, spent), (1, 0));
    let charges = host.take_charges();
    assert_eq!(charges.far_loads, Tally { count: 2, ns: 1500 });
    assert_eq!(charges.total_ns(), 1600);
    assert_eq!((charges.cache_hits, charges.stale_hits), (2, 1));
    assert_eq!(host.charges(), Charges::default());
}

#[test]
fn a_prefetch_hides_latency() {
    let link = Link::new("mount-evans");
    let (host, agent) = (link.host(), link.agent());
    nic(&agent).write_line(WT, &[1], 2);
    let ((), spent) = link.cost(|| nic(&host).prefetch(WT));
    assert_eq!(spent, 0);
    link.pass(700);
    let (value, spent) = link.cost(|| nic(&host).load(WT, 7));
    assert_eq!((value, spent), (2, 50));
    nic(&host).flush(WT);
    nic(&host).prefetch(WT);
    link.pass(750);
    let (value, spent) = link.cost(|| nic(&host).load(WT, 7));
    assert_eq!((value, spent), (2, 0));
    let charges = host.charges();
    assert_eq!((charges.prefetches, charges.prefetch_hits), (2, 1));
    assert_eq!(charges.prefetch_waits, Tally { count: 1, ns: 50 });
    assert_eq!(charges.far_loads.count, 0);
}

#[test]
fn a_prefetch_takes_the_line_as_it_is_when_issued() {
    let link = Link::new("mount-evans");
    let (host, agent) = (link.host(), link.agent());
    nic(&host).prefetch(WT);
    nic(&agent).write_line(WT, &[1], 2);
    link.pass(750);
    assert_eq!(nic(&host).load(WT, 7), 0);
    // A prefetch leaves a cached line as it is.
    nic(&host).prefetch(WT);
    link.pass(750);
    assert_eq!(nic(&host).load(WT, 7), 0);
}

#[test]
fn a_prefetched_line_leaves_the_residue_once() {
    let mut link = Link::new("mount-evans");
    link.costs.prefetch_residue.ns = 260.0;
    let host = link.host();
    nic(&host).prefetch(WT);
    link.pass(1_000);
    assert_eq!(link.cost(|| nic(&host).load(WT, 7)).1, 260);
    assert_eq!(link.cost(|| nic(&host).load(WT, 0)).1, 0);
}

#[test]
fn uncached_accesses_cost_a_transfer_each() {
    let link = Link::new("mount-evans");
    let host = link.host();
    let mut words = [0; 6];
    assert_eq!(link.cost(|| nic(&host).read_line(UC, &mut words)).1, 6 * 750);
    assert_eq!(link.cost(|| nic(&host).write_line(UC, &[1, 2, 3, 4, 5], 6)).1, 6 * 50);
    assert_eq!(host.charges().far_stores, Tally { count: 6, ns: 300 });
    assert_eq!(link.cost(|| host_memory(&host).load(0, 0)).1, 0);
    assert_eq!(link.cost(|| host_memory(&host).store(0, 0, 1)).1, 0);
}

#[test]
fn posted_stores_arrive_in_order() {
    let link = Link::new("mount-evans");
    let (host, agent) = (link.host(), link.agent());
    // Uncached words, then a write-combined line, then a word again.
    nic(&host).store(UC, 0, 1);
    nic(&host).store(UC + 1, 0, 2);
    nic(&host).write_line(WC, &[3; 7], 3);
    nic(&host).publish();
    nic(&host).store(UC + 2, 0, 4);
    let mut last = 0;
    for _ in 0..2_000 {
        let arrived = [nic(&agent).load(UC + 2, 0), nic(&agent).load(WC, 7)];
        let arrived = [arrived[0], arrived[1], nic(&agent).load(UC + 1, 0)];
        let arrived = [arrived[0], arrived[1], arrived[2], nic(&agent).load(UC, 0)];
        let count = arrived.iter().filter(|value| **value != 0).count();
        assert_eq!(&arrived[4 - count..], &[4, 3, 2, 1][4 - count..]);
        assert!(count >= last);
        last = count;
        link.pass(1);
    }
    assert_eq!(last, 4);
}

#[test]
fn a_partly_filled_line_is_evicted_in_any_order_word_by_word() {
    let orders: std::collections::HashSet<_> = (0..20)
        .map(|seed| {
            let link = Link::new("mount-evans");
            let (host, agent) = (link.host_seeded(seed), link.agent());
            for word in 0..4 {
                nic(&host).store(WC, word, 1);
            }
            // Ten more lines than there are buffers push the first one out.
            for line in 1..=10 {
                nic(&host).write_line(WC + line, &[1; 7], 1);
            }
            assert_eq!(host.charges().line_drains.count, 1);
            let mut order = vec![];
            for _ in 0..2_000 {
                let words = (0..4).filter(|word| nic(&agent).load(WC, *word) == 1);
                let new: Vec<_> = words.filter(|word| !order.contains(word)).collect();
                assert!(new.len() <= 1, "two words of a partly filled line arrived at once");
                order.extend(new);
                link.pass(1);
            }
            assert_eq!(order.len(), 4);
            assert_eq!(nic(&agent).load(WC + 1, 7), 0);
            order
        })
        .collect();
    assert!(orders.len() > 3, "always the same order: {orders:?}");
}

#[test]
fn reading_back_proves_arrival() {
    let link = Link::new("mount-evans");
    let (host, agent) = (link.host(), link.agent());
    nic(&host).write_line(WC, &[1], 2);
    nic(&host).fence();
    assert_eq!(nic(&agent).load(WC, 7), 0);
    nic(&host).load(UC, 0);
    assert_eq!(nic(&agent).load(WC, 7), 2);
    // Words of a partly filled line arrive late, but are pushed as well.
    for word in 0..4 {
        nic(&host).store(WC + 1, word, 3);
    }
    nic(&host).fence();
    nic(&host).load(UC, 0);
    for word in 0..4 {
        assert_eq!(nic(&agent).load(WC + 1, word), 3);
    }
}

#[test]
fn reading_across_pushes_what_the_peer_had_posted() {
    let link = Link::new("mount-evans");
    let (host, agent) = (link.host(), link.agent());
    host_memory(&agent).write_line(3, &[1], 2);
    host_memory(&agent).fence();
    assert_eq!(host_memory(&host).load(3, 7), 0);
    nic(&host).load(UC, 0);
    assert_eq!(host_memory(&host).load(3, 7), 2);
}

type Action = Box<dyn FnOnce()>;

/// A clock that performs an action at a given time, whichever task runs then.
struct Scripted {
    time: ManualTime,
    script: RefCell<Option<(u64, Action)>>,
}

impl Clock for Scripted {
    fn now(&self) -> Nanos {
        self.time.now()
    }
}

impl Timebase for Scripted {
    fn spend(&self, span: Nanos) {
        let end = self.now() + span;
        let due = self.script.borrow_mut().take_if(|(at, _)| *at <= end.0);
        if let Some((at, act)) = due {
            self.time.spend_until(Nanos(at));
            act();
        }
        self.time.spend_until(end);
    }
}

/// Each side stores, fences, and looks for the other's store: one of them must see it. The host
/// looks by reading across the link; `decisions` is where the agent stores.
fn park_at_once(decisions: Home) {
    for lead in 0..1_100 {
        let link = Link::new("mount-evans");
        let agent = Rc::new((link.agent(), Cell::new(false)));
        let acting = agent.clone();
        let act = move || {
            let (port, saw) = &*acting;
            port.window(decisions).store(WT, 7, 1);
            port.window(decisions).fence();
            saw.set(nic(port).load(UC, 0) == 1);
        };
        let script = RefCell::new(Some((START + lead, Box::new(act) as Action)));
        let time = Scripted { time: link.time.clone(), script };
        let memory = link.memory.clone();
        let host = ModelPort::new(memory, Side::Host, &link.costs, &[], time, 1).unwrap();
        host.window(Home::Nic).store(UC, 0, 1);
        host.window(Home::Nic).fence();
        host.window(Home::Nic).load(UC, 0);
        let host_saw = host.window(decisions).load(WT, 7) == 1;
        // One more load, in case the agent had not acted yet.
        host.window(Home::Nic).load(UC, 0);
        assert!(host_saw || agent.1.get(), "both missed each other at {lead} ns");
    }
}

#[test]
fn of_two_sides_that_park_at_once_one_sees_the_other() {
    park_at_once(Home::Nic);
}

#[test]
fn of_two_sides_that_park_at_once_one_sees_the_other_with_pushed_decisions() {
    park_at_once(Home::Host);
}

#[test]
fn a_context_sees_its_own_stores() {
    let link = Link::new("mount-evans");
    let (host, agent) = (link.host(), link.agent());
    nic(&host).load(WT, 0);
    for line in [UC, WC, WT] {
        nic(&host).store(line, 0, 7);
        assert_eq!(nic(&host).load(line, 0), 7);
    }
    // This includes stores that are evicted late, word by word in any order.
    for last in 0..7 {
        let line = WC + 1 + last as u32;
        for word in 0..7 {
            nic(&host).store(line, word, 3);
        }
        nic(&host).publish();
        assert_eq!(nic(&host).load(line, last), 3);
    }
    host_memory(&agent).store(5, 1, 8);
    assert_eq!(host_memory(&agent).load(5, 1), 8);
    nic(&host).store(WT + 1, 0, 9);
    nic(&host).prefetch(WT + 1);
    assert_eq!(nic(&host).load(WT + 1, 0), 9);
}

#[test]
fn stores_to_one_word_are_seen_in_order() {
    let link = Link::new("mount-evans");
    let (host, agent) = (link.host(), link.agent());
    let mut last = 0;
    for value in 1..=100 {
        nic(&host).store(UC, 0, value);
        let seen = nic(&agent).load(UC, 0);
        assert!(seen >= last && seen <= value);
        last = seen;
    }
    assert_eq!(last, 99);
    assert!(host.charges().stalls.count > 0);
}

#[test]
fn an_agent_reaches_host_memory_by_its_copy_engine() {
    let link = Link::new("mount-evans");
    let (host, agent) = (link.host(), link.agent());
    host_memory(&host).write_line(0, &[1], 2);
    let mut words = [0; 8];
    assert_eq!(link.cost(|| host_memory(&agent).read_line(0, &mut words)).1, 2_000);
    assert_eq!(words, [1, 0, 0, 0, 0, 0, 0, 2]);
    assert_eq!(link.cost(|| host_memory(&agent).write_line(1, &[3], 4)).1, 0);
    assert_eq!(link.cost(|| host_memory(&agent).publish()).1, 200);
    link.pass(999);
    assert_eq!(host_memory(&host).load(1, 7), 0);
    link.pass(1);
    assert_eq!(host_memory(&host).load(1, 7), 4);
    assert_eq!(host_memory(&host).load(1, 0), 3);
}

#[test]
fn an_agent_may_map_its_own_memory_uncached() {
    let link = Link::new("mount-evans");
    let all = Span { home: Home::Nic, line: 0, lines: LINES };
    let agent = link.port(Side::Agent, &[(all, Mapping::Uncached)], 1);
    let mut words = [0; 6];
    assert_eq!(link.cost(|| nic(&agent).read_line(0, &mut words)).1, 6 * 98);
    assert_eq!(link.cost(|| nic(&agent).store(0, 0, 1)).1, 98);
    assert_eq!(agent.charges().near_accesses.count, 7);
}

#[test]
fn copies_arrive_whole_and_out_of_order() {
    let mut overtaken = false;
    for seed in 0..20 {
        let link = Link::new("mount-evans");
        let host = link.host();
        let agent = link.port(Side::Agent, &[], seed);
        nic(&agent).write_line(0, &[1; 7], 1);
        nic(&agent).write_line(1, &[2; 7], 2);
        let copy = |line| {
            let from = Span { home: Home::Nic, line, lines: 1 };
            agent.dma().copy(from, Span { home: Home::Host, line, lines: 1 })
        };
        let tickets: [Ticket; 2] = [copy(0), copy(1)];
        for _ in 0..2_000 {
            for (line, ticket) in (0u32..).zip(tickets) {
                let mut words = [0; 8];
                host_memory(&host).read_line(line, &mut words);
                let value = u64::from(line) + 1;
                let expected = if agent.dma().is_done(ticket) { value } else { 0 };
                assert_eq!(words, [expected; 8]);
            }
            overtaken |= agent.dma().is_done(tickets[1]) && !agent.dma().is_done(tickets[0]);
            link.pass(1);
        }
        assert!(agent.dma().is_done(tickets[0]) && agent.dma().is_done(tickets[1]));
        assert_eq!(agent.charges().copies, Tally { count: 2, ns: 400 });
    }
    assert!(overtaken);
}

#[test]
fn a_coherent_link_charges_for_changed_lines_only() {
    let mut link = Link::new("coherent");
    link.costs.posted_flight.ns = 100.0;
    let (host, agent) = (link.host(), link.agent());
    assert_eq!(link.cost(|| nic(&host).load(0, 0)), (0, 0));
    assert_eq!(link.cost(|| nic(&agent).write_line(0, &[1], 2)).1, 0);
    assert_eq!(nic(&agent).load(0, 7), 2);
    assert_eq!(link.cost(|| nic(&host).load(0, 7)), (0, 0));
    link.pass(100);
    assert_eq!(link.cost(|| nic(&host).load(0, 7)), (2, 200));
    assert_eq!(link.cost(|| nic(&host).load(0, 0)), (1, 0));
    // A prefetch hides the transfer, and a writer is not charged for its own line.
    nic(&agent).store(0, 0, 5);
    link.pass(100);
    nic(&host).prefetch(0);
    link.pass(150);
    assert_eq!(link.cost(|| nic(&host).load(0, 0)), (5, 50));
    assert_eq!(link.cost(|| nic(&agent).load(0, 0)), (5, 0));
    assert_eq!(host.charges().line_transfers, Tally { count: 1, ns: 200 });
}

#[test]
fn a_kick_takes_its_flight() {
    let link = Link::new("mount-evans");
    let fd = EventFd::new().unwrap();
    let end = |fd: EventFd| {
        ModelDoorbell::new(link.memory.clone(), 3, fd, &link.costs, link.time.clone()).unwrap()
    };
    let (agent, host) = (end(fd.try_clone().unwrap()), end(fd));
    assert!(!host.wait(Some(std::time::Duration::ZERO)));
    assert_eq!(link.cost(|| agent.ring()).1, 340);
    link.pass(10);
    let (rung, spent) = link.cost(|| host.wait(None));
    assert!(rung);
    assert_eq!(spent, link.costs.kick_flight.nanos().0 - 10 + 350);
    assert_eq!(agent.take_charges().sent, Tally { count: 1, ns: 340 });
    assert_eq!(host.take_charges().received, Tally { count: 1, ns: 350 });
}

#[test]
fn false_stamps_of_the_peer_do_not_hold_up_this_side() {
    let link = Link::new("mount-evans");
    let (host, agent) = (link.host(), link.agent());
    for word in link.memory.extra() {
        word.store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
    }
    let fd = EventFd::new().unwrap();
    fd.ring();
    let (memory, time) = (link.memory.clone(), link.time.clone());
    let bell = ModelDoorbell::new(memory, 0, fd, &link.costs, time).unwrap();
    let ((), spent) = link.cost(|| {
        nic(&host).store(UC, 0, 1);
        nic(&host).load(UC, 0);
        nic(&host).load(WT, 0);
        host_memory(&host).load(0, 0);
        host_memory(&agent).load(0, 0);
        bell.wait(None);
    });
    assert!(spent < 20_000, "spent {spent} ns");
}

#[test]
fn spans_beyond_the_memory_are_refused() {
    let link = Link::new("mount-evans");
    let refusal = |span, mapping| {
        let (memory, time) = (link.memory.clone(), link.time.clone());
        ModelPort::new(memory, Side::Host, &link.costs, &[(span, mapping)], time, 0).unwrap_err()
    };
    let far = Span { home: Home::Nic, line: 0, lines: 1 };
    assert_eq!(refusal(far, Mapping::WriteBack), ModelError::FarWriteBack(far));
    let outside = Span { home: Home::Nic, line: LINES, lines: 1 };
    assert!(matches!(refusal(outside, Mapping::Uncached), ModelError::Outside { .. }));
    let (small, _fd) = Memory::create("test", LINES, LINES, 1).unwrap();
    let time = link.time.clone();
    let error = ModelPort::new(Arc::new(small), Side::Host, &link.costs, &[], time, 0).unwrap_err();
    assert_eq!(error, ModelError::NoRoom);
}

#[test]
#[should_panic(expected = "line 64 lies outside a region of 64 lines")]
fn a_line_outside_the_region_panics() {
    let link = Link::new("mount-evans");
    nic(&link.host()).load(LINES, 0);
}

#[test]
fn a_stage_takes_its_lines_one_by_one_and_passes_others() {
    let lines = Span { home: Home::Nic, line: 4, lines: 2 };
    let stage = Stage::new(lines, Nanos(100), |words| words[0] != 0);
    let time = VirtualTime::new().for_staged_window(1, vec![stage]);
    let seen =
        |home, line, word, arrives| time.staged(home, line, &[word; LINE_WORDS], Nanos(arrives)).0;
    assert_eq!(seen(Home::Nic, 4, 1, 1_000), 1_100);
    assert_eq!(seen(Home::Nic, 5, 1, 1_010), 1_200, "the line waits for the one before it");
    assert_eq!(seen(Home::Nic, 5, 0, 1_020), 1_020, "the stage does not take these words");
    assert_eq!(seen(Home::Nic, 6, 1, 1_030), 1_030, "another line");
    assert_eq!(seen(Home::Host, 4, 1, 1_040), 1_040, "in other memory");
    assert_eq!(seen(Home::Nic, 4, 1, 5_000), 5_100);
}
