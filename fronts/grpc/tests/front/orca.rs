//! Load reports (ORCA), read by a tonic client: on a stream, and in the trailers of calls.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use prost::Message;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Streaming};
use tonic_prost::ProstCodec;
use wave_grpc::Limits;

use super::calls::client;
use super::client::{run, until};
use super::fixture::{Fixture, connection_cores};

const PATH: &str = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics";

/// All fields of `xds.data.orca.v3.OrcaLoadReport`, as in the protocol's own .proto file.
#[derive(Clone, PartialEq, Message)]
struct Report {
    #[prost(double, tag = "1")]
    cpu_utilization: f64,
    #[prost(double, tag = "2")]
    mem_utilization: f64,
    #[prost(uint64, tag = "3")]
    rps: u64,
    #[prost(btree_map = "string, double", tag = "4")]
    request_cost: BTreeMap<String, f64>,
    #[prost(btree_map = "string, double", tag = "5")]
    utilization: BTreeMap<String, f64>,
    #[prost(double, tag = "6")]
    rps_fractional: f64,
    #[prost(double, tag = "7")]
    eps: f64,
    #[prost(btree_map = "string, double", tag = "8")]
    named_metrics: BTreeMap<String, f64>,
    #[prost(double, tag = "9")]
    application_utilization: f64,
}

/// `xds.service.orca.v3.OrcaLoadReportRequest`.
#[derive(Clone, PartialEq, Message)]
struct Asked {
    #[prost(message, optional, tag = "1")]
    report_interval: Option<prost_types::Duration>,
    #[prost(string, repeated, tag = "2")]
    request_cost_names: Vec<String>,
}

async fn reports(channel: Channel, millis: i32) -> Streaming<Report> {
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.unwrap();
    let report_interval = Some(prost_types::Duration { seconds: 0, nanos: millis * 1_000_000 });
    let asked = Asked { report_interval, request_cost_names: vec![] };
    let codec = ProstCodec::<Asked, Report>::default();
    let reply = grpc.server_streaming(Request::new(asked), PATH.try_into().unwrap(), codec);
    reply.await.unwrap().into_inner()
}

async fn channel(fixture: &Fixture) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", fixture.address)).unwrap();
    endpoint.connect().await.unwrap()
}

#[test]
fn tonic_client_gets_load_reports_until_the_front_ends() {
    let fixture = Fixture::new();
    run(async {
        let mut stream = reports(channel(&fixture).await, 100).await;
        let mut next = async || stream.message().await.unwrap().expect("a report");
        // The first report comes at once, and others follow without any call.
        let first = next().await;
        assert_eq!(first.named_metrics.len(), 3, "{first:?}");
        // Six calls for two workers. The calls end when they are cancelled.
        let mut client = client(&fixture).await;
        let begun = fixture.seen.begun.load(Ordering::SeqCst);
        let mut calls = Vec::new();
        for _ in 0..6 {
            let mut call = client.open("/test.Test/Sleep", &[], false).await;
            call.send(b"", true).await;
            calls.push(call);
        }
        until(|| fixture.seen.begun.load(Ordering::SeqCst) >= begun + 2).await;
        let busy = loop {
            let report = next().await;
            if report.application_utilization > 2.5 {
                break report;
            }
        };
        let named = |name: &str| busy.named_metrics[name];
        assert_eq!(named("wave.workers"), 2.0);
        assert_eq!(named("wave.at_workers") + named("wave.waiting"), 6.0, "{busy:?}");
        drop(calls);
        // Workers are free again, and failed calls count as errors; calls that their clients cancelled do not.
        loop {
            let mut answer = client.open("/test.Test/Fail", &[], false).await;
            answer.send(&[[5].as_slice(), b"no"].concat(), true).await;
            assert_eq!(answer.finish().await.code(), 5);
            let report = next().await;
            if report.eps > 0.0 && report.application_utilization < 1.0 {
                assert!(report.rps_fractional >= report.eps, "{report:?}");
                break;
            }
        }
        fixture.end();
        let ended = loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended with OK instead of UNAVAILABLE"),
                Err(status) => break status,
            }
        };
        assert_eq!(ended.code(), Code::Unavailable);
    });
}

#[test]
fn trailers_have_a_load_report_only_if_enabled() {
    for reports_load in [true, false] {
        let cores = connection_cores();
        let mut fixture = Fixture::reporting(reports_load, cores, Limits::default(), None);
        fixture.start_host(|options| options.workers(3));
        run(async {
            let mut client = client(&fixture).await;
            let answer = client.call("/test.Test/Echo", &[], &[b"x"]).await;
            assert_eq!(answer.code(), 0, "{answer:?}");
            let trailer = answer.trailers.get("endpoint-load-metrics-bin");
            assert_eq!(trailer.is_some(), reports_load);
            let Some(trailer) = trailer else { return };
            // Trailers of errors have a report as well.
            let message = [[5].as_slice(), b"no"].concat();
            let failed = client.call("/test.Test/Fail", &[], &[&message]).await;
            assert_eq!(failed.code(), 5);
            let has_one =
                |headers: &http::HeaderMap| headers.contains_key("endpoint-load-metrics-bin");
            assert!(has_one(&failed.trailers) || has_one(&failed.headers), "{failed:?}");
            let report = STANDARD_NO_PAD.decode(trailer.as_bytes()).unwrap();
            let report = Report::decode(&*report).unwrap();
            assert_eq!(report.cpu_utilization, 0.0, "the agent does not know the CPU utilization");
            // The front answers Health itself, without a load report.
            let health = client.call("/grpc.health.v1.Health/Check", &[], &[&[]]).await;
            assert!(!has_one(&health.trailers));
        });
    }
}
