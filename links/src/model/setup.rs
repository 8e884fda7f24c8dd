//! The setup of a context of a modelled link: its costs, and its access to each line.

use wave_core::link::{Home, Mapping, Side, Span};

use super::stamps::Stamps;
use crate::costs::Costs;

/// Why a modelled link cannot be set up. The configuration is at fault.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum ModelError {
    /// The window's extra region is too small.
    #[error("the window's extra region is too small for a modelled link")]
    NoRoom,
    /// A page type for lines that do not exist.
    #[error("a page type names lines {}..{} of a {:?} region that has {lines} lines",
        span.line, u64::from(span.line) + u64::from(span.lines), span.home)]
    Outside { span: Span, lines: u32 },
    /// A write-back mapping of far memory, whose caches nothing would keep coherent.
    #[error("line {} of far memory cannot be mapped write-back over a link that is not coherent",
        .0.line)]
    FarWriteBack(Span),
    /// The vector is not below [`super::VECTORS_MAX`].
    #[error("a modelled link has no doorbell {0}")]
    NoSuchVector(usize),
}

/// How a context reaches a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Near memory, mapped write-back.
    Near,
    /// Near memory, mapped uncached.
    NearUncached,
    /// Far memory, mapped uncached.
    Uncached,
    /// Far, mapped write-combining.
    Combining,
    /// Far, mapped write-through.
    Through,
    /// Far, through the agent's copy engine.
    Engine,
    /// Memory of either side over a coherent link.
    Coherent,
}

/// The costs in whole nanoseconds.
#[derive(Debug)]
pub(super) struct Prices {
    pub coherent: bool,
    pub host_write: u64,
    pub line_drain: u64,
    pub flush: u64,
    pub prefetch_residue: u64,
    pub near_access: u64,
    pub dma_submit: u64,
    pub dma_flight: u64,
    pub dma_ns_per_kib: f64,
    pub line_transfer: u64,
    /// A far load's way to the other side, where it is served, and its way back.
    pub there: u64,
    pub back: u64,
    /// A posted store's flight.
    pub flight: u64,
    /// Longer than any honest wait for a store to arrive.
    pub wait_max: u64,
}

impl Prices {
    pub fn new(costs: &Costs, side: Side) -> Prices {
        let read = costs.host_read.nanos().0;
        let posted = costs.posted_flight.nanos().0;
        let dma_flight = costs.dma_flight.nanos().0;
        let (there, back, flight) = match side {
            Side::Agent if !costs.coherent => (dma_flight, dma_flight, dma_flight),
            _ => (posted.min(read), read.saturating_sub(posted), posted),
        };
        Prices {
            coherent: costs.coherent,
            host_write: costs.host_write.nanos().0,
            line_drain: costs.line_drain.nanos().0,
            flush: costs.flush.nanos().0,
            prefetch_residue: costs.prefetch_residue.nanos().0,
            near_access: costs.agent_access_uncached.nanos().0,
            dma_submit: costs.dma_submit.nanos().0,
            dma_flight,
            dma_ns_per_kib: costs.dma_ns_per_kib.ns,
            line_transfer: costs.line_transfer.nanos().0,
            there,
            back,
            flight,
            wait_max: 1_000_000 + 16 * (posted + dma_flight),
        }
    }
}

/// The kind of access to each line of the two regions.
pub(super) fn access_table(
    stamps: &Stamps,
    side: Side,
    coherent: bool,
    page_types: &[(Span, Mapping)],
) -> Result<[Box<[Access]>; 2], ModelError> {
    let default = |home| match (coherent, side, home) {
        (true, _, _) => Access::Coherent,
        (_, Side::Host, Home::Host) | (_, Side::Agent, Home::Nic) => Access::Near,
        (_, Side::Host, Home::Nic) => Access::Uncached,
        (_, Side::Agent, Home::Host) => Access::Engine,
    };
    let table = |home| vec![default(home); stamps.lines(home) as usize].into_boxed_slice();
    let mut tables = [table(Home::Nic), table(Home::Host)];
    for (span, mapping) in page_types {
        let lines = stamps.lines(span.home);
        let access = match (default(span.home), mapping) {
            (Access::Near, Mapping::Uncached) => Access::NearUncached,
            (Access::Uncached, Mapping::WriteCombining) => Access::Combining,
            (Access::Uncached, Mapping::WriteThrough) => Access::Through,
            (Access::Uncached, Mapping::WriteBack) => return Err(ModelError::FarWriteBack(*span)),
            (default, _) => default,
        };
        let table = &mut tables[span.home as usize];
        let named = span.line.checked_add(span.lines);
        named
            .and_then(|end| table.get_mut(span.line as usize..end as usize))
            .ok_or(ModelError::Outside { span: *span, lines })?
            .fill(access);
    }
    Ok(tables)
}
