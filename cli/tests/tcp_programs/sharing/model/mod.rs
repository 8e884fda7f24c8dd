//! Programs of processes that share sockets. A model of what they hold and of what is on its way says which operations have one outcome,
//! and never wait for ever; others are left out.

mod carry;

use std::fmt::{self, Display, Formatter};

/// Processes that share sockets.
pub const ACTORS: usize = 4;
pub const PEER: usize = ACTORS;
const PARENT: usize = 5;
pub const TEST: usize = 6;
/// Variables of a process. The last two have listeners.
const VARIABLES: usize = 8;
const LISTENER: usize = 6;
pub const PEERS_LISTENER: usize = 7;
const CONNECTIONS_MAX: usize = 3;
/// Most bytes that nobody reads yet, without which a write or a peer's write would wait.
const UNREAD_MAX: u64 = 40_000;
/// Most bytes of a write during which the peer reads.
const LONG_MAX: u64 = 400_000;
/// Unacknowledged bytes with which a socket is writable under any kernel.
const WRITABLE: u64 = 8_000;
/// Unread bytes for which a receiver certainly has a window, also one that does not look.
const WINDOW: u64 = 8_000;

const IN: i64 = 0x1;
const OUT: i64 = 0x4;
const ERR_HUP: i64 = 0x18;
const HUP: i64 = 0x10;
const RDHUP: i64 = 0x2000;

/// Random numbers that become a step, whatever the state is.
pub type Choice = [u16; 6];

/// One operation of an actor.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub actor: usize,
    pub op: &'static str,
    words: [i64; 5],
}

impl Step {
    pub fn of_test(op: &'static str) -> Step {
        Step { actor: TEST, op, words: [0; 5] }
    }

    pub fn of_peer(op: &'static str, variable: usize) -> Step {
        Step { actor: PEER, op, words: [variable as i64, 0, 0, 0, 0] }
    }

    pub fn word(&self, at: usize) -> i64 {
        self.words[at]
    }

    /// Its actor lets others go on while it plays the step.
    pub fn gives_away(&self) -> bool {
        self.op.starts_with('a')
    }

    /// The stream to the peer that it writes to, and the position after that.
    pub fn writes(&self) -> Option<(i64, i64)> {
        const WRITE: [&str; 7] =
            ["write", "awrite", "stdio", "splice", "system", "popen", "dprintf"];
        let [_, stream, from, count, _] = self.words;
        let is_so = self.actor < PEER && WRITE.contains(&self.op) && stream % 2 == 1;
        is_so.then_some((stream, from + count))
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Step { actor, op, words: [a, b, c, d, e] } = self;
        write!(f, "{actor} {op} {a} {b} {c} {d} {e}")
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Object {
    Connection(usize),
    Listener,
}

/// What a process does while others have the token.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Busy {
    Reads {
        connection: usize,
        count: u64,
    },
    Writes {
        connection: usize,
    },
    /// Its call has ended: a read of this connection, or a write.
    Joins(Option<usize>),
}

#[derive(Clone, Debug)]
struct Actor {
    variables: [Option<Object>; VARIABLES],
    /// Which of descriptors 0 to 2 are sockets.
    standard: [bool; 3],
    /// It runs without the library.
    is_bare: bool,
    has_preload: bool,
    is_confined: bool,
    busy: Option<Busy>,
    /// Passed to it, and not yet received.
    incoming: Option<Object>,
}

/// A connection: `sent` and `got` by the peer, `written` and `read` by the processes.
#[derive(Clone, Copy, Debug, Default)]
struct Connection {
    stream: i64,
    sent: u64,
    read: u64,
    written: u64,
    got: u64,
    is_accepted: bool,
    /// Its listener was closed first. The agent does not count such a connection as opened.
    is_refused: bool,
    has_peer_ended: bool,
    is_peer_closed: bool,
    is_reset: bool,
    /// A process has seen the reset.
    is_reset_known: bool,
    /// Several processes had it at its reset, or got it later. Linux tells one of them, which may be one that waits. Where it was no stream
    /// of the kernel's, each sees the reset.
    is_told_twice: bool,
    was_stream: bool,
    /// Whether an end arrived before the reset is open: the peer's may have waited for a window, and after ours there is no reset. Then the
    /// error is another one.
    is_end_unsure: bool,
    is_read_shut: bool,
    is_write_shut: bool,
    is_nonblocking: bool,
    has_reader: bool,
    has_writer: bool,
    /// An operation has made it a stream of the kernel's, or would have.
    is_stream: bool,
    is_closed: bool,
    /// Closed before everything was read.
    is_torn: bool,
}

impl Connection {
    fn unread(&self) -> u64 {
        self.sent - self.read
    }

