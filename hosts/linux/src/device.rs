//! An agent behind a PCI device: the place of its window, and the doorbells in both directions.
//!
//! The window is a BPF array like any other; the device reaches its pages by DMA. If the home of the decisions
//! is the device, their pages of the window are in its memory instead, where the BPF program reads them across
//! the link and never writes.
//!
//! An agent that was turned out loses its pages at the IOMMU. A device of a virtual machine may be emulated
//! without an IOMMU (ivshmem: a process that maps the guest's memory), and may still write for a moment. So a
//! window's pages are never given back while such an agent may live: windows are reused, and stay in the kernel
//! when this process is killed, until the next one has told the agent to leave.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use wave_core::layout::{Layout, PROTOCOL_VERSION, write_header};
use wave_core::link::{Doorbell, Home, Port, Side};
use wave_host::no_window;
use wave_links::memory::PAGE_BYTES;
use wave_links::pci::ivshmem::{REGISTER_DOORBELL, REGISTER_OWN_ID};
use wave_links::pci::mailbox::{self, Greeting, HostEnd, Offer, Place};
use wave_links::pci::{Access, Device, DeviceError};
use wave_links::shm::ShmWindow;
use wave_links::{AnyPort, EventFd, LinkSpec, Memory};
use wave_process::places::own_dir;

use crate::window::Window;

/// Number of windows that are kept; there are more only while more are in use.
const WINDOWS_KEPT: usize = 4;
const MEMORY_BAR: u32 = 2;
/// How long an agent may take to leave after the host has ended.
const FAREWELL: Duration = Duration::from_millis(500);
/// Folder where windows stay when this process is killed.
const PINS: &str = "/sys/fs/bpf/wave-device";

/// The device behind which agents are, and how to use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// PCI address, such as `0000:00:01.0`.
    pub address: String,
    /// How to access the device: VFIO or sysfs.
    pub access: Access,
    /// Home of the queues of decisions: in host memory the agent writes them across the link, in NIC memory the
    /// host's cores read them across it.
    pub decisions: Home,
}

/// The device, with the windows and bells of the agents behind it.
pub(crate) struct Nic {
    end: HostEnd<ShmWindow>,
    /// The control context's bell, then a bell per core.
    bells: Vec<EventFd>,
    /// How often each bell was rung, if the device does not interrupt.
    seen: Option<Vec<u64>>,
    /// Where the kernel has mapped the device's memory, if that holds the decisions.
    far: Option<u64>,
    memory: Arc<Memory>,
    windows: Vec<Arc<NicWindow>>,
    pins: PathBuf,
    answered: u64,
    // Dropped after its mappings: the kernel's driver releases the device when no mapping is left.
    device: Arc<Device>,
}

struct NicWindow {
    window: Arc<Window>,
    /// Offset of the window's decisions in the device's memory, in bytes.
    far: Option<u64>,
}

/// A window of an agent behind the device. Dropping it ends the device's access to its pages.
pub(crate) struct Lease {
    made: Arc<NicWindow>,
    device: Arc<Device>,
    pages: Vec<u64>,
    /// Number of the agent's request.
    pub(crate) request: u64,
    number: u32,
}

/// The window and bells of an agent behind the device, and the host's ends of them.
pub(crate) struct Leased {
    /// The control context's access to the window.
    pub(crate) port: AnyPort,
    /// A bell per core, then the control context's.
    pub(crate) bells: Vec<EventFd>,
    pub(crate) lease: Lease,
}

impl Lease {
    pub(crate) fn window(&self) -> &Arc<Window> {
        &self.made.window
    }

    pub(crate) fn ring(&self) {
        self.device.write(REGISTER_DOORBELL, self.number);
    }

    /// Tells the agent why it is refused.
    pub(crate) fn refuse(&self, nic: &mut Nic, why: &str) {
        nic.refuse(self.request, self.number, why);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.device.forget(&self.pages);
    }
}

