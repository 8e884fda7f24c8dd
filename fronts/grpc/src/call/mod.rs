//! One call, between its stream and the host or one of the front's own services.
//!
//! ```text
//!   client ──> Stream ──> Assembler ──> (gzip) ──> first ──> Dispatch      read, while the host keeps up
//!   client <── Stream <── Out::queue <── (gzip) <─────────── events        write, while the client does
//! ```
//! A call's memory is bounded in both directions: it reads from the client only while at most a window of earlier messages is
//! untaken by the host, and the host sends at most a window beyond what was passed on to the client.

mod services;

use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use h2::Reason;
use http::HeaderMap;
use wave_core::clock::Nanos;
use wave_core::message::Subject;
use wave_rpc::dispatch::{Arrival, Refused};
use wave_rpc::status::{Code, Status};
use wave_rpc::window::Load;

use crate::class::classify;
use crate::frames::{Assembler, Frame, Received};
use crate::gzip::{self, BadGzip};
use crate::health::{self, Health};
use crate::host::unavailable;
use crate::http2_stream::{Gone, Stream};
use crate::limits::{CALL_BYTES, UNCHECKED_REPLY_BYTES};
use crate::orca;
use crate::peer::Peer;
use crate::reflection;
use crate::reply;
use crate::request::Request;
use crate::shared::Shared;

/// Who answers a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// The host, with this method.
    Host(u16),
    /// The front: `Health.Check`.
    Check,
    /// The front: `Health.Watch`. The service, once it is known, and the last health that was sent.
    Watch(Option<String>, Option<Health>),
    /// The front: reflection.
    Reflection,
    /// The front: a stream of load reports. Their interval, and when the next one is due, once the request has arrived.
    Load(Option<(Nanos, Nanos)>),
}

/// The fate of a call's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Open,
    Ended,
    /// The client has ended the call.
    Gone,
}

/// Why a call ends early.
enum Stop {
    /// The client has reset the stream or closed its connection.
    Gone,
    /// The call cannot be served.
    Refused(Status),
}

impl From<Gone> for Stop {
    fn from(_: Gone) -> Stop {
        Stop::Gone
    }
}

fn refused<T>(code: Code, text: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Refused(Status::new(code, text)))
}

/// Progress of sending a call's replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    All,
    /// The client has no room.
    Blocked,
    /// The trailers were sent too: the call is over.
    End,
}

#[derive(Default)]
struct Out {
    gzip: bool,
    queue: VecDeque<Reply>,
    bytes: usize,
    /// The first message of the queue was sent in part.
    is_cut: bool,
    /// The trailers after the last message, once they are known.
    trailers: Option<HeaderMap>,
}

struct Reply {
    frame: Frame,
    /// Size in bytes as the host sent it, which is granted back.
    bytes: u32,
}

pub struct Call {
    stream: Stream,
    peer: Rc<Peer>,
    route: Route,
    request: Request,
    /// Time of the last step before the call arrived.
    came: Nanos,
    deadline: Option<Nanos>,
    /// The call's time in [`Shared::deadlines`], if it is listed there.
    pub(crate) timed: Option<Nanos>,
    /// The dispatcher's name for the call, while the host has it.
    subject: Option<Subject>,
    assembler: Assembler,
    /// The message of a call that may send only one, until the client has half-closed.
    first: Option<Bytes>,
    /// The last message arrived compressed.
    compressed: bool,
    client_is_done: bool,
    /// Messages that the host has not taken.
    untaken: Load,
    out: Out,
    /// Bytes of this call that the shared sums include.
    pub(crate) held: usize,
}

impl Call {
    pub(crate) fn new(
        stream: Stream,
        peer: Rc<Peer>,
        route: Route,
        request: Request,
        (came, deadline): (Nanos, Option<Nanos>),
        message_bytes: u32,
    ) -> Call {
        Call {
            stream,
            peer,
            route,
            request,
            came,
            deadline,
            timed: None,
            subject: None,
            assembler: Assembler::new(message_bytes),
            first: None,
            compressed: false,
            client_is_done: false,
            untaken: Load::default(),
            out: Out::default(),
            held: 0,
        }
    }

