//! The store's calls as plain functions, shared by all servers.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::proto::echo::{Payload, Work};
use super::proto::kv::{
    GetReply, GetRequest, Pair, PutReply, PutRequest, RangeReply, RangeRequest,
};
use crate::rocksdb::{self, Database};
use crate::service::{self, Clock, Served};

/// Maximum number of pairs that one RANGE may ask for.
pub const RANGE_LIMIT_MAX: u32 = 1_000_000;
/// A reply of a RANGE is sent once it holds this many bytes.
const REPLY_BYTES: usize = 16 << 10;

/// A call that is answered with a status other than OK.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The client's error: there is no such key.
    #[error("there is no key {0}")]
    NotFound(u64),
    /// The client's error: keys are numbers of eight bytes.
    #[error("a key is 8 bytes (a number, big-endian), not {0}")]
    Key(usize),
    /// The client's error: it asks for too many pairs.
    #[error("a range is of at most {RANGE_LIMIT_MAX} pairs, not {0}")]
    Limit(u32),
    /// The client's error: it asks for too much work.
    #[error("a call may work for {SPIN_MAX:?}, not for {0} ns")]
    Work(u64),
    #[error(transparent)]
    Database(#[from] rocksdb::Error),
    /// The store could not append to its log of writes.
    #[error("the log of writes: {0}")]
    Log(#[from] io::Error),
}

impl Refusal {
    /// Number of the gRPC status.
    pub fn code(&self) -> u32 {
        match self {
            Refusal::Key(_) | Refusal::Limit(_) | Refusal::Work(_) => 3,
            Refusal::NotFound(_) => 5,
            Refusal::Database(_) | Refusal::Log(_) => 13,
        }
    }
}

/// Minimum durations of calls. A shorter call is extended, on the core that serves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceTimes {
    /// A GET spins once it has its value.
    pub get: Duration,
    /// A RANGE keeps reading in order, and only then replies.
    pub range: Duration,
}

/// Count and time of the GETs and RANGEs served so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Worked {
    /// Number of calls that were served.
    pub calls: u64,
    /// Their service time in nanoseconds, without time for which they were preempted.
    pub ns: u64,
}

impl Worked {
    pub fn since(self, before: Worked) -> Worked {
        Worked { calls: self.calls - before.calls, ns: self.ns - before.ns }
    }
}

#[derive(Debug, Default)]
struct Tally {
    calls: AtomicU64,
    ns: AtomicU64,
}

/// The store: a database with its calls.
#[derive(Clone, Debug)]
pub struct Store {
    database: Arc<Database>,
    times: ServiceTimes,
    tally: Arc<Tally>,
    writes: Option<Arc<File>>,
}

impl Store {
    /// A store whose calls are not extended.
    ///
    /// # Panics
    ///
    /// If the database cannot be scanned: see [`Database::open_in_order`].
    pub fn new(database: Database) -> Store {
        Store::taking(Arc::new(database), ServiceTimes::default())
    }

    /// A store whose calls take at least `times`. Several stores may share a database.
    ///
    /// # Panics
    ///
    /// As [`Store::new`].
    pub fn taking(database: Arc<Database>, times: ServiceTimes) -> Store {
        assert!(database.is_in_order(), "a store is a database in order");
        Store { database, times, tally: Arc::default(), writes: None }
    }

    /// The same, appending the key of each executed PUT to `file`, one per line. A PUT executed twice has two lines, also across
    /// restarts of the server.
    pub fn with_log_of_writes(self, file: File) -> Store {
        Store { writes: Some(Arc::new(file)), ..self }
    }

    /// Count and time of its GETs and RANGEs so far.
    pub fn worked(&self) -> Worked {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Worked { calls: get(&self.tally.calls), ns: get(&self.tally.ns) }
    }

    fn add(&self, served: Served) {
        self.tally.calls.fetch_add(1, Ordering::Relaxed);
        self.tally.ns.fetch_add(served.worked_ns, Ordering::Relaxed);
    }

