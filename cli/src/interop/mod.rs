//! gRPC's interoperability test service, served behind an agent's front, and the load reports that its tests ask for.

mod orca;

use std::sync::Arc;
use std::time::{Duration, Instant};

use wave_user::rpc::typed::Stream;
use wave_user::rpc::{Call, Code, Methods, Status};

use orca::Reports;
use proto::{
    BoolValue, EchoStatus, Empty, Payload, SimpleRequest, SimpleResponse,
    StreamingInputCallRequest, StreamingInputCallResponse, StreamingOutputCallRequest,
    StreamingOutputCallResponse, test_service_methods,
};

#[allow(missing_docs, clippy::all)]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/grpc.testing.rs"));
}

/// The services with their descriptors.
pub fn methods() -> Methods {
    let reports = Arc::<Reports>::default();
    test_service_methods(Interop(Arc::clone(&reports))).and(orca::methods(reports))
}

/// Metadata keys that a call echoes: the first in the headers, the second in the trailers.
const ECHO_INITIAL: &str = "x-grpc-test-echo-initial";
const ECHO_TRAILING: &str = "x-grpc-test-echo-trailing-bin";
/// Maximum length of a reply's payload.
const REPLY_BYTES_MAX: i32 = 64 << 20;

/// The test service, with the load that its server reports.
struct Interop(Arc<Reports>);

impl proto::TestService for Interop {
    fn empty_call(&self, call: &mut Call<'_>, _: Empty) -> Result<Empty, Status> {
        echo_metadata(call)?;
        Ok(Empty {})
    }

    fn unary_call(
        &self,
        call: &mut Call<'_>,
        request: SimpleRequest,
    ) -> Result<SimpleResponse, Status> {
        expect(request.expect_compressed.as_ref(), call.came_compressed())?;
        echo_metadata(call)?;
        if let Some(report) = request.orca_per_query_report {
            orca::report(call, report)?;
        }
        asked(request.response_status)?;
        call.compress(is_set(request.response_compressed.as_ref()));
        // No other server on this machine has this id.
        let id = request.fill_server_id.then(|| std::process::id().to_string());
        let payload = Some(payload(request.response_size)?);
        Ok(SimpleResponse { payload, server_id: id.unwrap_or_default() })
    }

    fn streaming_output_call(
        &self,
        request: StreamingOutputCallRequest,
        stream: &mut Stream<'_, '_, StreamingOutputCallRequest, StreamingOutputCallResponse>,
    ) -> Result<(), Status> {
        answer(request, stream)
    }

    fn streaming_input_call(
        &self,
        stream: &mut Stream<'_, '_, StreamingInputCallRequest, StreamingInputCallResponse>,
    ) -> Result<StreamingInputCallResponse, Status> {
        let mut aggregated_payload_size = 0;
        while let Some(request) = stream.receive()? {
            expect(request.expect_compressed.as_ref(), stream.call().came_compressed())?;
            aggregated_payload_size +=
                request.payload.map_or(0, |payload| payload.body.len()) as i32;
        }
        Ok(StreamingInputCallResponse { aggregated_payload_size })
    }

    fn full_duplex_call(
        &self,
        stream: &mut Stream<'_, '_, StreamingOutputCallRequest, StreamingOutputCallResponse>,
    ) -> Result<(), Status> {
        echo_metadata(stream.call())?;
        let mut turn = None;
        while let Some(mut request) = stream.receive()? {
            if let Some(report) = request.orca_oob_report.take() {
                if turn.is_none() {
                    turn = Some(self.0.turn(stream.call())?);
                }
                self.0.set(report);
            }
            answer(request, stream)?;
        }
        Ok(())
    }

    fn half_duplex_call(
        &self,
        stream: &mut Stream<'_, '_, StreamingOutputCallRequest, StreamingOutputCallResponse>,
    ) -> Result<(), Status> {
        let mut requests = Vec::new();
        while let Some(request) = stream.receive()? {
            if requests.len() == 1_000 {
                return Err(Status::new(Code::ResourceExhausted, "at most 1000 requests are kept"));
            }
            requests.push(request);
        }
        requests.into_iter().try_for_each(|request| answer(request, stream))
    }
}

fn answer(
    request: StreamingOutputCallRequest,
    stream: &mut Stream<'_, '_, StreamingOutputCallRequest, StreamingOutputCallResponse>,
) -> Result<(), Status> {
    asked(request.response_status)?;
    for wanted in request.response_parameters {
        if let Ok(micros @ 1..) = u64::try_from(wanted.interval_us) {
            rest(stream.call(), Duration::from_micros(micros))?;
        }
        stream.call().compress(is_set(wanted.compressed.as_ref()));
        stream.send(&StreamingOutputCallResponse { payload: Some(payload(wanted.size)?) })?;
    }
    Ok(())
}

/// Sleeps for `time`, or until the call is cancelled. Its worker serves other calls meanwhile.
fn rest(call: &mut Call<'_>, time: Duration) -> Result<(), Status> {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        call.check_cancelled()?;
        call.yield_now();
        std::thread::sleep(left.min(Duration::from_millis(1)));
    }
}

fn echo_metadata(call: &mut Call<'_>) -> Result<(), Status> {
    let of = |key| call.metadata().get(key).map(<[u8]>::to_vec);
    let (initial, trailing) = (of(ECHO_INITIAL), of(ECHO_TRAILING));
    if let Some(value) = initial {
        call.headers(&[(ECHO_INITIAL, &value)])?;
    }
    if let Some(value) = trailing {
        call.trailer(ECHO_TRAILING, &value)?;
    }
    Ok(())
}

/// Returns the status that the client asks for as an error; `Ok` if it asks for none or for OK.
fn asked(status: Option<EchoStatus>) -> Result<(), Status> {
    match status {
        Some(EchoStatus { code, message }) if code != 0 => {
            Err(Status::new(Code::from_number(code), message))
        }
        _ => Ok(()),
    }
}

fn expect(compressed: Option<&BoolValue>, came: bool) -> Result<(), Status> {
    match compressed {
        Some(expected) if expected.value != came => {
            let text = format!("compressed is {came}, expected {}", expected.value);
            Err(Status::new(Code::InvalidArgument, text))
        }
        _ => Ok(()),
    }
}

fn is_set(value: Option<&BoolValue>) -> bool {
    value.is_some_and(|value| value.value)
}

fn payload(bytes: i32) -> Result<Payload, Status> {
    if !(0..=REPLY_BYTES_MAX).contains(&bytes) {
        return Err(Status::new(Code::InvalidArgument, format!("a reply of {bytes} bytes")));
    }
    Ok(Payload { r#type: 0, body: vec![0; bytes as usize] })
}
