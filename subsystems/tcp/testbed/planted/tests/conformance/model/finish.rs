//! The end of a history: a fair host and a fair peer, and what an idle connection must do.

use wave_core::clock::Nanos;
use wave_tcp::datapath::{Command, Fin, Limits, Output};
use wave_tcp::packet::{Flags, Parsed, TcpSegment, parse};
use wave_tcp_testbed_planted::CONTEXT;

use super::rules::{Broken, Checked, Rule};
use super::{Model, PLACES};
use crate::operation::{Ack, Arrival};
use crate::peer::MSS;

/// Rounds of a millisecond in which a fair peer and host must finish.
const ROUNDS_MAX: usize = 3_000;
/// Rounds without progress after which the stand-in for the control plane's timer expires.
const TIMEOUT_ROUNDS: usize = 300;

impl Model {
    /// Lets everything come to its end: hosts read and tell, peers send again and acknowledge, timers expire.
    pub fn finish(&mut self) -> Checked {
        for place in 0..PLACES {
            let Some(one) = &self.connections[place] else { continue };
            // Those that are exported or freezing go on first.
            if one.exported.is_none() && (one.is_freezing || one.may_reset) {
                self.freeze_and_export(place)?;
            }
            let is_over = self.connections[place].as_ref().is_some_and(|one| one.may_reset);
            for moves in [true, false] {
                self.restore(place, moves)?;
            }
            if is_over {
                continue;
            }
            let Some(one) = &mut self.connections[place] else { continue };
            if one.exported.is_some() {
                // Its place is taken in both data paths.
                self.connections[place] = None;
                continue;
            }
            (one.is_ended, one.peer_is_ended) = (true, true);
        }
        for place in 0..PLACES {
            self.finish_connection(place)?;
            self.check_commands(place)?;
            self.check_repeated(place)?;
        }
        for which in 0..self.gone.len() {
            self.name_gone(which, Command::Challenge)?;
        }
        for place in 0..PLACES {
            if self.connections[place].is_some() {
                self.freeze_and_export(place)?;
                self.connections[place] = None;
            }
        }
        Ok(())
    }

    pub fn freeze_and_export(&mut self, place: usize) -> Checked {
        let Some(one) = self.connections[place].as_mut().filter(|one| one.exported.is_none())
        else {
            return Ok(());
        };
        (one.is_freezing, one.is_frozen) = (true, false);
        let (home, id) = (one.home, one.id);
        self.homes[home].data.freeze(id);
        self.settle(home)?;
        self.check_all()?;
        rule!(Frozen, self.homes[home].data.frozen(id), "{id} never becomes frozen");
        self.export(place)?;
        let one = self.connections[place].as_ref().expect("it stays until it is restored");
        let state = one.exported.expect("it was frozen");
        rule!(
            Export,
            state.sending.written <= one.told_written,
            "{id}: {} bytes are written, but {} were told of",
            state.sending.written,
            one.told_written
        );
        Ok(())
    }

    fn finish_connection(&mut self, place: usize) -> Checked {
        let Some(one) = &mut self.connections[place] else { return Ok(()) };
        one.window_max = 1 << 20;
        let (home, id) = (one.home, one.id);
        let limits = Limits { window_bytes: 1 << 20, ..Limits::default() };
        self.homes[home].data.pace(id, limits);
        let mut idle = 0;
        let mut last = None;
        for _ in 0..ROUNDS_MAX {
            let one = self.connections[place].as_mut().expect("it stays");
            one.read = one.notified.0;
            self.tell(place, true)?;
            let one = self.connections[place].as_ref().expect("it stays");
            let fin = self.homes[home].data.inspect(id).map(|state| state.sending.fin);
            let is_done = one.acknowledged == one.peer_sent
                && one.fin_acknowledged
                && one.notified == (one.peer_sent, one.written)
                && one.notified_end
                && fin == Some(Fin::Acknowledged);
            if is_done {
                return Ok(());
            }
            let now = (one.acknowledged, one.peer_acked, one.notified, one.notified_end);
            idle = if last == Some(now) { idle + 1 } else { 0 };
            last = Some(now);
            let room = one.edge.saturating_sub(one.acknowledged).min(MSS.into()) as u16;
            let arrival = Arrival {
                skip: 0,
                bytes: room,
                ack: Ack::All,
                window: u16::MAX,
                is_marked: false,
                is_corrupt: false,
                is_last: false,
            };
            self.arrive(place, &arrival)?;
            self.settle(home)?;
            self.check_all()?;
            if idle > 0 && idle % TIMEOUT_ROUNDS == 0 {
                self.command(place, Command::Retransmit);
            }
            self.now = self.now + Nanos::from_millis(1);
        }
        let one = self.connections[place].as_ref().expect("it stays");
        let state = self.homes[home].data.inspect(id);
        rule!(
            Finishes,
            false,
            "{id} does not finish: peer sent {}, acknowledged {} ({}), notified {:?}, written {}, \
             peer has {}; {state:?}",
            one.peer_sent,
            one.acknowledged,
            one.fin_acknowledged,
            one.notified,
            one.written,
            one.peer_acked
        );
        Ok(())
    }

    /// Commands of an idle connection send the segment that they name.
    fn check_commands(&mut self, place: usize) -> Checked {
        let Some(one) = &self.connections[place] else { return Ok(()) };
        let (home, id) = (one.home, one.id);
        let end = one.initial.sending.base.plus(one.written as u32 + 1);
        for (command, seq) in [(Command::Challenge, end), (Command::KeepAlive, end.minus(1))] {
            self.settle(home)?;
            self.homes[home].data.command(self.now, id, command);
            let outputs = self.poll(home, 64)?;
            let segments: Vec<_> = outputs.iter().filter_map(|one| self.parsed(one)).collect();
            let is_right = segments.len() == 1
                && (segments[0].seq, segments[0].payload.len()) == (seq, 0)
                && segments[0].flags.without(Flags::ECE) == Flags::ACK;
            rule!(Commands, is_right, "{id}: {command:?} sends {segments:?}");
        }
        Ok(())
    }

    fn parsed(&self, output: &Output<Vec<u8>>) -> Option<TcpSegment> {
        let Output::Send(segment) = output else { return None };
        match parse(&self.memory.frame(segment), true) {
            Ok(Parsed::Tcp { segment, .. }) => Some(segment),
            _ => None,
        }
    }

    /// A request that comes again, and one that is older, change nothing.
    fn check_repeated(&mut self, place: usize) -> Checked {
        let Some(one) = &self.connections[place] else { return Ok(()) };
        let (home, id, earlier) = (one.home, one.id, one.earlier.clone());
        self.settle(0)?;
        self.settle(1)?;
        let before = self.states();
        for update in earlier {
            self.request(home, CONTEXT, update)?;
            let outputs = self.settle(home)?;
            rule!(Repeated, outputs == 0, "{id}: {outputs} outputs after a repeated {update:?}");
            rule!(Repeated, self.states() == before, "{id} changes by a repeated {update:?}");
        }
        Ok(())
    }
}
