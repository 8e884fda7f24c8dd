mod hello {
    include!(concat!(env!("OUT_DIR"), "/hello.rs"));
}
use hello::{Greeter, HelloReply, HelloRequest, greeter_methods};
use wave_user::rpc::typed::Stream;
use wave_user::rpc::{Call, Options, Server, Status};

struct Service;

impl Greeter for Service {
    fn say_hello(&self, _: &mut Call<'_>, request: HelloRequest) -> Result<HelloReply, Status> {
        Ok(HelloReply { message: format!("Hello, {}", request.name) })
    }

    /// Answers each message as it arrives.
    fn greet_all(
        &self,
        stream: &mut Stream<'_, '_, HelloRequest, HelloReply>,
    ) -> Result<(), Status> {
        // Metadata that the client sent. The value of a key that ends with `-bin` may be any bytes, others are ASCII.
        let asked = stream.call().metadata().get("x-greeting").map(<[u8]>::to_vec);
        let greeting = asked.unwrap_or(b"Hello".to_vec());
        // Headers are sent once, before the first reply.
        stream.call().headers(&[("x-greeting", &greeting)])?;
        let greeting = String::from_utf8_lossy(&greeting);
        let mut count = 0;
        while let Some(request) = stream.receive()? {
            stream.send(&HelloReply { message: format!("{greeting}, {}", request.name) })?;
            count += 1;
        }
        // Trailers are sent with the status, when the handler returns.
        stream.call().trailer("x-count", format!("{count}").as_bytes())?;
        Ok(())
    }
}

fn main() -> Result<(), wave_user::rpc::ServeError> {
    let options = Options::new("/tmp/hello.sock").workers(2);
    let server = Server::start(options, greeter_methods(Service))?;
    server.wait();
    Ok(())
}
