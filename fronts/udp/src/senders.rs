//! Senders and their recent requests, remembered so that no request executes twice unless it is idempotent.
//!
//! A sender is an address and port that has returned a cookie. Each sender has a window of [`WINDOW`] ids. An *incarnation* is a
//! number that grows over the life of an agent and never occurs in another agent's life. A sender's state belongs to one
//! incarnation. A request that names an older incarnation may have been executed already: the agent has forgotten the outcome, and
//! must not execute the request again.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use bytes::Bytes;
use wave_core::clock::Nanos;
use wave_rpc::client::Address;
use wave_udp_client::wire::Status;

/// Most remembered senders. A client address has at most as many as are left for others.
pub const SENDERS_MAX: usize = 2048;
/// Number of ids in a sender's window.
pub const WINDOW: u64 = 1024;
/// Number of ids below a sender's first one that may still arrive.
const OVERTAKEN: u64 = 64;
/// Bytes of replies kept for retries, over all senders.
pub const KEPT_BYTES: usize = 32 << 20;
/// Silence after which a sender may be forgotten to make room.
const IDLE: Nanos = Nanos::from_millis(10_000);
/// Shortest interval between searches for idle senders.
const POLL_EVERY: Nanos = Nanos::from_millis(1_000);

/// Id of a remembered sender. The incarnation makes a stale id fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderId {
    at: u32,
    incarnation: u64,
}

/// Fate of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Never seen.
    New,
    /// Still open.
    Open,
    /// Ended, with its reply kept.
    Ended(Ended),
    /// No longer known; it may have been executed.
    Forgotten,
}

/// Result of a request, kept for retries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Whether it was refused, so no worker received it.
    pub is_refused: bool,
    /// Status of the reply.
    pub status: Status,
    /// Message of the reply.
    pub message: Bytes,
}

#[derive(Clone, Debug, Default)]
enum Slot {
    #[default]
    Free,
    Open,
    Ended(Ended),
    /// Ended; its reply was dropped to make room.
    Forgotten,
}

/// All senders of one client address.
#[derive(Clone, Copy, Debug, Default)]
struct Client {
    senders: u32,
    /// Open requests of these senders.
    open: u32,
}

#[derive(Debug)]
struct Sender {
    address: SocketAddr,
    /// Index of its client address in [`Senders::clients`].
    client: u32,
    incarnation: u64,
    /// Request id of the window's first slot.
    first: u64,
    window: VecDeque<Slot>,
    /// Open requests, those of earlier incarnations included: a new incarnation ends none of them.
    open: u32,
    heard: Nanos,
}

/// All remembered senders.
#[derive(Debug)]
pub struct Senders {
    by_address: HashMap<SocketAddr, u32>,
    /// Indices into `clients`.
    by_client: HashMap<Address, u32>,
    clients: Vec<Client>,
    free_clients: Vec<u32>,
    senders: Vec<Option<Sender>>,
    free: Vec<u32>,
    newest: u64,
    /// All forgotten senders had incarnations below this.
    floor: u64,
    /// Kept replies, the oldest first.
    kept: VecDeque<(SenderId, u64)>,
    kept_bytes: usize,
    polled_at: Option<Nanos>,
}

/// Why a sender is not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// Its incarnation is forgotten; the request may have been executed.
    Stale,
    /// No room for another sender, in total or of this client address.
    Full,
}

impl Senders {
    /// An empty table. `base` is the agent's first incarnation: random, so that no two agents share an incarnation.
    pub fn new(base: u64) -> Senders {
        let base = base >> 1 | 1;
        Senders {
            by_address: HashMap::new(),
            by_client: HashMap::new(),
            clients: Vec::new(),
            free_clients: Vec::new(),
            senders: Vec::new(),
            free: Vec::new(),
            newest: base,
            floor: base,
            kept: VecDeque::new(),
            kept_bytes: 0,
            polled_at: None,
        }
    }

    /// Number of remembered senders.
    pub fn len(&self) -> usize {
        self.by_address.len()
    }

    /// The incarnation for an address without a valid cookie. If the address has a window but names no incarnation, another program
    /// uses the port now and gets a new incarnation.
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

