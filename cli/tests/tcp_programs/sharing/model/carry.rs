//! Steps that carry bytes or end streams, by processes and by the peer.

use super::*;

impl Model {
    /// A process uses a connection.
    pub(super) fn carry(
        &mut self,
        actor: usize,
        at: usize,
        connection: usize,
        (what, size, kind): (u16, usize, usize),
    ) {
        match what {
            53..=66 => self.read(actor, at, connection, size, kind),
            67..=78 => self.write(actor, at, connection, size, kind),
            79..=84 => self.bypass(actor, at, connection, size, kind),
            85..=88 => self.long(actor, at, connection, size, kind),
            _ => self.control(actor, at, connection, kind),
        }
    }

    /// Number of bytes of a read of what has been sent, if that has one outcome.
    fn readable(&self, connection: usize, size: usize) -> Option<u64> {
        let it = &self.connections[connection];
        let some = (it.unread() > 0).then(|| 1 + size as u64 % it.unread());
        some.filter(|_| !it.has_reader && !it.is_read_shut)
    }

    /// Number of bytes of a write that does not wait.
    fn writable(&self, connection: usize, size: usize, most: u64) -> Option<u64> {
        let it = &self.connections[connection];
        let room = UNREAD_MAX.saturating_sub(it.outstanding()).min(most);
        let is_open = !it.has_writer && !it.is_write_shut && !it.is_peer_closed;
        (is_open && room > 0).then(|| 1 + size as u64 % room)
    }

    fn received(&self, connection: usize) -> [i64; 2] {
        let it = &self.connections[connection];
        [it.stream, it.read as i64]
    }

    fn outgoing(&self, connection: usize) -> [i64; 2] {
        let it = &self.connections[connection];
        [it.stream + 1, it.written as i64]
    }

    fn read(&mut self, actor: usize, at: usize, connection: usize, size: usize, kind: usize) {
        let at = at as i64;
        let [stream, from] = self.received(connection);
        let it = self.connections[connection];
        if it.has_reader {
            return;
        }
        let ends = it.has_peer_ended || it.is_read_shut;
        if let Some(count) = self.readable(connection, size) {
            if kind % 6 == 5 && !it.is_nonblocking {
                return self.step(actor, "peek", [at, stream, from, count as i64, 0]);
            }
            self.connections[connection].read += count;
            self.step(actor, "read", [at, stream, from, count as i64, (kind % 5) as i64]);
        } else if ends {
            let count = it.unread() as i64 + 10;
            self.connections[connection].read = it.sent;
            self.step(actor, "read", [at, stream, from, count, (kind % 5) as i64]);
        } else {
            self.step(actor, "try", [at, 0, 0, 0, 0]);
        }
    }

    fn write(&mut self, actor: usize, at: usize, connection: usize, size: usize, kind: usize) {
        let it = self.connections[connection];
        let [stream, from] = self.outgoing(connection);
        let kind = (kind % 4) as i64;
        if let Some(count) = self.writable(connection, size, 20_000) {
            self.connections[connection].written += count;
            self.step(actor, "write", [at as i64, stream, from, count as i64, kind]);
        } else if it.is_write_shut && !it.has_writer {
            self.step(actor, "write", [at as i64, stream, from, 10, kind]);
        }
    }

    /// A call or a program that the library does not see. Each carries few bytes.
    fn bypass(&mut self, actor: usize, at: usize, connection: usize, size: usize, kind: usize) {
        let it = self.connections[connection];
        let writes = kind % 2 == 1;
        let (what, is_static) = (kind / 2 % 5, kind / 10 % 2);
        let ([stream, from], count) = match writes || what == 4 {
            true => (self.outgoing(connection), self.writable(connection, size, 3_000)),
            false => (self.received(connection), self.readable(connection, size)),
        };
        let Some(mut count) = count.filter(|_| !it.is_nonblocking) else { return };
        if what == 0 && !writes {
            // stdio reads ahead.
            count = it.unread();
        }
        if what == 1 {
            count = count.min(16_000);
        }
        let how = i64::from(writes) | (is_static << 1) as i64;
        let (op, how) = match what {
            0 => ("stdio", i64::from(writes)),
            1 => ("splice", i64::from(writes)),
            2 => ("system", how),
            3 => ("popen", how),
            _ => ("dprintf", 1),
        };
        let it = &mut self.connections[connection];
        it.is_stream = true;
        match writes || what == 4 {
            true => it.written += count,
            false => it.read += count,
        }
        self.step(actor, op, [at as i64, stream, from, count as i64, how]);
    }