    fn outstanding(&self) -> u64 {
        self.written - self.got
    }

    /// Events that a wait ends with.
    fn events(&self) -> i64 {
        let ends = self.has_peer_ended || self.is_read_shut;
        let mut events = 0;
        if self.unread() > 0 || ends {
            events |= IN;
        }
        if ends {
            events |= RDHUP;
        }
        if ends && self.is_write_shut {
            events |= HUP;
        }
        events
    }
}

/// The state after the steps so far.
#[derive(Debug)]
pub struct Model {
    actors: [Option<Actor>; ACTORS],
    connections: Vec<Connection>,
    first_stream: i64,
    is_listening: bool,
    pub steps: Vec<Step>,
}

impl Model {
    /// A program with one process. `number`: among the programs of a run.
    pub fn new(number: usize) -> Model {
        let first = Actor {
            variables: [None; VARIABLES],
            standard: [false; 3],
            is_bare: false,
            has_preload: true,
            is_confined: false,
            busy: None,
            incoming: None,
        };
        let mut model = Model {
            actors: [Some(first), None, None, None],
            connections: Vec::new(),
            first_stream: (number * CONNECTIONS_MAX * 2) as i64,
            is_listening: false,
            steps: Vec::new(),
        };
        model.step(PARENT, "begin", [0; 5]);
        model
    }

    fn step(&mut self, actor: usize, op: &'static str, words: [i64; 5]) {
        self.steps.push(Step { actor, op, words });
    }

    /// Number of connections so far that a process has had.
    pub fn connections(&self) -> usize {
        self.connections.iter().filter(|one| !one.is_refused).count()
    }

    /// Adds the step that these numbers choose, if the state allows it.
    pub fn choose(&mut self, [who, what, which, more, size, kind]: Choice) {
        let alive: Vec<usize> = (0..ACTORS).filter(|at| self.actors[*at].is_some()).collect();
        let actor = alive[usize::from(who) % alive.len()];
        let [more, size, kind] = [more, size, kind].map(usize::from);
        if self.actor(actor).busy.is_some() {
            self.join(actor);
            return self.peer(what, which, size);
        }
        if self.actor(actor).incoming.is_some() && what.is_multiple_of(2) {
            return self.receive(actor);
        }
        let used: Vec<usize> =
            (0..VARIABLES).filter(|at| self.actor(actor).variables[*at].is_some()).collect();
        let variable = used.get(usize::from(which) % used.len().max(1)).copied();
        let object = variable.and_then(|at| self.actor(actor).variables[at]);
        match (what % 100, variable.zip(object)) {
            (0..=24, _) => self.peer(what / 100, which, size),
            (25..=34, _) => self.process(actor, what / 100, more, kind),
            (_, None) => self.open(actor, kind),
            (35..=37, _) => self.open(actor, kind),
            (38..=52, Some((at, object))) => self.hand_on(actor, at, object, more, kind),
            (_, Some((_, Object::Listener))) => self.accept(actor),
            (what, Some((at, Object::Connection(connection)))) => {
                let it = self.connections[connection];
                if it.is_reset && !it.is_told_twice {
                    self.use_reset(actor, at, connection, kind);
                } else if !it.is_reset {
                    self.carry(actor, at, connection, (what, size, kind));
                }
            }
        }
    }

    fn actor(&mut self, at: usize) -> &mut Actor {
        self.actors[at].as_mut().expect("it is alive")
    }

    /// A free variable, besides one for what is on its way to the process.
    fn free(&mut self, actor: usize) -> Option<usize> {
        let actor = self.actor(actor);
        let mut free = (0..LISTENER).filter(|at| actor.variables[*at].is_none());
        if actor.incoming.is_some() {
            free.next();
        }
        free.next()
    }

    /// Holders of an object, those included to whom it is being passed.
    fn holders(&self, object: Object) -> usize {
        let all = self.actors.iter().flatten();
        all.map(|one| {
            let held = one.variables.iter().chain([&one.incoming]);
            held.filter(|one| **one == Some(object)).count()
        })
        .sum()
    }