    pub(crate) fn peer(&self) -> &Rc<Peer> {
        &self.peer
    }

    pub(crate) const fn came(&self) -> Nanos {
        self.came
    }

    pub(crate) const fn subject(&self) -> Option<Subject> {
        self.subject
    }

    pub(crate) const fn is_hosts(&self) -> bool {
        matches!(self.route, Route::Host(_))
    }

    /// When the front must end the call, or send its next load report. The dispatcher times calls that the host has.
    pub(crate) fn due(&self) -> Option<Nanos> {
        let report = match self.route {
            Route::Load(Some((_, next))) => Some(next),
            _ => None,
        };
        self.deadline.filter(|_| self.subject.is_none()).into_iter().chain(report).min()
    }

    pub(crate) fn holds(&self) -> usize {
        let first = self.first.as_ref().map_or(0, Bytes::len);
        let messages = self.assembler.held() + first + self.untaken.bytes as usize;
        CALL_BYTES + self.request.metadata.len() + messages + self.out.bytes
    }

    /// Whether the call may hold `bytes` more bytes.
    fn check_room(&self, bytes: usize) -> Result<(), Status> {
        self.peer.check_room((self.holds() + bytes).saturating_sub(self.held))
    }

    pub(crate) fn advance(&mut self, shared: &mut Shared, slot: u32, cx: &mut Context<'_>) -> Fate {
        loop {
            let written = match self.write(shared, cx) {
                Ok(Written::End) => return Fate::Ended,
                Ok(written) => written,
                Err(Gone) => return self.gone(shared),
            };
            let waits_for_data = match self.read(shared, slot, cx) {
                Ok(waits) => waits,
                Err(Stop::Gone) => return self.gone(shared),
                Err(Stop::Refused(status)) => {
                    self.give_up(shared, status.code);
                    self.finish(shared, &status, &[]);
                    false
                }
            };
            let can_write = self.out.trailers.is_some() || !self.out.queue.is_empty();
            if can_write && written == Written::All {
                continue;
            }
            // While it waits for data, a reset stream wakes this call anyway.
            if !waits_for_data && self.stream.poll_gone(cx).is_ready() {
                return self.gone(shared);
            }
            return Fate::Open;
        }
    }

    fn gone(&mut self, shared: &mut Shared) -> Fate {
        self.give_up(shared, Code::Cancelled);
        Fate::Gone
    }

    /// Cancels the call at the host, if the host still has it.
    pub(crate) fn give_up(&mut self, shared: &mut Shared, why: Code) {
        if let (Some(subject), Some(host)) = (self.subject.take(), &mut shared.host) {
            host.cancel(subject, why);
        }
    }

