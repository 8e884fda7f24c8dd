//! The state of a socket, as calls see it.

use rustix::io::Errno;
use wave_posix::Phase;

use crate::description::{Description, State, Tcp, View};
use crate::world::World;

impl World {
    /// Updates a description from its agent's socket, and returns the state that calls see.
    pub fn view(&mut self, at: usize) -> View {
        let Description { incarnation, state, .. } = *self.description(at);
        let mut view = View {
            tcp: Tcp::Closed,
            available: 0,
            is_readable: false,
            room: 0,
            ring: 0,
            is_done: false,
            is_read_shut: false,
            is_write_shut: false,
            has_error: false,
            arrived: 0,
        };
        match state {
            State::Idle | State::NotOwned | State::Stream => {}
            State::Reset => {
                view.available = self.description(at).left.len() as u64;
                view.is_read_shut = true;
                view.is_write_shut = true;
            }
            State::Listening { listener, .. } => {
                view.tcp = Tcp::Listen;
                if let Some(listener) = listener {
                    let context = self.context(incarnation);
                    let is_there = !context.is_dead();
                    view.arrived = if is_there { context.acceptable(listener) as u64 } else { 0 };
                }
            }
            State::Connecting(name) | State::Open(name) | State::Over(name) => {
                let context = self.context(incarnation);
                let is_dead = context.is_dead();
                let socket = context.socket(name);
                let (phase, error) = (socket.phase, socket.error);
                view.available = socket.receiving.available();
                view.arrived = socket.receiving.received;
                view.is_done = socket.receiving.has_end();
                view.room = socket.sending.room();
                view.ring = socket.sending.ring.bytes.into();
                let is_sent = socket.sending.unacknowledged() == 0;
                let window = socket.receiving.window();
                let mss = socket.mss;
                let description = self.description(at);
                // Below the low-water mark as well if the peer can hardly send more.
                let is_enough = view.available >= description.low_water as u64;
                view.is_readable = view.available > 0 && (is_enough || window <= mss.into());
                match (state, phase) {
                    (State::Over(_), _) => {}
                    (_, Phase::Ended) => {
                        let errno = error.map(Errno::from_raw_os_error);
                        // tcp_reset: in CLOSE_WAIT, a reset is reported as EPIPE.
                        let is_close_wait = matches!(state, State::Open(_))
                            && view.is_done
                            && !description.is_write_shut
                            && errno == Some(Errno::CONNRESET)
                            && !is_dead;
                        description.error = if is_close_wait { Some(Errno::PIPE) } else { errno };
                        description.state = State::Over(name);
                    }
                    (State::Connecting(_), Phase::Open(_)) => description.state = State::Open(name),
                    _ => {}
                }
                view.tcp = match description.state {
                    State::Connecting(_) => Tcp::SynSent,
                    // TIME_WAIT and beyond.
                    State::Open(_) if view.is_done && description.is_write_shut && is_sent => {
                        Tcp::Closed
                    }
                    State::Open(_) => Tcp::Open,
                    _ => Tcp::Closed,
                };
                view.is_read_shut = view.is_done || matches!(description.state, State::Over(_));
                view.is_write_shut = matches!(description.state, State::Over(_));
            }
        }
        let description = self.description(at);
        view.is_read_shut |= description.is_read_shut;
        view.is_write_shut |= description.is_write_shut;
        view.has_error = description.error.is_some();
        view
    }
}