    fn dropped(&mut self, object: Object) {
        if self.holders(object) > 0 {
            return;
        }
        match object {
            Object::Connection(at) => {
                let connection = &mut self.connections[at];
                connection.is_closed = true;
                connection.is_torn = connection.unread() > 0;
            }
            Object::Listener => {
                self.is_listening = false;
                for connection in self.connections.iter_mut().filter(|one| !one.is_accepted) {
                    (connection.is_accepted, connection.is_refused) = (true, true);
                    (connection.is_closed, connection.is_torn) = (true, true);
                }
            }
        }
    }

    fn new_connection(&mut self, is_accepted: bool) -> usize {
        let at = self.connections.len();
        let stream = self.first_stream + 2 * at as i64;
        self.connections.push(Connection { stream, is_accepted, ..Connection::default() });
        at
    }

    /// A process gets a connection or a listener.
    fn open(&mut self, actor: usize, kind: usize) {
        let has_room = self.connections.len() < CONNECTIONS_MAX && !self.actor(actor).is_bare;
        let Some(free) = self.free(actor).filter(|_| has_room) else { return };
        if !kind.is_multiple_of(3) {
            let at = self.new_connection(true);
            self.actor(actor).variables[free] = Some(Object::Connection(at));
            self.step(actor, "dial", [free as i64, 0, 0, 0, 0]);
            let stream = self.connections[at].stream + 1;
            self.step(PEER, "take_in", [at as i64, PEERS_LISTENER as i64, stream, 0, 0]);
        } else if !self.is_listening {
            self.is_listening = true;
            self.actor(actor).variables[LISTENER] = Some(Object::Listener);
            self.step(actor, "listen", [LISTENER as i64, 0, 0, 0, 0]);
        } else {
            let at = self.new_connection(false);
            let stream = self.connections[at].stream + 1;
            self.step(PEER, "dial", [at as i64, 0, stream, 0, 0]);
        }
    }

    fn accept(&mut self, actor: usize) {
        let waits = self.connections.iter().position(|one| !one.is_accepted);
        let free = self.free(actor);
        if let (Some(at), Some(free), false) = (waits, free, self.actor(actor).is_bare) {
            self.connections[at].is_accepted = true;
            self.actor(actor).variables[free] = Some(Object::Connection(at));
            self.step(actor, "take_in", [free as i64, LISTENER as i64, 0, 0, 0]);
        }
    }

    /// fork(2), exec(2), the end of a process, and its sandbox.
    fn process(&mut self, actor: usize, what: u16, more: usize, kind: usize) {
        let another = more % ACTORS;
        match what % 8 {
            0..=3 => {
                if self.actors[another].is_none() {
                    self.passes_resets(actor);
                    let child = Actor { incoming: None, ..self.actor(actor).clone() };
                    self.actors[another] = Some(child);
                    self.step(actor, "fork", [another as i64, 0, 0, 0, 0]);
                }
            }
            4 | 5 => {
                let kind = kind % 3;
                let has_preload = self.actor(actor).has_preload && kind != 2;
                let is_bare = kind == 1 || !has_preload;
                let incoming = self.actor(actor).incoming;
                let is_foreign = matches!(incoming, Some(Object::Connection(at)) if !self.connections[at].is_stream);
                if is_bare && (is_foreign || self.holds_listener(actor)) {
                    return;
                }
                self.passes_resets(actor);
                if is_bare {
                    self.becomes_stream(actor);
                }
                (self.actor(actor).has_preload, self.actor(actor).is_bare) = (has_preload, is_bare);
                self.step(actor, "exec", [kind as i64, 0, 0, 0, 0]);
            }
            6 => {
                if !std::mem::replace(&mut self.actor(actor).is_confined, true) {
                    self.becomes_stream(actor);
                    self.step(actor, "filter", [0; 5]);
                }
            }
            _ => {
                // Its standard streams show nothing, so that any process may be the last.
                let victim = if kind.is_multiple_of(2) { actor } else { another };
                let Some(found) = &self.actors[victim] else { return };
                let may_end = found.incoming.is_none()
                    && !matches!(found.busy, Some(Busy::Writes { .. } | Busy::Joins(_)))
                    && self.actors.iter().flatten().count() > 1;
                if !may_end {
                    return;
                }
                if victim == actor {
                    self.step(actor, "exit", [(kind / 2 % 2) as i64, 0, 0, 0, 0]);
                } else {
                    self.step(actor, "kill", [victim as i64, 0, 0, 0, 0]);
                }
                self.ended(victim);
            }
        }
    }