    /// A call during which others have the token.
    fn long(&mut self, actor: usize, at: usize, connection: usize, size: usize, kind: usize) {
        let it = self.connections[connection];
        if kind.is_multiple_of(2) {
            if it.has_reader || it.is_read_shut || it.unread() > 0 || it.has_peer_ended {
                return;
            }
            let count = 1 + size as u64 % UNREAD_MAX;
            let [stream, from] = self.received(connection);
            self.actor(actor).busy = Some(Busy::Reads { connection, count });
            self.connections[connection].has_reader = true;
            let kind = (kind / 2 % 5) as i64;
            self.step(actor, "aread", [at as i64, stream, from, count as i64, kind]);
        } else if self.writable(connection, size, LONG_MAX).is_some() {
            let count = 1 + (size as u64 * 7) % LONG_MAX;
            let [stream, from] = self.outgoing(connection);
            self.actor(actor).busy = Some(Busy::Writes { connection });
            let it = &mut self.connections[connection];
            (it.has_writer, it.written) = (true, it.written + count);
            let kind = (kind / 2 % 4) as i64;
            self.step(actor, "awrite", [at as i64, stream, from, count as i64, kind]);
        }
    }

    fn control(&mut self, actor: usize, at: usize, connection: usize, kind: usize) {
        let it = self.connections[connection];
        // Whether there is still something to shut down then depends on when the peer's end arrives.
        let has_ended = it.is_write_shut && it.has_peer_ended;
        let at = at as i64;
        match kind % 8 {
            0 if !it.is_write_shut && !it.has_writer => {
                self.connections[connection].is_write_shut = true;
                self.step(actor, "shut", [at, 1, 0, 0, 0]);
            }
            1 if !it.is_read_shut
                && !it.has_reader
                && it.unread() == 0
                && kind.is_multiple_of(3)
                && !has_ended =>
            {
                self.connections[connection].is_read_shut = true;
                self.step(actor, "shut", [at, 0, 0, 0, 0]);
            }
            2 => {
                let is_nonblocking = kind / 8 % 2 == 1;
                if !it.has_reader && !it.has_writer {
                    self.connections[connection].is_nonblocking = is_nonblocking;
                    self.step(actor, "block", [at, is_nonblocking.into(), 0, 0, 0]);
                }
            }
            3 => self.step(actor, "flags", [at, 0, 0, 0, 0]),
            4 => self.step(actor, "error", [at, 0, 0, 0, 0]),
            5 | 6 if !it.has_reader => {
                let is_writable = it.outstanding() < WRITABLE && !it.has_writer;
                let room = if is_writable { OUT } else { 0 };
                self.step(actor, "poll", [at, it.events() | room, 0, 0, 0]);
            }
            7 if !it.has_reader => self.step(actor, "epoll", [at, it.events(), 0, 0, 0]),
            _ => {}
        }
    }

    /// A process uses a connection that its peer has reset. First it waits for the reset.
    pub(super) fn use_reset(&mut self, actor: usize, at: usize, connection: usize, kind: usize) {
        let it = self.connections[connection];
        let word = at as i64;
        if it.is_end_unsure {
            return self.step(actor, "discard", [word, it.stream, it.read as i64, 1, 0]);
        }
        if !it.is_reset_known {
            self.connections[connection].is_reset_known = true;
            return self.step(actor, "poll", [word, ERR_HUP & !8, 0, 0, 0]);
        }
        let [stream, from] = self.received(connection);
        match kind % 4 {
            0 => self.step(actor, "write", [word, it.stream + 1, 0, 10, 1]),
            1 => self.step(actor, "error", [word, 0, 0, 0, 0]),
            _ => {
                // How much of what is on its way a reset destroys is left open.
                let op = if it.unread() == 0 { "drain" } else { "discard" };
                self.connections[connection].read = it.sent;
                self.step(actor, op, [word, stream, from, 1, 0]);
            }
        }
    }

