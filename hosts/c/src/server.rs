//! Starting and stopping a server.

use std::ffi::c_char;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use wave_core::clock::Nanos;
use wave_user::rpc::{Code, Method, Methods, Options, Server, Status};

use crate::answer::{Failure, WAVE_RPC_OK, WAVE_RPC_STOPPED, answer};
use crate::handle::{Kind, Shell};
use crate::text::{slice, text};
use crate::worker::{WorkerState, wave_rpc_worker};

/// [`wave_rpc_method::streams`]: the client sends any number of messages.
pub const WAVE_RPC_CLIENT_STREAMS: u32 = 1;
/// [`wave_rpc_method::streams`]: the server sends any number of messages.
pub const WAVE_RPC_SERVER_STREAMS: u32 = 2;

/// A method that a server offers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct wave_rpc_method {
    /// Path of the method, as `/package.Service/Method`.
    pub path: *const c_char,
    /// Which sides stream: `WAVE_RPC_CLIENT_STREAMS`, `WAVE_RPC_SERVER_STREAMS`, both or 0.
    pub streams: u32,
    /// Latency objective of its requests in microseconds; 0 for none.
    pub slo_us: u32,
    /// Number of the request's protobuf field (a varint) that holds its latency objective; 0 for none.
    pub slo_field: u16,
    /// Class of requests that do not ask for one.
    pub request_class: u8,
    /// The highest class that a request may ask for.
    pub request_class_max: u8,
}

/// [`wave_rpc_options::flags`]: workers share their CPUs.
pub const WAVE_RPC_SHARE_CPU: u32 = 1;

/// Options of a server.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct wave_rpc_options {
    /// Size of this structure in bytes, according to the caller's header.
    pub size: usize,
    /// Path of the socket where agents attach.
    pub socket: *const c_char,
    /// The methods served.
    pub methods: *const wave_rpc_method,
    /// Number of methods.
    pub methods_count: usize,
    /// Users whose agents may attach, besides this process's own and root.
    pub allowed_uids: *const u32,
    /// Number of user ids.
    pub allowed_uids_count: usize,
    /// A serialized `google.protobuf.FileDescriptorBitmap`, for reflection.
    pub descriptors: *const u8,
    /// Length of the descriptors in bytes.
    pub descriptors_bytes: usize,
    /// Number of workers, 240 at most; 0 for 1.
    pub workers: u16,
    /// Must be zero.
    pub reserved: u16,
    /// Most open calls; 0 for 1024.
    pub calls: u32,
    /// Entries of each queue, a power of two; 0 for 1024.
    pub ring_entries: u32,
    /// Microseconds for which a worker polls before it sleeps, if most recent calls arrived within that time; 0 for the default.
    pub spin_us: u32,
    /// [`WAVE_RPC_SHARE_CPU`], or 0.
    pub flags: u32,
}

/// State of a server behind its handle.
pub struct ServerState {
    server: Server,
    is_stopped: Arc<AtomicBool>,
    workers: Vec<usize>,
}

/// Handle of a server.
pub type wave_rpc_server = Shell<ServerState>;

impl Kind for ServerState {
    const WORD: u64 = u64::from_le_bytes(*b"waveserv");
    const NAME: &'static str = "server";
}

/// The value of an options field, or its default.
fn or<T: Default + PartialEq>(field: T, default: T) -> T {
    if field == T::default() { default } else { field }
}

/// # Safety
/// As the header requires.
unsafe fn options(from: &wave_rpc_options) -> Result<Options, Failure> {
    // SAFETY: the caller's promise.
    let mut options = Options::new(unsafe { text("socket", from.socket) }?);
    // SAFETY: as above.
    let uids = unsafe { slice("allowed_uids", from.allowed_uids, from.allowed_uids_count) }?;
    options.allowed_uids = uids.to_vec();
    if from.flags & !WAVE_RPC_SHARE_CPU != 0 || from.reserved != 0 {
        return Err(Failure::argument("the options have flags that this version does not know"));
    }
    options.yields_cpu = from.flags & WAVE_RPC_SHARE_CPU != 0;
    let config = &mut options.config;
    config.cores = or(from.workers, config.cores);
    config.subjects = or(from.calls, config.subjects);
    config.messages.entries = or(from.ring_entries, config.messages.entries);
    config.decisions.entries = or(from.ring_entries, config.decisions.entries);
    if from.spin_us != 0 {
        config.spin = Nanos::from_micros(from.spin_us.into());
        options.spin = config.spin;
    }
    Ok(options)
}