    /// Finds or adds the sender at an address. The caller has checked the cookie, so the incarnation is one of this agent's.
    ///
    /// # Errors
    /// The incarnation is forgotten, or there is no room.
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
                sender.incarnation = incarnation;
                let lost: usize = sender.window.drain(..).map(|slot| bytes_of(&slot)).sum();
                self.kept_bytes -= lost;
            }
            return Ok(SenderId { at, incarnation });
        }
        if incarnation < self.floor {
            return Err(Unknown::Stale);
        }
        let of = Address::from(address.ip());
        if self.is_full(of) {
            self.forget_idle(now);
            if self.is_full(of) {
                return Err(Unknown::Full);
            }
            if incarnation < self.floor {
                return Err(Unknown::Stale);
            }
        }
        let client = self.client_of(of);
        let window = VecDeque::new();
        let sender = Sender { address, client, incarnation, first: 0, window, open: 0, heard: now };
        let at = self.free.pop().unwrap_or(self.senders.len() as u32);
        match self.senders.get_mut(at as usize) {
            Some(slot) => *slot = Some(sender),
            None => self.senders.push(Some(sender)),
        }
        self.by_address.insert(address, at);
        self.clients[client as usize].senders += 1;
        Ok(SenderId { at, incarnation })
    }

    /// Index of a client address in `clients`, added if it is new.
    fn client_of(&mut self, address: Address) -> u32 {
        *self.by_client.entry(address).or_insert_with(|| {
            self.free_clients.pop().unwrap_or_else(|| {
                self.clients.push(Client::default());
                self.clients.len() as u32 - 1
            })
        })
    }

    fn is_full(&self, client: Address) -> bool {
        let of_client =
            self.by_client.get(&client).map_or(0, |&at| self.clients[at as usize].senders);
        of_client as usize >= SENDERS_MAX.saturating_sub(self.len())
    }

    /// Forgets silent senders without open requests. Their incarnations are stale from then on.
    fn forget_idle(&mut self, now: Nanos) {
        if self.polled_at.is_some_and(|polled_at| now.since(polled_at) < POLL_EVERY) {
            return;
        }
        self.polled_at = Some(now);
        let mut any = false;
        for at in 0..self.senders.len() {
            let is_idle = |sender: &mut Sender| sender.open == 0 && now.since(sender.heard) >= IDLE;
            let Some(Sender { address, client, window, .. }) = self.senders[at].take_if(is_idle)
            else {
                continue;
            };
            self.kept_bytes -= window.iter().map(bytes_of).sum::<usize>();
            self.free.push(at as u32);
            self.by_address.remove(&address);
            self.clients[client as usize].senders -= 1;
            if self.clients[client as usize].senders == 0 {
                self.by_client.remove(&Address::from(address.ip()));
                self.free_clients.push(client);
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

    /// Whether a sender is still remembered.
    pub fn is_known(&self, id: SenderId) -> bool {
        self.get(id.at).is_some_and(|sender| sender.incarnation == id.incarnation)
    }

    /// Numbers of open requests: of this sender, and of all senders of its client address.
    pub fn open(&self, id: SenderId) -> [u32; 2] {
        let sender = self.get(id.at).filter(|it| it.incarnation == id.incarnation);
        sender.map_or([0, 0], |sender| [sender.open, self.clients[sender.client as usize].open])
    }

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

    /// Marks a new request as open, and moves the window if needed.
    pub fn begin(&mut self, id: SenderId, request: u64) {
        let Some(sender) = self.sender(id) else { return };
        if sender.window.is_empty() {
            // Leave room for earlier requests that this one has overtaken.
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
        let client = sender.client as usize;
        self.kept_bytes -= lost;
        self.clients[client].open += 1;
    }

    /// Marks a request as ended, and keeps its reply for retries.
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
        // Entries of forgotten senders, and of ids below their windows, count no bytes, but must not accumulate.
        if self.kept.len() > 2 * KEPT_BYTES / SLOT_COST {
            self.kept.pop_front().into_iter().for_each(|(id, request)| self.give_up(id, request));
        }
    }

    /// Forgets an idempotent request that ended without a result, so that a retry can execute it.
    pub fn take_back(&mut self, id: SenderId, request: u64) {
        self.settle(id, request, Slot::Free);
    }

    /// Sets the slot of an open request. Returns false if the slot is gone.
    fn settle(&mut self, id: SenderId, request: u64, ended: Slot) -> bool {
        // A sender with open requests is never forgotten, but it may have another incarnation now.
        let sender = self.senders.get_mut(id.at as usize).and_then(Option::as_mut);
        let Some(sender) = sender else { return false };
        sender.open -= 1;
        self.clients[sender.client as usize].open -= 1;
        if sender.incarnation != id.incarnation {
            return false;
        }
        let at = request.checked_sub(sender.first);
        let slot = at.and_then(|at| sender.window.get_mut(at as usize));
        let Some(slot) = slot.filter(|slot| matches!(slot, Slot::Open)) else { return false };
        *slot = ended;
        true
    }

    /// Drops a kept reply.
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

/// Bytes that a kept reply costs in addition to its message.
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
