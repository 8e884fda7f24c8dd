//! A front and a scheduler as two agents in two processes, with a queue of notes between them (Wave 7.3.1). The notes make the
//! requests' threads run, and no thread waits for ever if either agent is killed.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use wave_agent::{NotesFrom, Registry, Seat, attach, run_with, serve};
use wave_grpc::{NotesTo, RpcFront};
use wave_links::LinkSpec;
use wave_rpc::status::Code;
use wave_user::Enclave;
use wave_user::rpc::{Call, Methods, Options, Server};

use crate::client::Client;
use crate::killed::{Process, front_options};

const THREADS: &str = "WAVE_TEST_THREADS";
const RPC: &str = "WAVE_TEST_RPC";
const NOTES: &str = "WAVE_TEST_NOTES";
const ADDRESS: &str = "WAVE_TEST_NOTES_ADDRESS";
const LINK: &str = "WAVE_TEST_LINK";
const POLICY: &str = "WAVE_TEST_POLICY";
const PATH: &str = "/test.Notes/Echo";
/// As many clients as workers, so that no other client's request wakes a forgotten thread.
const CLIENTS: usize = 4;
/// Number of kills of each of the two agents.
const KILLS: u32 = 15;
/// Far longer than any step takes: a longer wait counts as endless.
const FOR_EVER: Duration = Duration::from_secs(60);

/// The host process's `main`: threads of an enclave serve. Does nothing when run as a test.
#[test]
fn host_process() {
    let (Some(threads), Some(rpc)) = (std::env::var_os(THREADS), std::env::var_os(RPC)) else {
        return;
    };
    let mut options = wave_user::Options::new(PathBuf::from(threads)).cores(2);
    options.yields_cpu = true;
    let enclave = Enclave::start(options).unwrap();
    let echo = |_: &mut Call<'_>, request: &[u8]| Ok(request.to_vec());
    let options = Options::new(PathBuf::from(rpc)).workers(CLIENTS as u16);
    let methods = Methods::new().unary(PATH, echo);
    Server::start_threads(options, methods, &enclave).unwrap().wait();
}

/// The front process's `main`. Does nothing when run as a test.
#[test]
fn front_process() {
    let (Some(rpc), Some(notes), Ok(address), Ok(link)) = (
        std::env::var_os(RPC),
        std::env::var_os(NOTES),
        std::env::var(ADDRESS),
        std::env::var(LINK),
    ) else {
        return;
    };
    let options = front_options(rpc, &address, "jbsq:k=1");
    let link = LinkSpec::builtin(&link).unwrap();
    let mut front = RpcFront::new(options, Instant::now()).unwrap();
    front.offer_notes(NotesTo::new(&PathBuf::from(notes), &[], link, true).unwrap());
    serve(&mut front);
}