    /// The value of a key. Calls `preempt_point` while the call is extended. There the caller may switch to another stack, in
    /// which case it returns true.
    pub fn get(
        &self,
        request: &GetRequest,
        preempt_point: impl FnMut() -> bool,
    ) -> Result<GetReply, Refusal> {
        let key = number(&request.key)?;
        let (mut value, ns) = (Bytes::new(), nanos(self.times.get));
        let copy = |found: &[u8]| value = Bytes::copy_from_slice(found);
        let served = service::get_value(&self.database, key, ns, Clock::Wall, copy, preempt_point)?;
        self.add(served);
        match served.found {
            true => Ok(GetReply { value }),
            false => Err(Refusal::NotFound(key)),
        }
    }

    pub fn put(&self, request: &PutRequest) -> Result<PutReply, Refusal> {
        let key = number(&request.key)?;
        if let Some(file) = &self.writes {
            // One write, so that lines are not interleaved.
            (&**file).write_all(format!("{key}\n").as_bytes())?;
        }
        self.database.put(key, &request.value)?;
        Ok(PutReply {})
    }

    /// Removes a key. Of two concurrent calls for the same key both may succeed.
    ///
    /// # Errors
    /// There is no such key, or the database failed.
    pub fn delete(&self, key: u64) -> Result<(), Refusal> {
        match self.database.get(key, |_| ())? {
            true => Ok(self.database.delete(key)?),
            false => Err(Refusal::NotFound(key)),
        }
    }

    /// Pairs in key order. Calls `preempt_point` after each key read while the call is extended.
    pub fn range(
        &self,
        request: &RangeRequest,
        preempt_point: impl FnMut() -> bool,
    ) -> Result<Range, Refusal> {
        let next = number(&request.start)?;
        if request.limit > RANGE_LIMIT_MAX {
            return Err(Refusal::Limit(request.limit));
        }
        if !self.times.range.is_zero() {
            let ns = nanos(self.times.range);
            let served = service::range(&self.database, next, ns, Clock::Wall, preempt_point)?;
            self.add(served);
        }
        Ok(Range { store: self.clone(), next: Some(next), left: request.limit })
    }
}

/// A RANGE in progress, answered one reply at a time. Pairs are read only when a reply is requested, and each
/// reply reads the database as it is then.
#[derive(Debug)]
pub struct Range {
    store: Store,
    next: Option<u64>,
    left: u32,
}

impl Range {
    /// The next reply, calling `preempt_point` after each key, where it may switch to another stack.
    pub fn reply(
        &mut self,
        mut preempt_point: impl FnMut(),
    ) -> Option<Result<RangeReply, Refusal>> {
        let first = self.next.filter(|_| self.left > 0)?;
        let (mut pairs, mut bytes) = (Vec::new(), 0);
        // The scan has wrapped around to the smallest key: the RANGE ends.
        self.next = None;
        let scanned = self.store.database.scan(first, |key, value| {
            if key < self.next.unwrap_or(first) {
                self.next = None;
                return false;
            }
            bytes += size_of_val(&key) + value.len();
            pairs.push(Pair {
                key: Bytes::copy_from_slice(&key.to_be_bytes()),
                value: Bytes::copy_from_slice(value),
            });
            self.left -= 1;
            self.next = key.checked_add(1);
            preempt_point();
            self.left > 0 && self.next.is_some() && bytes < REPLY_BYTES
        });
        match scanned {
            Ok(()) if pairs.is_empty() => None,
            Ok(()) => Some(Ok(RangeReply { pairs })),
            Err(error) => {
                self.left = 0;
                Some(Err(error.into()))
            }
        }
    }
}

impl Iterator for Range {
    type Item = Result<RangeReply, Refusal>;

    fn next(&mut self) -> Option<Self::Item> {
        self.reply(|| {})
    }
}

/// Maximum time that a call may ask to work.
pub const SPIN_MAX: Duration = Duration::from_secs(1);

/// Spins for the requested time. Calls `preempt_point` meanwhile, which may switch to another stack and then returns true.
pub fn spin(work: &Work, preempt_point: impl FnMut() -> bool) -> Result<Served, Refusal> {
    if work.ns > nanos(SPIN_MAX) {
        return Err(Refusal::Work(work.ns));
    }
    Ok(service::spin(work.ns, preempt_point))
}

