//! The methods of a server, each with its handler.

use wave_rpc::service::{BadService, Method, Service};
use wave_rpc::status::Status;

use super::call::Call;

/// Serves a call. Its result becomes the call's status, unless it has sent a last reply.
pub type Handler = Box<dyn Fn(&mut Call<'_>) -> Result<(), Status> + Send + Sync>;

/// Methods and their handlers.
#[derive(Default)]
pub struct Methods {
    service: Service,
    handlers: Vec<Handler>,
}

impl std::fmt::Debug for Methods {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Methods").field("methods", &self.service.methods).finish_non_exhaustive()
    }
}

impl Methods {
    /// Creates a table without methods.
    pub fn new() -> Methods {
        Methods::default()
    }

    /// Adds a method of one message each way. `handler` gets the request's bytes and returns the reply's.
    pub fn unary(
        self,
        path: &str,
        handler: impl Fn(&mut Call<'_>, &[u8]) -> Result<Vec<u8>, Status> + Send + Sync + 'static,
    ) -> Methods {
        self.method(Method { path: path.into(), ..Method::default() }, unary(handler))
    }

    /// Adds a method with its handler.
    pub fn method(
        mut self,
        method: Method,
        handler: impl Fn(&mut Call<'_>) -> Result<(), Status> + Send + Sync + 'static,
    ) -> Methods {
        self.service.methods.push(method);
        self.handlers.push(Box::new(handler));
        self
    }

    /// Adds a serialized `google.protobuf.FileDescriptorBitmap`, by which reflection describes the methods. A set is not added
    /// twice, as services that were compiled together share one.
    pub fn descriptors(mut self, set: &[u8]) -> Methods {
        let there = &self.service.descriptors;
        if set.is_empty() || there.windows(set.len()).any(|part| part == set) {
            return self;
        }
        // Fields of concatenated messages are concatenated, and the set has one repeated field.
        self.service.descriptors.extend_from_slice(set);
        self
    }

    /// Adds the methods of another service.
    pub fn and(mut self, other: Methods) -> Methods {
        self.service.methods.extend(other.service.methods);
        self.handlers.extend(other.handlers);
        self.descriptors(&other.service.descriptors)
    }

    /// Changes the class, the objective or a field of the objective of one method.
    ///
    /// # Panics
    /// There is no method with this path.
    pub fn tuned(mut self, path: &str, tune: impl FnOnce(&mut Method)) -> Methods {
        let method = self.service.methods.iter_mut().find(|method| method.path == path);
        tune(method.unwrap_or_else(|| panic!("there is no method {path}")));
        self
    }

    /// The description of the service that agents get.
    pub fn service(&self) -> &Service {
        &self.service
    }

    pub(super) fn handler(&self, method: u16) -> Option<&Handler> {
        self.handlers.get(usize::from(method))
    }

    pub(super) fn check(&self) -> Result<(), BadService> {
        self.service.check()
    }
}

/// A handler of calls with one message each way. A call with no message or several ends with an error.
pub fn unary(
    handler: impl Fn(&mut Call<'_>, &[u8]) -> Result<Vec<u8>, Status> + Send + Sync + 'static,
) -> impl Fn(&mut Call<'_>) -> Result<(), Status> + Send + Sync + 'static {
    move |call| {
        let request = call.only_message()?;
        let reply = handler(call, &request);
        call.give_back(request);
        call.reply(&reply?)
    }
}
