//! Some of the matrix over Laminar's data path. `make soak` runs all of it.

use super::clients::curl_behaves_over_an_agent_as_over_linux;
use super::postgresql::POSTGRESQL;
use super::servers::{ASYNCIO, MEMCACHED, NGINX, REDIS};
use super::{Program, run};
use crate::network::with_datapath;

fn over_laminar(program: &'static Program) {
    with_datapath("laminar", || run(program));
}

#[test]
fn redis_behaves_over_laminar_as_over_linux() {
    over_laminar(&REDIS);
}

#[test]
fn memcached_behaves_over_laminar_as_over_linux() {
    over_laminar(&MEMCACHED);
}

#[test]
fn nginx_behaves_over_laminar_as_over_linux() {
    over_laminar(&NGINX);
}

#[test]
fn postgresql_behaves_over_laminar_as_over_linux() {
    over_laminar(&POSTGRESQL);
}

#[test]
fn asyncio_behaves_over_laminar_as_over_linux() {
    over_laminar(&ASYNCIO);
}

#[test]
fn curl_behaves_over_laminar_as_over_linux() {
    with_datapath("laminar", curl_behaves_over_an_agent_as_over_linux);
}
