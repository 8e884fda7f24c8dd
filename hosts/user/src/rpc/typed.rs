//! Handlers of protobuf messages, used by the code that `wave-codegen` generates.

use std::marker::PhantomData;

use prost::Message;
use wave_rpc::service::Method;
use wave_rpc::status::{Code, Status};

use super::call::Call;
use super::methods::Methods;

/// The messages of a call, both ways, in which at least one side may send several.
#[derive(Debug)]
pub struct Stream<'c, 'w, In, Out> {
    call: &'c mut Call<'w>,
    messages: PhantomData<fn(Out) -> In>,
}

impl<'c, 'w, In: Message + Default, Out: Message> Stream<'c, 'w, In, Out> {
    fn new(call: &'c mut Call<'w>) -> Stream<'c, 'w, In, Out> {
        Stream { call, messages: PhantomData }
    }

    /// Waits for the client's next message and returns it; `None` after the last.
    ///
    /// # Errors
    /// The call is cancelled, or the message cannot be decoded.
    pub fn receive(&mut self) -> Result<Option<In>, Status> {
        let Some(message) = self.call.receive()? else { return Ok(None) };
        let decoded = decode(&message);
        self.call.give_back(message);
        decoded.map(Some)
    }

    /// Sends a message, as soon as the client has read enough of the earlier ones.
    ///
    /// # Errors
    /// The call is cancelled.
    pub fn send(&mut self, message: &Out) -> Result<(), Status> {
        let mut bytes = self.call.memory();
        encode(message, &mut bytes)?;
        let sent = self.call.send(&bytes);
        self.call.give_back(bytes);
        sent
    }

    /// The call, for its metadata, the time left and whether it was cancelled.
    pub fn call(&mut self) -> &mut Call<'w> {
        self.call
    }
}

/// The status of a method without a handler.
pub fn unimplemented(path: &str) -> Status {
    Status::new(Code::Unimplemented, format!("{path} is not implemented"))
}

fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, Status> {
    M::decode(bytes)
        .map_err(|error| Status::new(Code::Internal, format!("no such message: {error}")))
}

fn encode(message: &impl Message, bytes: &mut Vec<u8>) -> Result<(), Status> {
    message.encode(bytes).map_err(|error| Status::new(Code::Internal, error.to_string()))
}

fn reply(call: &mut Call<'_>, message: &impl Message) -> Result<(), Status> {
    let mut bytes = call.memory();
    encode(message, &mut bytes)?;
    let sent = call.reply(&bytes);
    call.give_back(bytes);
    sent
}

/// The message of a call in which the client sends exactly one.
fn only<M: Message + Default>(call: &mut Call<'_>) -> Result<M, Status> {
    let bytes = call.only_message()?;
    let decoded = decode(&bytes);
    call.give_back(bytes);
    decoded
}

/// Adds a method with one message each way.
pub fn unary<In: Message + Default, Out: Message>(
    methods: Methods,
    path: &str,
    handler: impl Fn(&mut Call<'_>, In) -> Result<Out, Status> + Send + Sync + 'static,
) -> Methods {
    methods.method(Method { path: path.into(), ..Method::default() }, move |call| {
        let request = only(call)?;
        let answer = handler(call, request)?;
        reply(call, &answer)
    })
}

/// Adds a method with one message from the client and any number of replies.
pub fn server_streaming<In: Message + Default, Out: Message>(
    methods: Methods,
    path: &str,
    handler: impl Fn(In, &mut Stream<'_, '_, In, Out>) -> Result<(), Status> + Send + Sync + 'static,
) -> Methods {
    let method = Method { path: path.into(), server_streams: true, ..Method::default() };
    methods.method(method, move |call| handler(only(call)?, &mut Stream::new(call)))
}

/// Adds a method with any number of messages from the client and one reply.
pub fn client_streaming<In: Message + Default, Out: Message>(
    methods: Methods,
    path: &str,
    handler: impl Fn(&mut Stream<'_, '_, In, Out>) -> Result<Out, Status> + Send + Sync + 'static,
) -> Methods {
    let method = Method { path: path.into(), client_streams: true, ..Method::default() };
    methods.method(method, move |call| {
        let answer = handler(&mut Stream::new(call))?;
        reply(call, &answer)
    })
}

/// Adds a method with any number of messages both ways.
pub fn streaming<In: Message + Default, Out: Message>(
    methods: Methods,
    path: &str,
    handler: impl Fn(&mut Stream<'_, '_, In, Out>) -> Result<(), Status> + Send + Sync + 'static,
) -> Methods {
    let method = Method {
        path: path.into(),
        client_streams: true,
        server_streams: true,
        ..Method::default()
    };
    methods.method(method, move |call| handler(&mut Stream::new(call)))
}
