//! The connections of a front, on all its cores, by client address: admits new connections, chooses the ones to close for them,
//! and accounts for the memory that the calls of an address hold.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wave_core::clock::Nanos;
use wave_rpc::client::Address;
use wave_rpc::status::Status;

use crate::limits::HANDSHAKE_GRACE;
use crate::shared::Totals;

/// At most this fraction (1/N) of all connections may be open with a GOAWAY.
const LEAVING_SHARE: usize = 2;
/// A connection holds at most this fraction (1/N) of what is left of its address's share, so that only many connections
/// together can use the share up.
const CONNECTION_SHARE: usize = 8;
/// Most connections examined to find one to close.
const LOOKS_MAX: usize = 1024;

/// The memory that the calls of one address hold.
#[derive(Debug)]
pub struct Account {
    held: AtomicUsize,
    totals: Arc<Totals>,
}

impl Account {
    /// Records that a call that held `was` bytes now holds `is`.
    pub fn hold(&self, was: usize, is: usize) {
        if was != is {
            // The sum wraps, so a smaller `is` subtracts.
            self.held.fetch_add(is.wrapping_sub(was), Ordering::Relaxed);
            self.totals.hold(was, is);
        }
    }

    /// Checks whether a connection that holds `own` bytes may hold `more`: an address never holds more than is left for other
    /// addresses, a connection never more than an eighth of what is left for the others of its address.
    pub fn check_room(&self, own: usize, more: usize) -> Result<(), Status> {
        let all = self.held.load(Ordering::Relaxed).saturating_add(more);
        let left = self.totals.left().saturating_sub(more);
        let share = left.saturating_add(all) / 2;
        match own.saturating_add(more) <= share.saturating_sub(all) / CONNECTION_SHARE {
            true => Ok(()),
            false => Err(Totals::no_room()),
        }
    }
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// The handshakes are not finished; accepted at this time.
    Opening(Nanos),
    /// The connection has had no call since then.
    Idle(Nanos),
    /// The connection has calls.
    Busy,
}

/// A connection's record. The core that serves the connection writes it, the core that accepts reads it.
#[derive(Debug)]
pub struct Connection {
    /// Number of the connection, unique over all cores.
    pub id: u64,
    /// Account of the connection's address.
    pub account: Arc<Account>,
    core: usize,
    /// A [`Doing`] in one word: nanoseconds times four, plus its variant.
    doing: AtomicU64,
    got_goaway: AtomicBool,
}

impl Connection {
    /// Records that the connection has no call any more.
    pub fn set_idle(&self, now: Nanos) {
        self.doing.store(now.0 << 2 | 1, Ordering::Relaxed);
    }

    /// Records that the connection has a call.
    pub fn set_busy(&self) {
        self.doing.store(2, Ordering::Relaxed);
    }

    fn doing(&self) -> Doing {
        let word = self.doing.load(Ordering::Relaxed);
        let since = Nanos(word >> 2);
        match word & 3 {
            0 => Doing::Opening(since),
            1 => Doing::Idle(since),
            _ => Doing::Busy,
        }
    }

    /// Order in which the connections of an address are closed; `None` if this one has calls or got its GOAWAY already. For a
    /// grace period, an unfinished handshake comes after all others: it may be a new client's.
    fn rank(&self, now: Nanos) -> Option<(u8, Nanos)> {
        if self.got_goaway.load(Ordering::Relaxed) {
            return None;
        }
        match self.doing() {
            Doing::Opening(since) if now.since(since) >= HANDSHAKE_GRACE => Some((0, since)),
            Doing::Idle(since) => Some((1, since)),
            Doing::Opening(since) => Some((2, since)),
            Doing::Busy => None,
        }
    }
}

/// A request to a core to end one of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leave {
    pub core: usize,
    /// Number of the connection.
    pub id: u64,
    /// Whether to end it at once if it has no call. Otherwise the client gets a GOAWAY.
    pub at_once: bool,
}

#[derive(Debug)]
struct Entry {
    account: Arc<Account>,
    /// Connections by id, including those with a GOAWAY.
    connections: BTreeMap<u64, Arc<Connection>>,
    /// Number of connections without a GOAWAY.
    open: usize,
}

#[derive(Debug, Default)]
struct Lists {
    next: u64,
    /// Number of connections without a GOAWAY.
    open: usize,
    addresses: BTreeMap<Address, Entry>,
    /// Addresses by their number of open connections, the largest first.
    ranking: BTreeSet<(Reverse<usize>, Address)>,
    /// Connections with a GOAWAY, the earliest first.
    leaving: VecDeque<(Address, u64)>,
}

