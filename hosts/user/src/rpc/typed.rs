//! Handlers of protobuf messages: what the code that `wave-codegen` makes stands on.

use std::marker::PhantomData;

use prost::Message;
use wave_rpc::service::Method;
use wave_rpc::status::{Code, Status};

use super::call::Call;
use super::methods::Methods;

/// Messages both ways, of a call in which at least one side sends several.
#[derive(Debug)]
pub struct Stream<'c, 'w, In, Out> {
    call: &'c mut Call<'w>,
    messages: PhantomData<fn(Out) -> In>,
}

impl<'c, 'w, In: Message + Default, Out: Message> Stream<'c, 'w, In, Out> {
    fn new(call: &'c mut Call<'w>) -> Stream<'c, 'w, In, Out> {
        Stream { call, messages: PhantomData }
    }

    /// The next message, as soon as it has come; `None` after the last.
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

    /// The call: metadata, time left, whether it was cancelled.
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

/// The one message of a call in which the client sends one.
fn only<M: Message + Default>(call: &mut Call<'_>) -> Result<M, Status> {
    let bytes = call.only_message()?;
    let decoded = decode(&bytes);
    call.give_back(bytes);
    decoded
}

/// Adds a method of one message each way.
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

/// Adds a method of one message from the client, and any number to it.
pub fn server_streaming<In: Message + Default, Out: Message>(
    methods: Methods,
    path: &str,
    handler: impl Fn(In, &mut Stream<'_, '_, In, Out>) -> Result<(), Status> + Send + Sync + 'static,
) -> Methods {
    let method = Method { path: path.into(), server_streams: true, ..Method::default() };
    methods.method(method, move |call| handler(only(call)?, &mut Stream::new(call)))
}

/// Adds a method of any number of messages from the client, and one to it.
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

/// Adds a method of any number of messages both ways.
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
