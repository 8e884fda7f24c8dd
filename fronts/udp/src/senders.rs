//! Who sends, and what became of each one's last requests: nothing is executed twice.
//!
//! A sender is an address and a port that has returned a cookie. Each has a window of its last [`WINDOW`] ids. An
//! *incarnation* is a number that grows over the life of an agent, and never occurs in that of another. A sender's state
//! belongs to one; whoever names an older one meets an agent that has forgotten what it did for it, and must not do it again.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use wave_core::clock::Nanos;
use wave_udp_client::wire::Status;

/// Senders that are remembered. An address has no more than it leaves to others.
pub const SENDERS_MAX: usize = 2048;
/// Ids that a sender's window spans.
pub const WINDOW: u64 = 1024;
/// Ids below a sender's first one that may still come.
const OVERTAKEN: u64 = 64;
/// Bytes of replies that are kept for retries, of all senders.
pub const KEPT_BYTES: usize = 32 << 20;
/// Who has sent nothing for so long is forgotten where there is no room.
const IDLE: Nanos = Nanos::from_millis(10_000);
/// How often it is looked for them.
const LOOK_EVERY: Nanos = Nanos::from_millis(1_000);

/// A sender, while it is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderId {
    at: u32,
    incarnation: u64,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is new.
    New,
    /// It is open.
    Open,
    /// It has ended so.
    Ended(Ended),
    /// It may have ended; nobody knows any more.
    Forgotten,
}

/// The end of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Whether it was refused: no worker has had it.
    pub is_refused: bool,
    /// The status.
    pub status: Status,
    /// The message.
    pub message: Bytes,
}

#[derive(Clone, Debug, Default)]
enum Slot {
    #[default]
    Free,
    Open,
    Ended(Ended),
    /// It has ended, and its reply made room for others.
    Forgotten,
}

/// All senders of one IP address.
#[derive(Clone, Copy, Debug, Default)]
struct Host {
    senders: u32,
    /// Their open requests.
    open: u32,
}

#[derive(Debug)]
struct Sender {
    address: SocketAddr,
    /// The place of its IP address in [`Senders::hosts`].
    host: u32,
    incarnation: u64,
    /// The id of the window's first slot.
    first: u64,
    window: VecDeque<Slot>,
    open: u32,
    heard: Nanos,
}

/// All senders.
#[derive(Debug)]
pub struct Senders {
    by_address: HashMap<SocketAddr, u32>,
    /// Places in `hosts`.
    by_ip: HashMap<IpAddr, u32>,
    hosts: Vec<Host>,
    free_hosts: Vec<u32>,
    senders: Vec<Option<Sender>>,
    free: Vec<u32>,
    newest: u64,
    /// Of those who are forgotten, all named an incarnation below.
    floor: u64,
    /// Replies that are kept, the oldest first.
    kept: VecDeque<(SenderId, u64)>,
    kept_bytes: usize,
    looked: Option<Nanos>,
}

/// Why a sender's request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// What it names is forgotten: a request of its may have been executed.
    Stale,
    /// There are as many senders as are remembered, or as many of its address.
    Full,
}