impl Nic {
    /// Takes the device. The agent behind it must wait until [`Nic::greet`].
    pub(crate) fn open(options: &DeviceOptions, layout: &Layout) -> Result<Nic, DeviceError> {
        let device = Device::open(&options.address, options.access)?;
        let cores = usize::from(layout.config.cores);
        let bar = Arc::new(device.bar(MEMORY_BAR)?);
        let lines = bar.lines(Home::Nic);
        let small = |what, have: usize, need: usize| {
            let address = options.address.clone();
            Err(DeviceError::TooSmall { address, what, have: have as u64, need: need as u64 })
        };
        let pages = window_pages(layout);
        let lists = mailbox::pages_max(lines);
        if pages > lists {
            return small("words of memory (BAR 2) for a list of pages", lists, pages);
        }
        if cores + 1 > mailbox::VECTORS_MAX {
            return small("doorbells", mailbox::VECTORS_MAX, cores + 1);
        }
        let vectors = device.vectors(cores + 1)?;
        let far = match options.decisions {
            Home::Host => None,
            Home::Nic => {
                let page_lines = PAGE_BYTES as usize / 64;
                let lines_of_decisions = decision_lines(layout);
                if !lines_of_decisions.is_multiple_of(page_lines) {
                    return small("decisions to fill pages with", lines_of_decisions, page_lines);
                }
                let decisions = far_pages(layout) * PAGE_BYTES as usize;
                let need = mailbox::end_of_list(pages) as usize + WINDOWS_KEPT * decisions;
                let have = lines as usize * 64;
                if need > have {
                    return small("bytes of memory (BAR 2)", have, need);
                }
                Some(device.kernel_address(MEMORY_BAR)?)
            }
        };
        let system = |error| DeviceError::System {
            doing: "keeping windows for",
            address: options.address.clone(),
            error,
        };
        // bpffs refuses names with dots.
        let pins = PathBuf::from(PINS).join(options.address.replace('.', "-"));
        // If bpffs was mounted carelessly, any user may create folders in it.
        for folder in [Path::new(PINS), &pins] {
            own_dir(folder).map_err(|error| system(std::io::Error::other(error)))?;
        }
        let seen = vectors.is_none().then(|| vec![0; cores + 1]);
        let bells = match vectors {
            Some(vectors) => vectors,
            None => {
                (0..=cores).map(|_| EventFd::new()).collect::<Result<_, _>>().map_err(system)?
            }
        };
        let end = HostEnd::new(ShmWindow::new(Arc::clone(&bar), Home::Nic), lines);
        let (device, windows) = (Arc::new(device), Vec::new());
        Ok(Nic { device, end, bells, seen, far, memory: bar, windows, pins, answered: 0 })
    }

    /// Greets the agent behind the device, which must answer soon afterwards.
    pub(crate) fn greet(&self) {
        self.end.greet(Greeting {
            version: PROTOCOL_VERSION,
            life: RandomState::new().hash_one(std::process::id()),
            number: self.device.read(REGISTER_OWN_ID) as u16,
            vectors: self.bells.len(),
        });
        if fs::read_dir(&self.pins).is_ok_and(|mut left| left.next().is_some()) {
            // An earlier host was killed. Its agent, if still alive, finds that the host has changed, and leaves.
            std::thread::sleep(FAREWELL);
            remove_pins(&self.pins);
        }
    }

    /// The bells that the device rings: a bell per core, then control's.
    fn bells(&self) -> std::io::Result<Vec<EventFd>> {
        self.bells[1..].iter().chain(&self.bells[..1]).map(EventFd::try_clone).collect()
    }

    /// The bell of the control context.
    pub(crate) fn control_bell(&self) -> &EventFd {
        &self.bells[mailbox::CONTROL_VECTOR]
    }

    /// Whether its memory holds the decisions.
    pub(crate) fn has_decisions(&self) -> bool {
        self.far.is_some()
    }

    /// Whether the device does not interrupt, so that it must be polled by [`Nic::poll_rings`].
    pub(crate) fn is_polled(&self) -> bool {
        self.seen.is_some()
    }

    /// If the device does not interrupt, passes on rings since the last call.
    pub(crate) fn poll_rings(&mut self) {
        let Some(seen) = &mut self.seen else { return };
        for (vector, seen) in seen.iter_mut().enumerate() {
            let rings = self.end.rings(vector);
            if rings != *seen {
                *seen = rings;
                self.bells[vector].ring();
            }
        }
    }

    /// Makes a window for an agent with a new request, if there is room; otherwise tells the agent why not.
    pub(crate) fn answer(
        &mut self,
        layout: &Layout,
        room: Result<(), &'static str>,
    ) -> Option<Leased> {
        let (request, number) = self.asked()?;
        let made = match room {
            Ok(()) => self.make_lease(layout, request, number).map_err(no_window),
            Err(full) => Err(full.to_owned()),
        };
        made.inspect_err(|why| self.refuse(request, number, why)).ok()
    }

    fn make_lease(
        &mut self,
        layout: &Layout,
        request: u64,
        number: u32,
    ) -> Result<Leased, Box<dyn std::error::Error>> {
        let lease = self.lease(layout, request, number)?;
        let memory = &lease.window().memory;
        let port = LinkSpec::Shm.port(memory, Side::Host, &layout.mappings(Side::Host))?;
        write_header(layout, port.window(Home::Nic));
        let bells = self.bells()?;
        self.offer(layout, &lease);
        Ok(Leased { port, bells, lease })
    }

