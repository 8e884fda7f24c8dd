//! The store for memcached clients: a key is a decimal number, and has neither flags nor an expiry time.

use wave_rpc::memcached::{Item, PATHS, Set};
use wave_user::rpc::{Code, Methods, Status};
use wave_workloads::grpc::proto::kv::{GetRequest, PutRequest};
use wave_workloads::grpc::store::{Refusal, Store};

use super::status;

/// Adds memcached's commands to `methods`.
pub fn methods(methods: Methods, store: Store) -> Methods {
    let [get, set, delete] = [store.clone(), store.clone(), store];
    methods
        .unary(PATHS[0], move |_, keys| {
            let mut reply = Vec::new();
            for key in keys.split(|byte| *byte == b' ') {
                let request = GetRequest { slo_us: 0, key: encoded(number(key)?).into() };
                match get.get(&request, wave_user::preempt_point) {
                    Ok(found) => {
                        Item::encode(Some(Item { flags: 0, data: &found.value }), &mut reply);
                    }
                    Err(Refusal::NotFound(_)) => Item::encode(None, &mut reply),
                    Err(refusal) => return Err(status(refusal)),
                }
            }
            Ok(reply)
        })
        .unary(PATHS[1], move |_, message| {
            let item = Set::decode(message).ok_or_else(|| invalid("not a set"))?;
            if item.flags != 0 || item.expiry != 0 {
                return Err(invalid("this store keeps no flags and no expiry times"));
            }
            let (key, value) = (encoded(number(item.key)?).into(), item.data.to_vec().into());
            set.put(&PutRequest { slo_us: 0, key, value }).map_err(status)?;
            Ok(Vec::new())
        })
        .unary(PATHS[2], move |_, key| {
            delete.delete(number(key)?).map_err(status)?;
            Ok(Vec::new())
        })
}

fn invalid(text: &str) -> Status {
    Status::new(Code::InvalidArgument, text.to_owned())
}

fn encoded(key: u64) -> Vec<u8> {
    key.to_be_bytes().to_vec()
}

/// Parses a key. Each number has one key: no sign and no leading zero.
fn number(key: &[u8]) -> Result<u64, Status> {
    let text = std::str::from_utf8(key).ok();
    let number = text.and_then(|text| text.parse::<u64>().ok().filter(|it| it.to_string() == text));
    number.ok_or_else(|| invalid("a key of this store is a decimal number"))
}
