//! A host's service, indexed for lookups.

use std::collections::{BTreeSet, HashMap};

use wave_rpc::service::{Method, Service};

use crate::reflection::Files;

/// Descriptors of the services that a front answers itself.
const OWN_SERVICES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/own_services.bin"));

/// A host's methods, and its descriptors.
#[derive(Debug)]
pub struct Methods {
    methods: Vec<Method>,
    by_path: HashMap<String, u16>,
    services: BTreeSet<String>,
    files: Files,
}

impl Methods {
    /// Indexes a checked service.
    pub fn new(service: Service) -> Methods {
        let paths = service.methods.iter().zip(0..);
        let by_path = paths.map(|(method, at)| (method.path.clone(), at)).collect();
        let name = |method: &Method| Some(method.path.split('/').nth(1)?.to_owned());
        let services: BTreeSet<_> = service.methods.iter().filter_map(name).collect();
        Methods {
            by_path,
            services,
            files: Files::new(&[OWN_SERVICES, &service.descriptors]),
            methods: service.methods,
        }
    }

    /// The index of the method with this path.
    pub fn find(&self, path: &str) -> Option<u16> {
        self.by_path.get(path).copied()
    }

    /// The method of an index from [`Methods::find`].
    pub fn get(&self, method: u16) -> &Method {
        &self.methods[usize::from(method)]
    }

    /// The names of the host's services.
    pub fn services(&self) -> &BTreeSet<String> {
        &self.services
    }

    /// Descriptors that reflection shows: the front's own, and the host's.
    pub fn files(&self) -> &Files {
        &self.files
    }
}
