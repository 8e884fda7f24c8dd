//! The front as its clients see it: over real sockets, before a real host.

mod calls;
mod fixture;
mod hostile;
mod killed;
mod memcached;
mod wildcard;