/// # Safety
/// As the header requires.
unsafe fn methods(from: &wave_rpc_options) -> Result<Methods, Failure> {
    let mut methods = Methods::new();
    // SAFETY: the caller's promise.
    for method in unsafe { slice("methods", from.methods, from.methods_count) }? {
        // SAFETY: as above.
        let path = unsafe { text("a method's path", method.path) }?;
        if method.streams & !(WAVE_RPC_CLIENT_STREAMS | WAVE_RPC_SERVER_STREAMS) != 0 {
            return Err(Failure::argument(format!(
                "method {path}: invalid value of streams: {:#x}",
                method.streams
            )));
        }
        let method = Method {
            path: path.into(),
            client_streams: method.streams & WAVE_RPC_CLIENT_STREAMS != 0,
            server_streams: method.streams & WAVE_RPC_SERVER_STREAMS != 0,
            class: method.request_class,
            class_max: method.request_class_max,
            slo_us: method.slo_us,
            slo_field: method.slo_field,
        };
        // Workers are polled, so this handler is never called.
        methods =
            methods.method(method, |_| Err(Status::new(Code::Internal, "workers are polled")));
    }
    // SAFETY: the caller's promise.
    let descriptors = unsafe { slice("descriptors", from.descriptors, from.descriptors_bytes) }?;
    Ok(methods.descriptors(descriptors))
}

/// Starts a server.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wave_rpc_server_start(
    options: *const wave_rpc_options,
    server: *mut *mut wave_rpc_server,
) -> i32 {
    answer(|| {
        if server.is_null() || options.is_null() {
            return Err(Failure::argument("options or server is null"));
        }
        // SAFETY: the caller's promise: the structure begins with its size.
        let size = unsafe { options.cast::<usize>().read() };
        if size != size_of::<wave_rpc_options>() {
            return Err(Failure::argument(format!(
                "options of {size} bytes are of another version: begin with WAVE_RPC_OPTIONS_INIT, and use the header \
                 that came with this library"
            )));
        }
        // SAFETY: the caller's promise, and the size was checked.
        let from = unsafe { &*options };
        // SAFETY: as above.
        let (options, methods) = unsafe { (self::options(from)?, methods(from)?) };
        let (started, workers) = Server::start_polled(options, methods)?;
        let is_stopped = Arc::<AtomicBool>::default();
        let workers = workers.into_iter().map(|worker| {
            let state = WorkerState::new(worker, Arc::clone(&is_stopped));
            Shell::new(state).expose_provenance()
        });
        let workers = workers.collect();
        let handle = Shell::new(ServerState { server: started, is_stopped, workers });
        // SAFETY: the caller's promise: it points to memory for a handle.
        unsafe { server.write(handle) };
        Ok(WAVE_RPC_OK)
    })
}

/// Stores the handle of a server's worker number `index` in `worker`.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wave_rpc_server_worker(
    server: *mut wave_rpc_server,
    index: u16,
    worker: *mut *mut wave_rpc_worker,
) -> i32 {
    answer(|| {
        // SAFETY: the caller's promise.
        let state = unsafe { Shell::enter(server) }?;
        if worker.is_null() {
            return Err(Failure::argument("worker is null"));
        }
        let handle = state.workers.get(usize::from(index)).ok_or_else(|| {
            Failure::argument(format!(
                "the server has {} workers, so there is no worker {index}",
                state.workers.len()
            ))
        })?;
        // SAFETY: the caller's promise: it points to memory for a handle.
        unsafe { worker.write(std::ptr::with_exposed_provenance_mut(*handle)) };
        Ok(WAVE_RPC_OK)
    })
}

/// Whether an agent is attached.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wave_rpc_server_has_agent(server: *mut wave_rpc_server) -> i32 {
    // SAFETY: the caller's promise.
    answer(|| Ok(unsafe { Shell::enter(server) }?.server.has_agent().into()))
}

/// Stops a server.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wave_rpc_server_stop(server: *mut wave_rpc_server) -> i32 {
    answer(|| {
        // SAFETY: the caller's promise.
        let entered = unsafe { Shell::enter(server) }?;
        let stopped = || Failure::new(WAVE_RPC_STOPPED, "the server was stopped");
        let ServerState { server, is_stopped, .. } = entered.take().ok_or_else(stopped)?;
        // Set first, so that the workers that the server wakes see it.
        is_stopped.store(true, Ordering::SeqCst);
        drop(server);
        Ok(WAVE_RPC_OK)
    })
}
