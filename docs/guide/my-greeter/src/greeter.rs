mod hello {
    include!(concat!(env!("OUT_DIR"), "/hello.rs"));
}
use hello::{Greeter, HelloReply, HelloRequest, greeter_methods};
use wave_user::rpc::{Call, Options, Server, Status};

struct Service;

impl Greeter for Service {
    fn say_hello(&self, _: &mut Call<'_>, request: HelloRequest) -> Result<HelloReply, Status> {
        Ok(HelloReply { message: format!("Hello, {}", request.name) })
    }
}

fn main() -> Result<(), wave_user::rpc::ServeError> {
    let options = Options::new("/tmp/hello.sock").workers(2);
    let server = Server::start(options, greeter_methods(Service))?;
    server.wait();
    Ok(())
}
