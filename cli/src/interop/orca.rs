//! Load reports (ORCA) with the figures that a client asks for: of a call in its trailers, and of the server on streams of
//! `xds.service.orca.v3.OpenRcaService`, which this server has instead of its agent's front.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prost::Message as _;
use wave_user::rpc::typed::Stream;
use wave_user::rpc::{Call, Methods, Status};

use super::proto::TestOrcaReport;
use super::rest;
use proto::data::orca::v3::OrcaLoadReport;
use proto::service::orca::v3::{OpenRcaService, OrcaLoadReportRequest, open_rca_service_methods};

#[allow(missing_docs, clippy::all)]
mod proto {
    pub mod data {
        pub mod orca {
            pub mod v3 {
                include!(concat!(env!("OUT_DIR"), "/xds.data.orca.v3.rs"));
            }
        }
    }
    pub mod service {
        pub mod orca {
            pub mod v3 {
                include!(concat!(env!("OUT_DIR"), "/xds.service.orca.v3.rs"));
            }
        }
    }
}

/// The trailer with a call's load report.
const TRAILER: &str = "endpoint-load-metrics-bin";
/// Default and shortest time between two reports on a stream.
const INTERVAL: Duration = Duration::from_secs(1);
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Time between two checks whether it is a call's turn.
const CHECK_EVERY: Duration = Duration::from_millis(1);

/// The load that the server reports. One call at a time sets it.
#[derive(Debug, Default)]
pub struct Reports {
    server: Mutex<OrcaLoadReport>,
    is_taken: AtomicBool,
}

/// A call's turn to set the server's load, until this is dropped.
pub struct Turn<'a>(&'a AtomicBool);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The service of load reports.
pub fn methods(reports: Arc<Reports>) -> Methods {
    open_rca_service_methods(reports)
}

/// Reports the load of this call.
pub fn report(call: &mut Call<'_>, report: TestOrcaReport) -> Result<(), Status> {
    Ok(call.trailer(TRAILER, &load(report).encode_to_vec())?)
}

impl Reports {
    /// Waits until no other call sets the server's load.
    pub fn turn(&self, call: &mut Call<'_>) -> Result<Turn<'_>, Status> {
        while self.is_taken.swap(true, Ordering::Acquire) {
            rest(call, CHECK_EVERY)?;
        }
        Ok(Turn(&self.is_taken))
    }

    /// Sets the server's load.
    pub fn set(&self, report: TestOrcaReport) {
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = load(report);
    }

    fn get(&self) -> OrcaLoadReport {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl OpenRcaService for Arc<Reports> {
    fn stream_core_metrics(
        &self,
        request: OrcaLoadReportRequest,
        stream: &mut Stream<'_, '_, OrcaLoadReportRequest, OrcaLoadReport>,
    ) -> Result<(), Status> {
        let asked = request.report_interval.map(Duration::try_from);
        let interval = asked.and_then(Result::ok).unwrap_or(INTERVAL).max(INTERVAL_MIN);
        loop {
            stream.send(&self.get())?;
            rest(stream.call(), interval)?;
        }
    }
}

fn load(report: TestOrcaReport) -> OrcaLoadReport {
    OrcaLoadReport {
        cpu_utilization: report.cpu_utilization,
        mem_utilization: report.memory_utilization,
        request_cost: report.request_cost,
        utilization: report.utilization,
        ..OrcaLoadReport::default()
    }
}
