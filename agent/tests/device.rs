//! Attaching through a device to a host that the test plays: QEMU's protocol, a file in place of the guest's
//! memory, and a window with scattered pages.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use wave_agent::{AttachError, Attached, DeviceError, attach_device};
use wave_core::layout::{Config, Layout, PROTOCOL_VERSION, write_header};
use wave_core::link::{Doorbell, Home, Port, Waiter, Window};
use wave_links::Memory;
use wave_links::memory::{PAGE_BYTES, Page};
use wave_links::pci::ivshmem::{Peer, Server};
use wave_links::pci::mailbox::{CONTROL_VECTOR, Greeting, HostEnd, Offer, Place};
use wave_links::shm::{ShmPort, ShmWindow};

const BAR_BYTES: u64 = 1 << 20;
const CORES: u16 = 2;

/// A virtual machine, and the host side behind its device.
struct Host {
    folder: TempDir,
    peer: Peer,
    end: HostEnd<ShmWindow>,
    layout: Layout,
}

impl Host {
    fn new() -> Host {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("ivshmem");
        let server = Server::bind(&socket, BAR_BYTES, 8).unwrap();
        std::thread::spawn(move || server.serve());
        let mut peer = Peer::connect(&socket).unwrap();
        while peer.own().len() < 8 {
            peer.update().unwrap();
        }
        let bar = Memory::device(peer.memory(), 0, BAR_BYTES).unwrap();
        let lines = bar.lines(Home::Nic);
        let end = HostEnd::new(ShmWindow::new(Arc::new(bar), Home::Nic), lines);
        let mut config = Config::coherent(CORES);
        config.subjects = 64;
        config.messages.entries = 64;
        Host { folder, peer, end, layout: Layout::new(config).unwrap() }
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn greet(&self, version: u32) {
        let vectors = usize::from(CORES) + 1;
        self.end.greet(Greeting { version, life: 1, number: self.peer.id(), vectors });
    }

    /// Waits until an agent rings, and returns its request.
    fn request(&self) -> (u64, u32) {
        assert!(self.peer.own()[CONTROL_VECTOR].wait(Some(Duration::from_secs(10))));
        self.end.request()
    }

    /// Places for the window's pages: in the guest's memory in descending order, except the third, which is in the device's.
    fn places(&self) -> Vec<Place> {
        let bytes = u64::from(self.layout.nic_lines + self.layout.host_lines) * 64;
        let pages = bytes.div_ceil(PAGE_BYTES);
        let place = |page| match page {
            2 => Place::Device(BAR_BYTES - PAGE_BYTES),
            page => Place::Host((2 * pages - page) * PAGE_BYTES),
        };
        (0..pages).map(place).collect()
    }

    fn memory(&self) -> File {
        let path = self.folder().join("memory");
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.unwrap();
        file.set_len(16 << 20).unwrap();
        file
    }

    /// The window as the host maps it.
    fn window(&self, places: &[Place]) -> Arc<Memory> {
        let memory = self.memory();
        let page = |place: &Place| match *place {
            Place::Host(offset) => Page { file: memory.as_fd(), offset },
            Place::Device(offset) => Page { file: self.peer.memory(), offset },
        };
        let pages: Vec<Page<'_>> = places.iter().map(page).collect();
        let Layout { nic_lines, host_lines, .. } = self.layout;
        Arc::new(Memory::of_pages(&pages, nic_lines, host_lines).unwrap())
    }

    fn offer(&self, request: u64, places: Vec<Place>) {
        let Layout { nic_lines, host_lines, .. } = self.layout;
        self.end.offer(request, &Offer { nic_lines, host_lines, pages: places });
    }

    /// The result of an agent that attaches while `answer` acts as the host.
    fn attached(&self, answer: impl FnOnce(u64)) -> Result<Attached, AttachError> {
        let folder = self.folder().to_owned();
        let agent = std::thread::spawn(move || attach_device(&folder));
        answer(self.request().0);
        agent.join().unwrap()
    }
}

fn device_error(result: Result<Attached, AttachError>) -> DeviceError {
    match result {
        Err(AttachError::Device(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn both_sides_see_the_same_window_of_scattered_pages() {
    let mut host = Host::new();
    let places = host.places();
    let port = ShmPort::new(&host.window(&places));
    write_header(&host.layout, port.window(Home::Nic));
    host.greet(PROTOCOL_VERSION);
    let attached = host.attached(|request| host.offer(request, places)).unwrap();
    assert_eq!(attached.layout.config, host.layout.config);
    assert_eq!(attached.link, "pci");
    for (home, lines) in [(Home::Nic, host.layout.nic_lines), (Home::Host, host.layout.host_lines)]
    {
        for line in (0..lines).rev().step_by(7) {
            port.window(home).store(line, 3, u64::from(line) + 1);
            assert_eq!(attached.port.window(home).load(line, 3), u64::from(line) + 1);
        }
    }
    // The agent rings the cores' bells, then the control context's; then the host rings the agent.
    let vectors = [1, 2, CONTROL_VECTOR];
    assert_eq!(attached.host_bells.len(), vectors.len());
    for (bell, vector) in attached.host_bells.iter().zip(vectors) {
        bell.ring();
        assert!(host.peer.own()[vector].wait(Some(Duration::from_secs(5))), "{vector}");
        assert!(host.end.rings(vector) > 0);
    }
    let number = host.end.request().1;
    let (agent, vector) = ((number >> 16) as u16, (number & 0xffff) as usize);
    while host.peer.of(agent).len() <= vector {
        host.peer.update().unwrap();
    }
    host.peer.of(agent)[vector].ring();
    assert!(attached.own_bell.wait(Some(Duration::from_secs(5))));

    assert!(!attached.connection.hung_up());
    host.end.close();
    assert!(attached.connection.hung_up());
    drop(attached);
    assert_eq!(host.end.request().0, 0);
}

#[test]
fn a_refusal_is_reported() {
    let host = Host::new();
    host.greet(PROTOCOL_VERSION);
    let error = device_error(host.attached(|request| host.end.refuse(request, "no room")));
    assert!(matches!(&error, DeviceError::Refused(why) if why == "no room"), "{error}");
}

#[test]
fn other_protocol_version_is_reported() {
    let host = Host::new();
    host.greet(PROTOCOL_VERSION + 1);
    let error = device_error(attach_device(host.folder()));
    assert!(matches!(error, DeviceError::Version { theirs, .. } if theirs == PROTOCOL_VERSION + 1));
}

#[test]
fn page_outside_all_memory_is_the_hosts_fault() {
    let outside = [
        Place::Host(16 << 20),
        Place::Host(u64::MAX - 4095),
        Place::Host(100),
        Place::Device(BAR_BYTES),
    ];
    for place in outside {
        let host = Host::new();
        host.memory();
        host.greet(PROTOCOL_VERSION);
        let mut places = host.places();
        places[1] = place;
        let error = device_error(host.attached(|request| host.offer(request, places)));
        assert!(matches!(error, DeviceError::Nonsense(_)), "{place:?}: {error}");
    }
}

#[test]
fn too_few_pages_are_the_hosts_fault() {
    let host = Host::new();
    host.memory();
    host.greet(PROTOCOL_VERSION);
    let mut places = host.places();
    places.pop();
    let error = host.attached(|request| host.offer(request, places)).unwrap_err();
    assert!(matches!(&error, AttachError::Map(error) if error.is_peers_fault()), "{error}");
}

#[test]
fn a_window_without_a_header_is_refused() {
    let host = Host::new();
    host.memory();
    host.greet(PROTOCOL_VERSION);
    let places = host.places();
    let error = host.attached(|request| host.offer(request, places)).unwrap_err();
    assert!(matches!(error, AttachError::Header(_)), "{error}");
}