    /// The peer sends, receives or ends.
    pub(super) fn peer(&mut self, what: u16, which: u16, size: usize) {
        let open: Vec<usize> = (0..self.connections.len())
            .filter(|at| {
                let it = &self.connections[*at];
                !it.is_peer_closed && !it.is_closed
            })
            .collect();
        let Some(&at) = open.get(usize::from(which) % open.len().max(1)) else { return };
        let it = self.connections[at];
        match what % 16 {
            0..=6 => self.peer_sends(at, 1 + size as u64 % UNREAD_MAX),
            7..=12 if it.outstanding() > 0 => {
                self.peer_reads(at, 1 + (size as u64 * 7) % it.outstanding());
            }
            13 if !it.has_peer_ended && it.is_accepted => {
                self.connections[at].has_peer_ended = true;
                self.step(PEER, "shut", [at as i64, 1, 0, 0, 0]);
                self.reader_ends(at);
            }
            14 if !it.has_writer && it.outstanding() == 0 && it.is_accepted => {
                let it = &mut self.connections[at];
                (it.has_peer_ended, it.is_peer_closed) = (true, true);
                self.step(PEER, "close", [at as i64, 0, 0, 0, 0]);
                self.reader_ends(at);
            }
            // A reset may destroy the bytes of a read that has yet to begin.
            15 if !it.has_writer && it.is_accepted && !it.is_read_shut && !self.joins(at) => {
                let is_shared = self.processes_with(Object::Connection(at)) > 1;
                let it = &mut self.connections[at];
                it.is_end_unsure = it.has_peer_ended && (it.unread() > WINDOW || it.is_write_shut);
                (it.has_peer_ended, it.is_peer_closed, it.is_reset) = (true, true, true);
                it.was_stream = it.is_stream;
                it.is_told_twice = is_shared && (!it.is_stream || it.has_reader);
                self.step(PEER, "reset", [at as i64, 0, 0, 0, 0]);
                self.reader_ends(at);
            }
            _ => {}
        }
    }

    fn peer_sends(&mut self, at: usize, count: u64) {
        let it = self.connections[at];
        if it.has_peer_ended || it.is_read_shut {
            return;
        }
        let reader = (0..ACTORS).find_map(|actor| match self.actors[actor].as_ref()?.busy {
            Some(Busy::Reads { connection, count }) if connection == at => Some((actor, count)),
            _ => None,
        });
        let count = reader.map_or(count, |(_, count)| count);
        if it.unread() + count > UNREAD_MAX {
            return;
        }
        self.step(PEER, "write", [at as i64, it.stream, it.sent as i64, count as i64, 0]);
        let it = &mut self.connections[at];
        it.sent += count;
        if let Some((actor, _)) = reader {
            it.read = it.sent;
            self.actor(actor).busy = Some(Busy::Joins(Some(at)));
        }
    }

    /// Whether a process gets what it has waited for, and has not said so.
    fn joins(&self, at: usize) -> bool {
        self.actors.iter().flatten().any(|one| one.busy == Some(Busy::Joins(Some(at))))
    }

    /// A process that waits for bytes gets the end.
    fn reader_ends(&mut self, at: usize) {
        for actor in self.actors.iter_mut().flatten() {
            if matches!(actor.busy, Some(Busy::Reads { connection, .. }) if connection == at) {
                actor.busy = Some(Busy::Joins(Some(at)));
            }
        }
    }

    fn peer_reads(&mut self, at: usize, count: u64) {
        let it = self.connections[at];
        let words = [at as i64, it.stream + 1, it.got as i64, count as i64, 0];
        self.step(PEER, "read", words);
        let it = &mut self.connections[at];
        it.got += count;
        if it.outstanding() == 0 && std::mem::take(&mut it.has_writer) {
            for actor in self.actors.iter_mut().flatten() {
                if actor.busy == Some(Busy::Writes { connection: at }) {
                    actor.busy = Some(Busy::Joins(None));
                }
            }
        }
    }

    /// Ends all calls, processes and connections.
    pub fn finish(&mut self) {
        for actor in 0..ACTORS {
            match self.actors[actor].as_ref().and_then(|one| one.busy) {
                Some(Busy::Reads { connection, .. }) => self.peer_sends(connection, 1),
                Some(Busy::Writes { connection }) => {
                    self.peer_reads(connection, self.connections[connection].outstanding());
                }
                Some(Busy::Joins(_)) | None => {}
            }
            if self.actors[actor].is_some() {
                self.join(actor);
            }
        }
        for actor in 0..ACTORS {
            if self.actors[actor].is_some() {
                self.receive(actor);
            }
        }
        for actor in 0..ACTORS {
            if self.actors[actor].is_some() {
                self.step(actor, "exit", [0; 5]);
                self.ended(actor);
            }
        }
        for at in 0..self.connections.len() {
            let it = self.connections[at];
            if !it.is_peer_closed {
                // Bytes that were on their way at the close: whether the peer sees the reset that they cause, or the end before, depends
                // on their time.
                let op = if it.is_torn { "discard" } else { "drain" };
                self.step(PEER, op, [at as i64, it.stream + 1, it.got as i64, 1, 0]);
                self.step(PEER, "close", [at as i64, 0, 0, 0, 0]);
            }
        }
        self.step(PARENT, "end", [0; 5]);
    }
}
