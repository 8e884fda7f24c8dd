//! The front's host, with its open requests.

use std::time::Instant;

use bytes::Bytes;
use wave_agent::{Attached, HostBell, HostLine, OwnBell};
use wave_core::clock::Nanos;
use wave_core::message::Subject;
use wave_links::AnyPort;
use wave_rpc::dispatch::{Arrival, Dispatch, Refused};
use wave_rpc::service::{Method, Service};
use wave_rpc::steer::Steering;
use wave_udp_client::wire::Header;

use crate::memcached::{self, Asked};
use crate::path::Path;
use crate::senders::SenderId;

/// A request that was handed to the dispatcher.
#[derive(Clone, Debug)]
pub struct Open {
    pub to: Path,
    pub origin: Origin,
    /// Reply message that arrived before its status.
    pub message: Option<Bytes>,
}

/// The datagram of a request.
#[derive(Clone, Debug)]
pub enum Origin {
    /// In the front's own format.
    Own {
        sender: SenderId,
        header: Header,
        /// When the request was received, if the reply should report the time spent at the front.
        received: Option<Instant>,
    },
    /// A memcached command.
    Memcached(Asked),
}

pub struct Host {
    pub dispatch: Dispatch<AnyPort, HostBell>,
    pub line: HostLine,
    pub bell: OwnBell,
    pub methods: Vec<Method>,
    /// Indices of the methods that serve memcached commands, if the host has them.
    pub memcached: Option<[u16; 3]>,
    /// Open requests by call id.
    pub open: Vec<Option<Open>>,
    pub polled_at: Nanos,
}

impl Host {
    /// A host that has just been found. Its methods are unknown until it sends its service.
    pub fn new(now: Nanos, attached: Attached, steering: Box<dyn Steering>) -> Host {
        let Attached { layout, port, host_bells, own_bell, connection, .. } = attached;
        let subjects = layout.config.subjects;
        let mut dispatch = Dispatch::new(layout, port, host_bells, steering);
        dispatch.announce();
        Host {
            dispatch,
            line: connection,
            bell: own_bell,
            methods: Vec::new(),
            memcached: None,
            open: vec![None; subjects as usize],
            polled_at: now,
        }
    }

    /// Stores the host's service.
    pub fn learn(&mut self, service: Service) {
        self.memcached = memcached::methods_of(&service.methods);
        self.methods = service.methods;
    }

    /// Number of further requests that may be open.
    pub fn room(&self) -> u32 {
        (self.open.len() as u32).saturating_sub(self.dispatch.open())
    }

    /// Hands a request for a unary method to the dispatcher. Class 0 means the method's own class.
    ///
    /// # Errors
    /// There is no room, or the host is gone.
    pub fn begin(
        &mut self,
        now: Nanos,
        method: u16,
        class: u8,
        message: Bytes,
        open: Open,
    ) -> Result<(), Refused> {
        let Method { class: own, class_max, slo_us, .. } = self.methods[usize::from(method)];
        let arrival = Arrival {
            method,
            class: if class == 0 { own } else { class }.min(class_max),
            slo: (slo_us > 0).then(|| Nanos::from_micros(slo_us.into())),
            hash: u64::from(open.to.client.port()),
            // The door limits senders and their addresses.
            address: None,
            message: Some(message),
            end: true,
            ..Arrival::default()
        };
        let call = self.dispatch.begin(now, arrival)?;
        self.open[call.id as usize] = Some(open);
        Ok(())
    }

    /// Removes the open request of an ended call.
    pub fn end(&mut self, call: Subject) -> Option<Open> {
        self.open.get_mut(call.id as usize).and_then(Option::take)
    }
}