/// Replies with the request's bytes.
pub fn echo(payload: Payload) -> Payload {
    payload
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn number(key: &[u8]) -> Result<u64, Refusal> {
    key.try_into().map(u64::from_be_bytes).map_err(|_| Refusal::Key(key.len()))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::rocksdb::is_value_of;

    fn store(keys: u64, value_bytes: usize) -> Store {
        let mut database = Database::open_in_order(None).unwrap();
        database.fill(keys, value_bytes, |_, _| {}).unwrap();
        Store::new(database)
    }

    fn key(number: u64) -> Bytes {
        Bytes::copy_from_slice(&number.to_be_bytes())
    }

    fn get(store: &Store, number: u64) -> Result<Bytes, Refusal> {
        let reply = store.get(&GetRequest { slo_us: 0, key: key(number) }, || false)?;
        Ok(reply.value)
    }

    #[test]
    fn put_values_are_found_and_missing_keys_are_not() {
        let store = store(100, 64);
        assert!(is_value_of(7, &get(&store, 7).unwrap()));
        assert_eq!(get(&store, 100).unwrap_err().code(), 5);
        let value = Bytes::from_static(b"new");
        store.put(&PutRequest { slo_us: 0, key: key(100), value: value.clone() }).unwrap();
        assert_eq!(get(&store, 100).unwrap(), value);
        store.delete(100).unwrap();
        assert_eq!(get(&store, 100).unwrap_err().code(), 5);
        assert_eq!(store.delete(100).unwrap_err().code(), 5);
        assert!(is_value_of(99, &get(&store, 99).unwrap()));
    }

    #[test]
    fn calls_take_their_service_time_and_offer_preempt_points() {
        let mut database = Database::open_in_order(None).unwrap();
        database.fill(100, 64, |_, _| {}).unwrap();
        let times =
            ServiceTimes { get: Duration::from_micros(200), range: Duration::from_micros(500) };
        let store = Store::taking(Arc::new(database), times);
        let start = Instant::now();
        let mut points = 0;
        let mut count = || {
            points += 1;
            false
        };
        store.get(&GetRequest { slo_us: 0, key: key(7) }, &mut count).unwrap();
        assert!(start.elapsed() >= times.get);
        let request = RangeRequest { slo_us: 0, start: key(0), limit: 3 };
        assert_eq!(store.range(&request, &mut count).unwrap().count(), 1);
        assert!(start.elapsed() >= times.get + times.range);
        assert!(points > 1);
        assert_eq!(store.worked().calls, 2);
    }

    #[test]
    fn a_range_ends_at_its_limit_or_after_the_last_key_and_is_sent_in_batches() {
        let store = store(1_000, 1_000);
        for (start, limit, expected) in [
            (0, 1_000, 1_000),
            (0, 2_000, 1_000),
            (990, 100, 10),
            (5, 3, 3),
            (1_000, 9, 0),
            (0, 0, 0),
        ] {
            let request = RangeRequest { slo_us: 0, start: key(start), limit };
            let replies: Vec<RangeReply> =
                store.range(&request, || false).unwrap().collect::<Result<_, _>>().unwrap();
            let bytes = |reply: &RangeReply| reply.pairs.iter().map(|pair| pair.value.len()).sum();
            assert!(replies.iter().all(|reply| (1..2 * REPLY_BYTES).contains(&bytes(reply))));
            let pairs: Vec<&Pair> = replies.iter().flat_map(|reply| &reply.pairs).collect();
            assert_eq!(pairs.len(), expected);
            for (pair, number) in pairs.iter().zip(start..) {
                assert_eq!(pair.key, key(number));
                assert!(is_value_of(number, &pair.value));
            }
        }
    }

    #[test]
    fn invalid_requests_are_the_clients_fault() {
        let store = store(1, 8);
        let short = store.get(&GetRequest { slo_us: 0, key: Bytes::from_static(b"one") }, || false);
        assert_eq!(short.unwrap_err().code(), 3);
        let request = RangeRequest { slo_us: 0, start: key(0), limit: RANGE_LIMIT_MAX + 1 };
        assert_eq!(store.range(&request, || false).unwrap_err().code(), 3);
    }
}
