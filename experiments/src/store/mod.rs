//! The key-value store and the echo, for clients of an agent's front: the same functions as on the host.

mod memcached;

use wave_user::rpc::{Code, Methods, Status, typed};
use wave_workloads::grpc::proto::DESCRIPTORS;
use wave_workloads::grpc::proto::echo::{Payload, Work};
use wave_workloads::grpc::proto::kv::{GetRequest, PutRequest, RangeReply, RangeRequest};
use wave_workloads::grpc::store::{Refusal, Store, echo, spin};

/// The field of every request with its SLO in microseconds.
const SLO_FIELD: u16 = 1;
const PATHS: [&str; 3] =
    ["/wave.kv.v1.Store/Get", "/wave.kv.v1.Store/Put", "/wave.kv.v1.Store/Range"];

/// The class of a RANGE; all others have class 0.
const RANGE_CLASS: u8 = 1;

/// All methods of `proto/kv.proto` and `proto/echo.proto`, and memcached's commands.
pub fn methods(store: Store) -> Methods {
    let [get, put, range] = [(); 3].map(|()| store.clone());
    let methods = echo_methods();
    let methods = typed::unary(methods, PATHS[0], move |_, request: GetRequest| {
        get.get(&request, wave_user::preempt_point).map_err(status)
    });
    let methods = typed::unary(methods, PATHS[1], move |_, request: PutRequest| {
        put.put(&request).map_err(status)
    });
    let methods = typed::server_streaming(
        methods,
        PATHS[2],
        move |request: RangeRequest, stream: &mut typed::Stream<'_, '_, _, RangeReply>| {
            for reply in range.range(&request, wave_user::preempt_point).map_err(status)? {
                stream.send(&reply.map_err(status)?)?;
            }
            Ok(())
        },
    );
    let methods = PATHS
        .iter()
        .fold(methods, |methods, path| methods.tuned(path, |method| method.slo_field = SLO_FIELD));
    let methods = methods.tuned(PATHS[2], |method| {
        (method.class, method.class_max) = (RANGE_CLASS, RANGE_CLASS);
    });
    let methods = memcached::methods(methods, store);
    let methods = typed::streaming(methods, "/wave.echo.v1.Echo/Stream", |stream| {
        while let Some(payload) = stream.receive()? {
            stream.send(&echo(payload))?;
        }
        Ok(())
    });
    methods.descriptors(DESCRIPTORS)
}

/// The unary echo, and work of a given length: methods 0 and 1.
pub fn echo_methods() -> Methods {
    let path = "/wave.echo.v1.Echo/Unary";
    let methods = typed::unary(Methods::new(), path, |_, payload: Payload| Ok(echo(payload)));
    let path = "/wave.echo.v1.Echo/Spin";
    typed::unary(methods, path, |_, work: Work| {
        spin(&work, wave_user::preempt_point).map_err(status)?;
        Ok(work)
    })
    .tuned(path, |method| method.class_max = RANGE_CLASS)
}

fn status(refusal: Refusal) -> Status {
    Status::new(Code::from_number(refusal.code() as i32), refusal.to_string())
}