/// The scheduler process's `main`, which attaches again whenever its host turns it out. Does nothing when run as a test.
#[test]
fn scheduler_process() {
    let (Some(threads), Ok(policy)) = (std::env::var_os(THREADS), std::env::var(POLICY)) else {
        return;
    };
    let notes = std::env::var_os(NOTES).map(PathBuf::from);
    loop {
        let Ok(attached) = attach(&PathBuf::from(&threads)) else {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let policy = Registry::shipped().make(&policy, &attached.layout.config).unwrap();
        let left = match notes.clone().map(|notes| NotesFrom::new(notes, true).unwrap()) {
            None => run_with(attached, policy, (), Seat::Shared, ()),
            Some(notes) => run_with(attached, policy, (), Seat::Shared, notes),
        };
        left.unwrap();
    }
}

struct Fixture {
    folder: tempfile::TempDir,
    address: SocketAddr,
    link: &'static str,
}

impl Fixture {
    fn new(link: &'static str) -> Fixture {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        Fixture { folder: tempfile::tempdir().unwrap(), address, link }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn host(&self) -> Process {
        let variables = [(THREADS, self.file("threads")), (RPC, self.file("rpc"))];
        Process::start("notes::host_process", &variables)
    }

    fn front(&self) -> Process {
        let variables = [
            (RPC, self.file("rpc")),
            (NOTES, self.file("notes")),
            (ADDRESS, self.address.to_string().into()),
            (LINK, self.link.into()),
        ];
        Process::start("notes::front_process", &variables)
    }

    fn scheduler(&self, policy: &str) -> Process {
        let variables =
            [(THREADS, self.file("threads")), (NOTES, self.file("notes")), (POLICY, policy.into())];
        Process::start("notes::scheduler_process", &variables)
    }

    fn deaf_scheduler(&self) -> Process {
        let variables = [(THREADS, self.file("threads")), (POLICY, "fifo".into())];
        Process::start("notes::scheduler_process", &variables)
    }
}

/// Numbers of one client's calls, by outcome.
#[derive(Default)]
struct Books {
    answered: u64,
    unavailable: u64,
    broken: u64,
}

async fn client(address: SocketAddr, ended: Arc<AtomicU64>, is_over: Arc<AtomicBool>) -> Books {
    let mut books = Books::default();
    while let Some(mut client) = Client::connect_until(address, &is_over).await {
        while !is_over.load(SeqCst) && client.is_open().await {
            let id = books.answered.to_le_bytes();
            let call = tokio::time::timeout(FOR_EVER, client.try_call(PATH, &id));
            match call.await.expect("a client's call ended without an answer") {
                Ok(answer) if answer.code() == 0 => {
                    assert_eq!(answer.ok(), [id]);
                    books.answered += 1;
                    ended.fetch_add(1, SeqCst);
                    // A pause, so that the call's thread awaits the next request.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Ok(answer) => {
                    assert_eq!(answer.code(), Code::Unavailable as i32, "{answer:?}");
                    books.unavailable += 1;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Err(_) => {
                    books.broken += 1;
                    break;
                }
            }
        }
    }
    books
}

/// Waits until each client has got `more` further answers.
async fn answers(ended: &[Arc<AtomicU64>], more: u64) {
    let start = Instant::now();
    for ended in ended {
        let seen = ended.load(SeqCst);
        while ended.load(SeqCst) < seen + more {
            assert!(start.elapsed() < 2 * FOR_EVER, "a client gets no more answers");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

fn run(link: &'static str, policies: &[&str], kills: u32) -> Books {
    let fixture = Fixture::new(link);
    let host = fixture.host();
    let (mut front, mut scheduler) = (Some(fixture.front()), Some(fixture.scheduler(policies[0])));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let all = runtime.block_on(async {
        let is_over = Arc::new(AtomicBool::new(false));
        let ended: Vec<Arc<AtomicU64>> = (0..CLIENTS).map(|_| Arc::default()).collect();
        let clients: Vec<_> = ended
            .iter()
            .map(|ended| {
                tokio::spawn(client(fixture.address, Arc::clone(ended), Arc::clone(&is_over)))
            })
            .collect();
        answers(&ended, 100).await;
        for kill in 0..2 * kills {
            // Kills at any moment of a life, the first moments included.
            tokio::time::sleep(Duration::from_millis(u64::from(kill * 37 % 250))).await;
            if kill % 2 == 0 {
                drop(scheduler.take());
                let policy = policies[(kill / 2) as usize % policies.len()];
                scheduler = Some(fixture.scheduler(policy));
            } else {
                drop(front.take());
                front = Some(fixture.front());
            }
            if kill % 3 == 0 {
                answers(&ended, 20).await;
            }
        }
        answers(&ended, 100).await;
        is_over.store(true, SeqCst);
        let mut all = Books::default();
        for client in clients {
            let books = client.await.unwrap();
            all.answered += books.answered;
            all.unavailable += books.unavailable;
            all.broken += books.broken;
        }
        all
    });
    drop((front, scheduler, host));
    println!(
        "{link}: {} calls answered, {} unavailable, {} broken with their front",
        all.answered, all.unavailable, all.broken
    );
    all
}

#[test]
fn no_request_waits_for_ever_when_either_agent_is_killed() {
    let books = run("shm", &["fifo", "shinjuku:slice_us=100"], KILLS);
    assert!(books.unavailable + books.broken > 0, "the kills met no calls");
}

/// Makes calls one after the other, each when its thread awaits a request, until `calls` are answered.
fn call_at_leisure(fixture: &Fixture, calls: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let ended: Arc<AtomicU64> = Arc::default();
        let is_over = Arc::new(AtomicBool::new(false));
        let client =
            tokio::spawn(client(fixture.address, Arc::clone(&ended), Arc::clone(&is_over)));
        answers(&[ended], calls).await;
        is_over.store(true, SeqCst);
        client.await.unwrap();
    });
}

#[test]
fn hanging_scheduler_is_turned_out_while_all_threads_await_requests() {
    let fixture = Fixture::new("shm");
    let (_host, _front) = (fixture.host(), fixture.front());
    let scheduler = fixture.scheduler("fifo");
    call_at_leisure(&fixture, 20);
    // No thread is ready now, so the watchdog has no waiting thread that would show the hang.
    scheduler.freeze();
    call_at_leisure(&fixture, 20);
}

#[test]
fn scheduler_without_notes_still_serves_requests() {
    let fixture = Fixture::new("shm");
    let (_host, _front, _deaf) = (fixture.host(), fixture.front(), fixture.deaf_scheduler());
    call_at_leisure(&fixture, 20);
}

#[test]
fn notes_cross_a_modelled_link() {
    run("mount-evans", &["multi-queue"], 1);
}