    /// An agent's request for a window that was not answered yet.
    fn asked(&mut self) -> Option<(u64, u32)> {
        let (request, number) = self.end.request();
        (request != 0 && request != self.answered).then_some((request, number))
    }

    /// Whether the agent with this request has left.
    pub(crate) fn left(&self, request: u64) -> bool {
        request == self.answered && self.end.request().0 == 0
    }

    /// Tells the agent why it gets no window.
    pub(crate) fn refuse(&mut self, request: u64, number: u32, why: &str) {
        self.answered = request;
        self.end.refuse(request, why);
        self.device.write(REGISTER_DOORBELL, number);
    }

    /// Makes a window for an agent's request; [`Nic::offer`] describes it once it is ready.
    fn lease(
        &mut self,
        layout: &Layout,
        request: u64,
        number: u32,
    ) -> Result<Lease, Box<dyn std::error::Error>> {
        self.answered = request;
        let made = match self.windows.iter().position(|made| Arc::strong_count(made) == 1) {
            Some(free) if self.windows.len() >= WINDOWS_KEPT => {
                // The window that has been free the longest.
                let made = self.windows.remove(free);
                for word in [Home::Nic, Home::Host]
                    .into_iter()
                    .flat_map(|home| made.window.memory.region(home))
                {
                    word.store(0, Ordering::SeqCst);
                }
                made
            }
            None if self.windows.len() >= WINDOWS_KEPT => {
                return Err("too many agents have windows".into());
            }
            _ => self.make(layout)?,
        };
        if let Some(offset) = made.far {
            let words = far_pages(layout) * PAGE_BYTES as usize / 8;
            for word in &self.memory.region(Home::Nic)[offset as usize / 8..][..words] {
                word.store(0, Ordering::SeqCst);
            }
        }
        self.windows.push(Arc::clone(&made));
        let pages = self.device.reach(&made.window.memory)?;
        Ok(Lease { made, device: Arc::clone(&self.device), pages, request, number })
    }

    fn make(&self, layout: &Layout) -> Result<Arc<NicWindow>, Box<dyn std::error::Error>> {
        let mut window = Window::new(layout)?;
        let slot = self.windows.len();
        window.pin(&self.pins.join(slot.to_string()))?;
        let far = self.far.map(|_| {
            let decisions = far_pages(layout) as u64 * PAGE_BYTES;
            mailbox::end_of_list(window_pages(layout)) + slot as u64 * decisions
        });
        Ok(Arc::new(NicWindow { window: Arc::new(window), far }))
    }

    /// Where the BPF program reads a window's decisions, if not in the window.
    pub(crate) fn far(&self, lease: &Lease) -> Option<u64> {
        Some(self.far? + lease.made.far?)
    }

    /// Tells the agent where its window is.
    fn offer(&self, layout: &Layout, lease: &Lease) {
        let mut pages: Vec<Place> = lease.pages.iter().copied().map(Place::Host).collect();
        if let Some(offset) = lease.made.far {
            let first = first_far_page(layout);
            for (at, page) in pages[first..][..far_pages(layout)].iter_mut().enumerate() {
                *page = Place::Device(offset + at as u64 * PAGE_BYTES);
            }
        }
        let Layout { nic_lines, host_lines, .. } = *layout;
        self.end.offer(lease.request, &Offer { nic_lines, host_lines, pages });
        lease.ring();
    }
}

impl Drop for Nic {
    /// Tells agents to leave when the enclave ends; their windows are freed once they have left.
    fn drop(&mut self) {
        self.end.close();
        let limit = std::time::Instant::now() + FAREWELL;
        while self.answered != 0
            && self.end.request().0 == self.answered
            && std::time::Instant::now() < limit
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        remove_pins(&self.pins);
        let _ = fs::remove_dir(&self.pins);
    }
}

fn remove_pins(pins: &Path) {
    for entry in fs::read_dir(pins).into_iter().flatten().flatten() {
        let _ = fs::remove_file(entry.path());
    }
}

fn window_pages(layout: &Layout) -> usize {
    let bytes = u64::from(layout.nic_lines + layout.host_lines) * 64;
    bytes.div_ceil(PAGE_BYTES) as usize
}

/// Number of pages that hold the decisions. These begin at a page boundary, as [`Layout`] places them, and end
/// at one, as [`Nic::open`] has checked.
fn far_pages(layout: &Layout) -> usize {
    decision_lines(layout) * 64 / PAGE_BYTES as usize
}

fn decision_lines(layout: &Layout) -> usize {
    layout.decisions.len() * layout.decisions[0].ring.entries as usize
}

fn first_far_page(layout: &Layout) -> usize {
    layout.decisions[0].ring.first as usize * 64 / PAGE_BYTES as usize
}