/// All connections of a front.
#[derive(Debug)]
pub struct Admission {
    max: usize,
    totals: Arc<Totals>,
    lists: Mutex<Lists>,
}

impl Admission {
    /// Admission for at most `max` connections.
    pub fn new(max: usize, totals: Arc<Totals>) -> Admission {
        Admission { max, totals, lists: Mutex::default() }
    }

    /// Admits a connection. If its address has as many connections as are left for others, or the limit is reached, another
    /// connection is closed for it; if none can be closed, it is not admitted.
    pub fn admit(self: &Arc<Self>, address: IpAddr, core: usize, now: Nanos) -> Admitting {
        let address = Address::from(address);
        let mut lists = self.lists();
        let own = lists.addresses.get(&address).map_or(0, |entry| entry.open);
        let mut leaves = Vec::new();
        if own >= self.max.saturating_sub(lists.open) {
            // Connections that got a GOAWAY and stay open, because they have calls, take places as well.
            let cut = match lists.leaving.len() >= self.max.div_ceil(LEAVING_SHARE) {
                false => None,
                true => match lists.cut_one() {
                    None => return Admitting::default(),
                    cut => cut,
                },
            };
            let Some(leave) = lists.choose_goaway(own, now) else { return Admitting::default() };
            leaves.push(leave);
            leaves.extend(cut);
        }
        lists.next += 1;
        let id = lists.next;
        let account = lists.addresses.get(&address).map_or_else(
            || Arc::new(Account { held: AtomicUsize::new(0), totals: Arc::clone(&self.totals) }),
            |entry| Arc::clone(&entry.account),
        );
        let (doing, got_goaway) = (AtomicU64::new(now.0 << 2), AtomicBool::new(false));
        let connection = Arc::new(Connection { id, account, core, doing, got_goaway });
        lists.add(address, &connection);
        let admission = Arc::clone(self);
        Admitting { leaves, admitted: Some(Admitted { connection, address, admission }) }
    }

    /// Chooses a connection to close, because there is no descriptor for a new one.
    pub fn make_room(&self, now: Nanos) -> Option<Leave> {
        let mut lists = self.lists();
        lists.cut_one().or_else(|| lists.choose_goaway(0, now))
    }