    fn holds_listener(&mut self, actor: usize) -> bool {
        let actor = self.actor(actor);
        actor.variables.iter().chain([&actor.incoming]).any(|one| *one == Some(Object::Listener))
    }

    /// All connections of a process become streams of the kernel's.
    fn becomes_stream(&mut self, actor: usize) {
        for object in self.actor(actor).variables.into_iter().flatten() {
            if let Object::Connection(at) = object {
                self.connections[at].is_stream = true;
            }
        }
    }

    /// All connections of a process that were reset are passed on.
    fn passes_resets(&mut self, actor: usize) {
        for object in self.actor(actor).variables.into_iter().flatten() {
            if let Object::Connection(at) = object {
                self.passes_reset(at);
            }
        }
    }

    fn passes_reset(&mut self, connection: usize) {
        let it = &mut self.connections[connection];
        it.is_told_twice |= it.is_reset && !it.was_stream;
    }

    /// Number of processes with an object, those included to whom it is being passed.
    fn processes_with(&self, object: Object) -> usize {
        let all = self.actors.iter().flatten();
        all.filter(|one| {
            one.variables.iter().chain([&one.incoming]).any(|one| *one == Some(object))
        })
        .count()
    }

    fn ended(&mut self, victim: usize) {
        let Some(gone) = self.actors[victim].take() else { return };
        if let Some(Busy::Reads { connection, .. }) = gone.busy {
            self.connections[connection].has_reader = false;
        }
        gone.variables.into_iter().flatten().for_each(|object| self.dropped(object));
    }

    /// Duplicates, passes on, or closes a descriptor.
    fn hand_on(&mut self, actor: usize, at: usize, object: Object, more: usize, kind: usize) {
        let free = self.free(actor);
        let word = at as i64;
        match (kind % 8, free, object) {
            (0, Some(free), Object::Connection(_)) => {
                self.actor(actor).variables[free] = Some(object);
                self.step(actor, "dup", [word, free as i64, 0, 0, 0]);
            }
            (1, _, Object::Connection(_)) => {
                let to = more % LISTENER;
                if let Some(lost) = self.actor(actor).variables[to].filter(|_| to != at) {
                    self.actor(actor).variables[to] = Some(object);
                    self.step(actor, "dup2", [word, to as i64, 0, 0, 0]);
                    self.dropped(lost);
                }
            }
            (2, Some(free), Object::Connection(connection)) => {
                let standard = more % 3;
                if !std::mem::replace(&mut self.actor(actor).standard[standard], true) {
                    self.actor(actor).variables[free] = Some(object);
                    self.connections[connection].is_stream = true;
                    let words = [word, free as i64, standard as i64, 0, 0];
                    self.step(actor, "standard", words);
                }
            }
            (3..=5, _, Object::Connection(connection)) => {
                let to = more % ACTORS;
                let is_stream = self.connections[connection].is_stream;
                let Some(receiver) = &mut self.actors[to] else { return };
                let has_room = receiver.variables[..LISTENER].contains(&None);
                let can_use = is_stream || !receiver.is_bare;
                if receiver.incoming.is_none() && has_room && can_use {
                    receiver.incoming = Some(object);
                    self.passes_reset(connection);
                    self.step(actor, "pass", [word, to as i64, 0, 0, 0]);
                }
            }
            (6.., ..) => {
                self.actor(actor).variables[at] = None;
                self.step(actor, "close", [word, 0, 0, 0, 0]);
                self.dropped(object);
            }
            _ => {}
        }
    }

    fn receive(&mut self, actor: usize) {
        if let Some(object) = self.actor(actor).incoming.take()
            && let Some(free) = self.free(actor)
        {
            self.actor(actor).variables[free] = Some(object);
            self.step(actor, "receive", [free as i64, 0, 0, 0, 0]);
        }
    }

    fn join(&mut self, actor: usize) {
        if let Some(Busy::Joins(read)) = self.actor(actor).busy {
            if let Some(connection) = read {
                self.connections[connection].has_reader = false;
            }
            self.actor(actor).busy = None;
            self.step(actor, "join", [0; 5]);
        }
    }
}