impl Senders {
    /// None yet. `base` is where the incarnations of this agent begin: random, so that no other agent's are among them.
    pub fn new(base: u64) -> Senders {
        let base = base >> 1 | 1;
        Senders {
            by_address: HashMap::new(),
            by_ip: HashMap::new(),
            hosts: Vec::new(),
            free_hosts: Vec::new(),
            senders: Vec::new(),
            free: Vec::new(),
            newest: base,
            floor: base,
            kept: VecDeque::new(),
            kept_bytes: 0,
            looked: None,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_address.len()
    }

    /// The incarnation to tell an address that has no valid cookie. One that names none, and has a window here, is another
    /// program than the window's: it gets an incarnation of its own.
    pub fn offer(&mut self, address: SocketAddr, names_none: bool) -> u64 {
        match self.by_address.get(&address) {
            None => self.newest,
            Some(_) if names_none => {
                self.newest += 1;
                self.newest
            }
            Some(&at) => self.get(at).map_or(self.newest, |sender| sender.incarnation),
        }
    }

    /// The sender at an address whose cookie is of this incarnation, so that it is one of this agent's.
    ///
    /// # Errors
    /// It is not known any more, or there is no room.
    pub fn find(
        &mut self,
        now: Nanos,
        address: SocketAddr,
        incarnation: u64,
    ) -> Result<SenderId, Unknown> {
        if let Some(&at) = self.by_address.get(&address)
            && let Some(sender) = self.senders[at as usize].as_mut()
        {
            if incarnation < sender.incarnation {
                return Err(Unknown::Stale);
            }
            sender.heard = now;
            if incarnation > sender.incarnation {
                // Another program has this address now.
                let open = std::mem::take(&mut sender.open);
                sender.incarnation = incarnation;
                let lost: usize = sender.window.drain(..).map(|slot| bytes_of(&slot)).sum();
                self.kept_bytes -= lost;
                self.hosts[sender.host as usize].open -= open;
            }
            return Ok(SenderId { at, incarnation });
        }
        if incarnation < self.floor {
            return Err(Unknown::Stale);
        }
        if self.is_full(address.ip()) {
            self.forget_idle(now);
            if self.is_full(address.ip()) {
                return Err(Unknown::Full);
            }
            if incarnation < self.floor {
                return Err(Unknown::Stale);
            }
        }
        let host = self.host_of(address.ip());
        let window = VecDeque::new();
        let sender = Sender { address, host, incarnation, first: 0, window, open: 0, heard: now };
        let at = self.free.pop().unwrap_or(self.senders.len() as u32);
        match self.senders.get_mut(at as usize) {
            Some(slot) => *slot = Some(sender),
            None => self.senders.push(Some(sender)),
        }
        self.by_address.insert(address, at);
        self.hosts[host as usize].senders += 1;
        Ok(SenderId { at, incarnation })
    }

    /// The place of an address, which is new or in use.
    fn host_of(&mut self, ip: IpAddr) -> u32 {
        *self.by_ip.entry(ip).or_insert_with(|| {
            self.free_hosts.pop().unwrap_or_else(|| {
                self.hosts.push(Host::default());
                self.hosts.len() as u32 - 1
            })
        })
    }

    fn is_full(&self, ip: IpAddr) -> bool {
        let of_ip = self.by_ip.get(&ip).map_or(0, |&at| self.hosts[at as usize].senders);
        of_ip as usize >= SENDERS_MAX.saturating_sub(self.len()).max(1)
    }

    /// Forgets who has been silent and has nothing open. What they named is stale from then on.
    fn forget_idle(&mut self, now: Nanos) {
        if self.looked.is_some_and(|looked| now.since(looked) < LOOK_EVERY) {
            return;
        }
        self.looked = Some(now);
        let mut any = false;
        for at in 0..self.senders.len() {
            let is_idle = |sender: &mut Sender| sender.open == 0 && now.since(sender.heard) >= IDLE;
            let Some(Sender { address, host, window, .. }) = self.senders[at].take_if(is_idle)
            else {
                continue;
            };
            self.kept_bytes -= window.iter().map(bytes_of).sum::<usize>();
            self.free.push(at as u32);
            self.by_address.remove(&address);
            self.hosts[host as usize].senders -= 1;
            if self.hosts[host as usize].senders == 0 {
                self.by_ip.remove(&address.ip());
                self.free_hosts.push(host);
            }
            any = true;
        }
        if any {
            self.newest += 1;
            self.floor = self.newest;
        }
    }

    fn get(&self, at: u32) -> Option<&Sender> {
        self.senders.get(at as usize)?.as_ref()
    }

    fn sender(&mut self, id: SenderId) -> Option<&mut Sender> {
        let sender = self.senders.get_mut(id.at as usize)?.as_mut();
        sender.filter(|sender| sender.incarnation == id.incarnation)
    }

    /// Whether a sender is remembered: nobody asks again where it is not.
    pub fn is_known(&self, id: SenderId) -> bool {
        self.get(id.at).is_some_and(|sender| sender.incarnation == id.incarnation)
    }

    /// Open requests of a sender, and of all senders of its IP address.
    pub fn open(&self, id: SenderId) -> [u32; 2] {
        let sender = self.get(id.at).filter(|it| it.incarnation == id.incarnation);
        sender.map_or([0, 0], |sender| [sender.open, self.hosts[sender.host as usize].open])
    }

    /// What became of a request.
    pub fn fate(&self, id: SenderId, request: u64) -> Fate {
        let Some(sender) = self.get(id.at).filter(|it| it.incarnation == id.incarnation) else {
            return Fate::Forgotten;
        };
        if sender.window.is_empty() {
            return Fate::New;
        }
        if request < sender.first {
            return Fate::Forgotten;
        }
        match sender.window.get((request - sender.first) as usize) {
            None | Some(Slot::Free) => Fate::New,
            Some(Slot::Open) => Fate::Open,
            Some(Slot::Ended(ended)) => Fate::Ended(ended.clone()),
            Some(Slot::Forgotten) => Fate::Forgotten,
        }
    }

    /// A new request begins.
    pub fn begin(&mut self, id: SenderId, request: u64) {
        let Some(sender) = self.sender(id) else { return };
        if sender.window.is_empty() {
            // Those just before it may still come: they have been overtaken.
            sender.first = request.saturating_sub(OVERTAKEN);
        }
        let beyond = (request - sender.first).saturating_sub(WINDOW - 1);
        let dropped = (beyond as usize).min(sender.window.len());
        let lost: usize = sender.window.drain(..dropped).map(|slot| bytes_of(&slot)).sum();
        sender.first += beyond;
        let at = (request - sender.first) as usize;
        if at >= sender.window.len() {
            sender.window.resize_with(at + 1, Slot::default);
        }
        sender.window[at] = Slot::Open;
        sender.open += 1;
        let host = sender.host as usize;
        self.kept_bytes -= lost;
        self.hosts[host].open += 1;
    }

    /// A request has ended, and may be asked for again.
    pub fn end(&mut self, id: SenderId, request: u64, ended: Ended) {
        let bytes = cost(&ended.message);
        if !self.settle(id, request, Slot::Ended(ended)) {
            return;
        }
        self.kept.push_back((id, request));
        self.kept_bytes += bytes;
        while self.kept_bytes > KEPT_BYTES {
            let Some((id, request)) = self.kept.pop_front() else { break };
            self.give_up(id, request);
        }
        // Of senders that are forgotten, and of ids that are below their windows.
        if self.kept.len() > 2 * KEPT_BYTES / SLOT_COST {
            self.kept.pop_front().into_iter().for_each(|(id, request)| self.give_up(id, request));
        }
    }

    /// A request that is idempotent has ended without a result: it may come again.
    pub fn take_back(&mut self, id: SenderId, request: u64) {
        self.settle(id, request, Slot::Free);
    }

    /// Sets the slot of an open request, if there still is one.
    fn settle(&mut self, id: SenderId, request: u64, ended: Slot) -> bool {
        let sender = self.senders.get_mut(id.at as usize).and_then(Option::as_mut);
        let sender = sender.filter(|sender| sender.incarnation == id.incarnation);
        let Some(sender) = sender else { return false };
        sender.open -= 1;
        self.hosts[sender.host as usize].open -= 1;
        let at = request.checked_sub(sender.first);
        let slot = at.and_then(|at| sender.window.get_mut(at as usize));
        let Some(slot) = slot.filter(|slot| matches!(slot, Slot::Open)) else { return false };
        *slot = ended;
        true
    }

    /// Drops a reply that is kept.
    fn give_up(&mut self, id: SenderId, request: u64) {
        let Some(sender) = self.sender(id) else { return };
        let at = request.checked_sub(sender.first);
        let Some(slot) = at.and_then(|at| sender.window.get_mut(at as usize)) else { return };
        if matches!(slot, Slot::Ended(_)) {
            let bytes = bytes_of(slot);
            *slot = Slot::Forgotten;
            self.kept_bytes -= bytes;
        }
    }
}

/// What a kept reply counts as beside its message.
const SLOT_COST: usize = 64;

fn cost(message: &Bytes) -> usize {
    SLOT_COST + message.len()
}

fn bytes_of(slot: &Slot) -> usize {
    match slot {
        Slot::Ended(ended) => cost(&ended.message),
        _ => 0,
    }
}