    /// Numbers of open connections, and of those among them with a GOAWAY.
    #[cfg(test)]
    fn counts(&self) -> (usize, usize) {
        let lists = self.lists();
        (lists.open + lists.leaving.len(), lists.leaving.len())
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A candidate for closing, ordered by the number of connections of its address, then by [`Connection::rank`]; with address and
/// id.
type Candidate = (Reverse<usize>, (u8, Nanos), Address, u64);

impl Lists {
    /// Chooses the connection that gets a GOAWAY, or ends at once if its handshakes are not done: of the address with the most,
    /// but of none that has fewer than `own`.
    fn choose_goaway(&mut self, own: usize, now: Nanos) -> Option<Leave> {
        let mut looks = 0;
        let mut first: Option<Candidate> = None;
        for &(open, address) in &self.ranking {
            let is_found = first.is_some_and(|(most, ..)| most < open);
            if open.0 < own.max(1) || is_found || looks >= LOOKS_MAX {
                break;
            }
            let connections = self.addresses.get(&address)?.connections.values();
            let looked = connections.take(LOOKS_MAX - looks).inspect(|_| looks += 1);
            let found = looked.filter_map(|connection| {
                connection.rank(now).map(|rank| (open, rank, address, connection.id))
            });
            first = first.into_iter().chain(found).min();
        }
        let (.., address, id) = first?;
        self.open -= 1;
        self.leaving.push_back((address, id));
        self.recount(address, |entry| {
            entry.open -= 1;
            let connection = entry.connections.get(&id)?;
            connection.got_goaway.store(true, Ordering::Relaxed);
            let at_once = matches!(connection.doing(), Doing::Opening(_));
            Some(Leave { core: connection.core, id, at_once })
        })
    }

    /// Chooses the open connection without calls whose GOAWAY is the earliest.
    fn cut_one(&self) -> Option<Leave> {
        self.leaving.iter().find_map(|(address, id)| {
            let connection = self.addresses.get(address)?.connections.get(id)?;
            let is_busy = connection.doing() == Doing::Busy;
            (!is_busy).then_some(Leave { core: connection.core, id: *id, at_once: true })
        })
    }

    fn add(&mut self, address: Address, connection: &Arc<Connection>) {
        self.open += 1;
        self.addresses.entry(address).or_insert_with(|| Entry {
            account: Arc::clone(&connection.account),
            connections: BTreeMap::new(),
            open: 0,
        });
        self.recount(address, |entry| {
            entry.open += 1;
            entry.connections.insert(connection.id, Arc::clone(connection))
        });
    }

    fn remove(&mut self, address: Address, id: u64) {
        let got_goaway = self.leaving.iter().position(|told| *told == (address, id));
        match got_goaway {
            Some(at) => drop(self.leaving.remove(at)),
            None => self.open -= 1,
        }
        self.recount(address, |entry| {
            entry.open -= usize::from(got_goaway.is_none());
            entry.connections.remove(&id)
        });
    }

    /// Changes an address's entry, which is removed with its last connection.
    fn recount<R>(
        &mut self,
        address: Address,
        change: impl FnOnce(&mut Entry) -> Option<R>,
    ) -> Option<R> {
        let entry = self.addresses.get_mut(&address)?;
        self.ranking.remove(&(Reverse(entry.open), address));
        let changed = change(entry);
        if entry.connections.is_empty() {
            self.addresses.remove(&address);
        } else {
            self.ranking.insert((Reverse(entry.open), address));
        }
        changed
    }
}

/// The decision about a new connection.
#[derive(Debug, Default)]
pub struct Admitting {
    /// Connections to be closed.
    pub leaves: Vec<Leave>,
    /// The new connection, if it is admitted.
    pub admitted: Option<Admitted>,
}

/// An admitted connection. It counts until this is dropped.
#[derive(Debug)]
pub struct Admitted {
    pub connection: Arc<Connection>,
    address: Address,
    admission: Arc<Admission>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.admission.lists().remove(self.address, self.connection.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_millis(1000);

    struct Front {
        admission: Arc<Admission>,
        totals: Arc<Totals>,
    }

    impl Front {
        fn new(connections: usize) -> Front {
            let totals = Arc::new(Totals::new(1000));
            let admission = Arc::new(Admission::new(connections, Arc::clone(&totals)));
            Front { admission, totals }
        }

        fn admit(&self, address: u8, now: Nanos) -> Admitting {
            self.admission.admit([10, 0, 0, address].into(), 0, now)
        }

        /// Admits a connection that displaces no other.
        fn open(&self, address: u8, now: Nanos) -> Admitted {
            let Admitting { leaves, admitted } = self.admit(address, now);
            assert_eq!(leaves, []);
            admitted.expect("room")
        }

        /// Opens up to `count` connections of an address, and makes them idle.
        fn idle(&self, address: u8, count: usize, now: Nanos) -> Vec<Admitted> {
            let open = |_| self.open(address, now);
            let all: Vec<_> = (0..count).map(open).collect();
            all.iter().for_each(|each| each.connection.set_idle(now));
            all
        }
    }

    fn ids(leaves: &[Leave]) -> Vec<(u64, bool)> {
        leaves.iter().map(|leave| (leave.id, leave.at_once)).collect()
    }

    #[test]
    fn address_at_its_share_loses_its_longest_idle_connection() {
        let front = Front::new(8);
        let mut all = front.idle(1, 4, Nanos(0));
        all[0].connection.set_busy();
        all[1].connection.set_idle(SECOND);
        let fifth = front.admit(1, SECOND);
        assert_eq!(ids(&fifth.leaves), [(all[2].connection.id, false)]);
        assert!(fifth.admitted.is_some());
        // A connection gets only one GOAWAY.
        let sixth = front.admit(1, SECOND);
        assert_eq!(ids(&sixth.leaves)[0], (all[3].connection.id, false));
        // Other addresses still have room.
        front.open(2, SECOND);
        all.clear();
        drop((fifth, sixth));
        assert_eq!(front.admission.counts(), (0, 0));
        let lists = front.admission.lists();
        assert!(lists.addresses.is_empty() && lists.ranking.is_empty());
    }

    #[test]
    fn connection_with_calls_is_never_closed_for_others() {
        let front = Front::new(4);
        let all = front.idle(1, 2, Nanos(0));
        all.iter().for_each(|each| each.connection.set_busy());
        let Admitting { leaves, admitted } = front.admit(1, SECOND);
        assert!(leaves.is_empty() && admitted.is_none());
        assert!(front.admission.make_room(SECOND).is_none());
        // Another address gets the remaining room.
        front.open(2, SECOND);
    }

    #[test]
    fn address_with_most_connections_loses_one_first() {
        let front = Front::new(8);
        let (few, many) = (front.idle(1, 2, Nanos(0)), front.idle(2, 3, SECOND));
        // The first address's third connection: it now has as many as are left for others.
        let third = front.open(1, SECOND);
        third.connection.set_busy();
        few[0].connection.set_busy();
        let fourth = front.admit(1, SECOND);
        assert_eq!(
            ids(&fourth.leaves),
            [(few[1].connection.id, false)],
            "both addresses have three"
        );
        let of_third_address = front.open(3, SECOND);
        let fifth = front.admit(3, SECOND);
        assert_eq!(ids(&fifth.leaves)[0], (many[0].connection.id, false));
        drop(of_third_address);
    }

    #[test]
    fn unfinished_handshake_is_closed_first_after_its_grace_period() {
        let front = Front::new(8);
        let idle = front.idle(1, 1, Nanos(0));
        let _opening = [1, 2, 3].map(|at| front.open(1, Nanos(at)));
        let soon = front.admit(1, Nanos(4));
        assert_eq!(ids(&soon.leaves), [(idle[0].connection.id, false)]);
        let late = front.admit(1, Nanos(1) + HANDSHAKE_GRACE);
        assert_eq!(ids(&late.leaves)[0], (2, true));
        let only_new = front.admit(1, Nanos(2) + HANDSHAKE_GRACE);
        assert_eq!(ids(&only_new.leaves)[0], (3, true));
    }

    #[test]
    fn connections_that_ignore_their_goaway_are_bounded() {
        let front = Front::new(4);
        let mut all = front.idle(1, 2, Nanos(0));
        all[0].connection.set_idle(Nanos(1));
        for at in 0..6 {
            let Admitting { leaves, admitted } = front.admit(1, SECOND);
            admitted.as_ref().unwrap().connection.set_idle(SECOND);
            all.extend(admitted);
            // The core that serves the connection ends it.
            for leave in leaves.iter().filter(|leave| leave.at_once) {
                all.retain(|each| each.connection.id != leave.id);
            }
            assert_eq!(front.admission.counts(), (3 + at.min(1), 1 + at.min(1)));
        }
        // If descriptors are short, the connection with the earliest GOAWAY is closed at once.
        let leave = front.admission.make_room(SECOND).unwrap();
        assert!(leave.at_once && all.iter().any(|each| each.connection.id == leave.id));
    }

    #[test]
    fn connections_that_call_after_their_goaway_are_bounded() {
        let front = Front::new(8);
        let mut all = front.idle(1, 4, Nanos(0));
        let mut refused = 0;
        for _ in 0..100 {
            let Admitting { leaves, admitted } = front.admit(1, SECOND);
            refused += usize::from(admitted.is_none());
            admitted.iter().for_each(|newcomer| newcomer.connection.set_idle(SECOND));
            all.extend(admitted);
            // A client that got a GOAWAY begins a call instead of closing.
            for leave in leaves {
                let told = all.iter().find(|each| each.connection.id == leave.id);
                told.unwrap().connection.set_busy();
            }
        }
        assert_eq!((front.admission.counts(), refused), ((8, 4), 96));
        // Other addresses still have room.
        front.open(2, SECOND);
    }

    #[test]
    fn room_is_left_for_other_connections_and_addresses() {
        let front = Front::new(8);
        let (one, two) = (front.open(1, Nanos(0)), front.open(1, Nanos(0)));
        let other = front.open(2, Nanos(0));
        let holds = |admitted: &Admitted, own, more| {
            let account = &admitted.connection.account;
            let has_room = account.check_room(own, more).is_ok();
            account.hold(0, if has_room { more } else { 0 });
            has_room
        };
        // An address may hold half of the whole, and one connection a ninth of that.
        assert!(!holds(&one, 0, 56) && holds(&one, 0, 55) && !holds(&one, 55, 1));
        // The next connection may hold a ninth of what is left.
        assert!(!holds(&two, 0, 50) && holds(&two, 0, 49) && !holds(&two, 49, 1));
        // Another address may hold half of what is left without it.
        assert!(!holds(&other, 0, 50) && holds(&other, 0, 49));
        assert_eq!(front.totals.held(), 153);
        one.connection.account.hold(104, 0);
        other.connection.account.hold(49, 0);
        assert_eq!(front.totals.held(), 0);
    }
}
