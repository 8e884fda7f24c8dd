//! Requests of hosts' contexts.

use wave_core::clock::Nanos;

use super::{Call, PayloadMemory, Slot, Stack};
use crate::context::{ContextId, Event, FILL_MAX, Filled, Reason, Request, Update};
use crate::datapath::{Datapath, Ring};

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    /// Handles a request of a host's context. `memory` is the payload memory of its process.
    pub fn request(
        &mut self,
        now: Nanos,
        from: ContextId,
        request: Request,
        mut memory: impl PayloadMemory,
    ) {
        match request {
            Request::Update(mut update) => {
                let connection = self.connection(update.flow);
                let own = connection.filter(|own| own.context.process == from.process);
                let mut filled = Filled::default();
                if let Some(own) = own {
                    own.read_reported = own.read_reported.max(update.read);
                    own.written_reported = own.written_reported.max(update.written);
                    own.shut_reported.write |= update.is_finished;
                    filled = own.filled;
                    if update.filled.receive > filled.receive || update.filled.send > filled.send {
                        let Some(grown) = self.verify_rings(&update, filled, &mut memory) else {
                            self.counters.without_memory += 1;
                            self.refused(from, Call::Use, Reason::Invalid);
                            return self.reset(now, update.flow, Reason::Invalid);
                        };
                        filled = grown;
                    }
                }
                // The data path does not check this again.
                update.filled = filled;
                self.requests.push_back((from, update));
            }
            Request::Listen { listener, local, backlog, sharing } => {
                self.listen(from, listener, local, backlog, sharing);
            }
            Request::Share { listener } => self.share(from, listener),
            Request::Unlisten { listener } => self.unlisten(from, listener),
            Request::Slot { listener, socket, receive, send, filled } => {
                let slot = Slot { socket, receive, send, filled };
                let failed = match slot.is_valid_in(&mut memory) {
                    true => self.add_slot(from, listener, slot),
                    false => {
                        self.refused(from, Call::Accept, Reason::Invalid);
                        Some(Reason::Invalid)
                    }
                };
                if let Some(reason) = failed {
                    self.notify(from, Event::Failed { socket, reason });
                }
            }
            Request::LimitSegments { listener, mss_max } => {
                if let Some(at) = self.listener_of(from, listener) {
                    self.listeners[at].mss_max = mss_max;
                }
            }
            Request::Connect { socket, remote, local_port, mss_max, receive, send, filled } => {
                let slot = Slot { socket, receive, send, filled };
                let started = match slot.is_valid_in(&mut memory) {
                    true => self.connect(now, from, slot, remote, local_port, mss_max),
                    false => Err(Reason::Invalid),
                };
                if let Err(reason) = started {
                    self.refused(from, Call::Connect, reason);
                    self.notify(from, Event::Failed { socket, reason });
                }
            }
            // The front's: it has the descriptors.
            Request::Placeholders => {}
            Request::Join { secret } => self.join(from.process, secret),
            Request::Lend { flow, secret } => {
                self.lend(from.process, flow, secret);
                self.notify(from, Event::Lent { flow });
            }
            Request::Take { flow, socket, receive, send, read, written } => {
                let slot = Slot { socket, receive, send, filled: FILL_MAX };
                let has_both = slot.is_valid_in(&mut memory)
                    && FILL_MAX <= send.bytes
                    && memory.is_backed(send.offset, FILL_MAX);
                let refused = match has_both {
                    true => self.take_over(now, from, flow, slot, [read, written]).err(),
                    false => Some(Reason::Invalid),
                };
                if let Some(reason) = refused {
                    self.refused(from, Call::TakeOver(flow), reason);
                    self.notify(from, Event::Failed { socket, reason });
                }
            }
            Request::QueryTcpInfo { flow } => self.report_tcp_info(from, flow),
            Request::QueryLocalAddress { socket } => self.report_local_address(from, socket),
            Request::Accept { flow } => self.accept(from, flow),
            Request::Cancel { socket } => self.cancel(from, socket),
            Request::ShutdownRead { flow } => {
                let own = self.connection(flow).filter(|own| own.context.process == from.process);
                if let Some(own) = own {
                    own.shut_reported.read = true;
                }
            }
            Request::Close { flow } => self.close(now, from, flow),
            Request::Abort { flow } => self.abort(from, flow),
            Request::Configure { flow, options } => self.configure(now, from, flow, options),
            // For people: the caller has read it.
            Request::Report { .. } => {}
        }
    }

    /// Checks that a host has the memory that it claims for a connection's rings. Returns their verified memory; `None` if some
    /// is missing.
    fn verify_rings(
        &mut self,
        update: &Update,
        had: Filled,
        memory: &mut impl PayloadMemory,
    ) -> Option<Filled> {
        let state = self.data.inspect(update.flow)?;
        let mut look = |ring: Ring, had: u32, has: u32| {
            let is_there = has <= had
                || (has <= ring.bytes && memory.is_backed(ring.offset + u64::from(had), has - had));
            is_there.then_some(has.max(had))
        };
        let filled = Filled {
            receive: look(state.receiving.ring, had.receive, update.filled.receive)?,
            send: look(state.sending.ring, had.send, update.filled.send)?,
        };
        self.connection(update.flow)?.filled = filled;
        Some(filled)
    }
}