    /// Reads from the client. Returns whether it waits for more.
    fn read(&mut self, shared: &mut Shared, slot: u32, cx: &mut Context<'_>) -> Result<bool, Stop> {
        while !self.client_is_done && self.out.trailers.is_none() && self.keeps_up() {
            let next = self.assembler.next();
            let next = next.map_err(|error| {
                let is_large = matches!(error, super::frames::BadPrefix::TooLarge { .. });
                let code = if is_large { Code::ResourceExhausted } else { Code::Internal };
                Stop::Refused(Status::new(code, error.to_string()))
            })?;
            if let Some(received) = next {
                self.compressed = received.compressed;
                let message = self.unpack(shared, received)?;
                let is_last = self.assembler.is_empty() && self.stream.is_end();
                self.client_is_done = is_last;
                self.on_message(shared, slot, message, is_last)?;
                continue;
            }
            match self.stream.poll_data(cx) {
                Poll::Ready(Ok(Some(piece))) => {
                    self.stream.release(piece.len());
                    self.check_room(piece.len()).map_err(Stop::Refused)?;
                    self.assembler.push(piece);
                }
                Poll::Ready(Ok(None)) if self.assembler.is_empty() => {
                    self.client_is_done = true;
                    self.on_half_close(shared, slot)?;
                }
                Poll::Ready(Ok(None)) => {
                    return refused(Code::Internal, "the last message is cut off");
                }
                Poll::Ready(Err(Gone)) => return Err(Stop::Gone),
                Poll::Pending => {
                    // A handler may send before its client does, so a streaming call begins without a message.
                    if self.client_streams(shared) && self.subject.is_none() {
                        self.begin(shared, slot, None, false)?;
                    }
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Whether the host, or the front's own service, has room for more messages.
    fn keeps_up(&self) -> bool {
        match self.route {
            Route::Host(_) => !self.untaken.is_full(),
            _ => self.out.queue.is_empty(),
        }
    }

    fn client_streams(&self, shared: &Shared) -> bool {
        match self.route {
            Route::Host(method) => {
                shared.method(method).is_some_and(|method| method.client_streams)
            }
            _ => false,
        }
    }

    fn unpack(&self, shared: &Shared, received: Received) -> Result<Bytes, Stop> {
        if !received.compressed {
            return Ok(received.bytes);
        }
        if !self.request.gzip {
            return refused(
                Code::Internal,
                "a message is marked as compressed, and grpc-encoding does not say how",
            );
        }
        let max = shared.limits.message_bytes;
        match gzip::decompress(&received.bytes, max as usize) {
            Ok(message) => {
                self.check_room(message.len()).map_err(Stop::Refused)?;
                Ok(message)
            }
            Err(BadGzip::Corrupt) => refused(Code::Internal, "a message is not what gzip makes"),
            Err(BadGzip::TooLarge) => refused(
                Code::ResourceExhausted,
                format!("a message has more than the allowed {max} bytes once decompressed"),
            ),
        }
    }

    fn on_message(
        &mut self,
        shared: &mut Shared,
        slot: u32,
        message: Bytes,
        is_last: bool,
    ) -> Result<(), Stop> {
        if self.route == Route::Reflection {
            let answer = reflection::answer(&message, shared.methods.as_deref());
            self.reply(shared, answer.map_err(Stop::Refused)?, true, false)?;
            if is_last {
                self.on_half_close(shared, slot)?;
            }
            return Ok(());
        }
        if self.client_streams(shared) {
            let Some(subject) = self.subject else {
                return self.begin(shared, slot, Some(message), is_last);
            };
            self.untaken = self.untaken.plus(Load::of(message.len() as u32));
            if let Some(host) = &mut shared.host {
                host.message(subject, message, is_last, self.compressed);
            }
            return Ok(());
        }
        if self.first.is_some() {
            return refused(Code::Unimplemented, "the method takes one message, and more came");
        }
        self.first = Some(message);
        if is_last { self.on_half_close(shared, slot) } else { Ok(()) }
    }

    /// Handles a half-close, once all messages have been read.
    fn on_half_close(&mut self, shared: &mut Shared, slot: u32) -> Result<(), Stop> {
        if self.route == Route::Reflection {
            self.out.trailers = Some(shared.templates.ok());
            return Ok(());
        }
        if self.client_streams(shared) {
            let Some(subject) = self.subject else { return self.begin(shared, slot, None, true) };
            if let Some(host) = &mut shared.host {
                host.half_close(subject);
            }
            return Ok(());
        }
        let Some(message) = self.first.take() else {
            return refused(Code::Unimplemented, "the method takes one message, and none came");
        };
        match &mut self.route {
            Route::Watch(service, _) => {
                *service = Some(health::service(&message).map_err(Stop::Refused)?);
                Ok(self.send_health(shared)?)
            }
            Route::Load(times) => {
                let every = orca::interval(&message).map_err(Stop::Refused)?;
                *times = Some((every, shared.stepped + every));
                let report = shared.totals.load.report(shared.now());
                Ok(self.reply(shared, report, true, false)?)
            }
            Route::Check => {
                let answer =
                    health::check(&message, shared.methods.as_deref(), shared.is_serving());
                self.reply(shared, answer.map_err(Stop::Refused)?, true, true)?;
                self.out.trailers = Some(shared.templates.ok());
                Ok(())
            }
            _ => self.begin(shared, slot, Some(message), true),
        }
    }

    /// Hands the call to the host.
    fn begin(
        &mut self,
        shared: &mut Shared,
        slot: u32,
        message: Option<Bytes>,
        end: bool,
    ) -> Result<(), Stop> {
        let now = shared.now();
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return refused(Code::DeadlineExceeded, "the deadline has passed");
        }
        let Shared { host: Some(host), methods: Some(methods), .. } = shared else {
            return Err(Stop::Refused(unavailable(shared.host.as_ref())));
        };
        let Route::Host(method) = self.route else { return Ok(()) };
        let (class, slo) = classify(methods.get(method), self.request.asked, message.as_deref());
        let sent = message.as_ref().map_or(Load::default(), |first| Load::of(first.len() as u32));
        let arrival = Arrival {
            method,
            class,
            slo,
            hash: self.peer.hash(),
            address: Some(self.peer.address_hash()),
            deadline: self.deadline,
            metadata: std::mem::take(&mut self.request.metadata),
            message,
            compressed: self.compressed,
            end,
        };
        match host.begin(now, arrival, slot) {
            Ok(subject) => {
                self.untaken = sent;
                self.subject = Some(subject);
                Ok(())
            }
            Err(error @ Refused::Full) => refused(Code::ResourceExhausted, error.to_string()),
            Err(Refused::NoHost) => Err(Stop::Refused(unavailable(Some(&*host)))),
        }
    }

    pub(crate) fn on_taken(&mut self, taken: Load) {
        self.untaken = self.untaken.less(taken);
    }

    /// The host sent its headers.
    pub(crate) fn on_headers(&mut self, shared: &mut Shared, metadata: &[u8]) -> Result<(), Gone> {
        if self.stream.has_responded() { Ok(()) } else { self.respond(shared, metadata, true) }
    }

    /// The host sent a reply. With `end` the call has ended with OK.
    pub(crate) fn on_reply(
        &mut self,
        shared: &mut Shared,
        message: Bytes,
        compress: bool,
        end: bool,
    ) -> Result<(), Gone> {
        if end {
            self.subject = None;
        }
        self.reply(shared, message, compress, end)?;
        if end && self.out.trailers.is_none() {
            self.out.trailers = Some(shared.templates.ok());
        }
        Ok(())
    }

    /// The host has ended the call, with this status.
    pub(crate) fn on_status(&mut self, shared: &mut Shared, status: &Status, trailers: &[u8]) {
        self.subject = None;
        self.finish(shared, status, trailers);
    }

    /// The agent ended the call, by its deadline or because too many calls wait for their clients.
    pub(crate) fn on_stopped(&mut self, shared: &mut Shared, status: &Status) {
        self.subject = None;
        // Trailers would wait behind replies that the client does not read.
        if status.code == Code::ResourceExhausted && !self.out.queue.is_empty() {
            self.stream.reset(Reason::ENHANCE_YOUR_CALM);
        }
        self.drop_replies();
        self.finish(shared, status, &[]);
    }

    /// Handles the time of [`Call::due`]: sends a load report, or ends the call at its deadline.
    pub(crate) fn expire(&mut self, shared: &mut Shared) {
        if self.send_load_report(shared) {
            return;
        }
        self.drop_replies();
        let status = Status::new(Code::DeadlineExceeded, "the deadline has passed");
        self.out.trailers = None;
        self.finish(shared, &status, &[]);
    }

    pub(crate) fn on_host_gone(&mut self, shared: &mut Shared) {
        self.subject = None;
        self.finish(shared, &unavailable(None), &[]);
    }

    /// Drops the replies of a cancelled call. A reply that was sent in part cannot be completed, so the stream is reset.
    fn drop_replies(&mut self) {
        if self.out.is_cut {
            self.stream.reset(Reason::CANCEL);
        }
        self.out.queue.clear();
        self.out.bytes = 0;
    }

    fn finish(&mut self, shared: &Shared, status: &Status, trailers: &[u8]) {
        if self.out.trailers.is_none() {
            self.out.trailers = Some(shared.templates.trailers(status, trailers));
        }
        self.first = None;
        self.untaken = Load::default();
    }

    /// Sends the headers. With `gzip` they announce compressed messages, if the client accepts these.
    fn respond(&mut self, shared: &Shared, metadata: &[u8], gzip: bool) -> Result<(), Gone> {
        self.out.gzip = gzip && self.request.accepts_gzip;
        match shared.templates.headers(self.out.gzip, metadata) {
            Ok(headers) => self.stream.respond(reply::response(headers), false),
            Err(error) => {
                self.finish(shared, &Status::new(Code::Internal, error.to_string()), &[]);
                Ok(())
            }
        }
    }

    /// Sends a message after all earlier ones, compressed if the handler wants it (`compress`) and the client accepts it.
    fn reply(
        &mut self,
        shared: &Shared,
        message: Bytes,
        compress: bool,
        is_last: bool,
    ) -> Result<(), Gone> {
        if !self.stream.has_responded() {
            // A later message may be compressed even if this one is not.
            self.respond(shared, &[], compress || !is_last)?;
        }
        if self.out.trailers.is_some() {
            return Ok(());
        }
        let bytes = message.len() as u32;
        let packed = (compress && self.out.gzip).then(|| gzip::compress(&message));
        let packed = packed.filter(|packed| packed.len() < message.len());
        let frame = Frame::new(packed.is_some(), packed.unwrap_or(message));
        let Some(frame) = frame else {
            self.finish(shared, &Status::new(Code::Internal, "a reply is longer than 4 GiB"), &[]);
            return Ok(());
        };
        let length = frame.remaining();
        // Without room the reply waits in the queue, where it counts towards what the client's address holds.
        if is_last
            && self.out.queue.is_empty()
            && length <= UNCHECKED_REPLY_BYTES
            && self.stream.room(length) == length
        {
            return self.stream.send(frame);
        }
        if let Err(status) = self.check_room(length) {
            self.finish(shared, &status, &[]);
            return Ok(());
        }
        self.out.bytes += length;
        self.out.queue.push_back(Reply { frame, bytes });
        Ok(())
    }

    /// Sends queued replies, as far as the client has room for them.
    fn write(&mut self, shared: &mut Shared, cx: &mut Context<'_>) -> Result<Written, Gone> {
        while let Some(first) = self.out.queue.front_mut() {
            let length = first.frame.remaining();
            let room = self.stream.room(length);
            if room == 0 {
                match self.stream.poll_room(cx)? {
                    Poll::Ready(()) => continue,
                    Poll::Pending => return Ok(Written::Blocked),
                }
            }
            self.out.bytes -= room;
            if room < length {
                self.out.is_cut = true;
                self.stream.send(first.frame.split_to(room))?;
                continue;
            }
            let Some(Reply { frame, bytes }) = self.out.queue.pop_front() else { break };
            self.out.is_cut = false;
            self.stream.send(frame)?;
            if let (Some(subject), Some(host)) = (self.subject, &mut shared.host) {
                host.grant(subject, bytes);
            }
        }
        let Some(mut trailers) = self.out.trailers.take() else {
            self.send_health(shared)?;
            return Ok(Written::All);
        };
        if shared.reports_load && self.is_hosts() {
            orca::add(&mut trailers, &shared.totals.load.report(shared.stepped));
        }
        if self.stream.has_responded() {
            self.stream.trailers(trailers)?;
        } else {
            self.stream.respond(reply::response(shared.templates.only(trailers)), true)?;
        }
        Ok(Written::End)
    }
}
