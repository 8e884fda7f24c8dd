//! The data paths of an agent, by name. Another one is added in the list at the end of this file.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::fmt;
use core::str::FromStr;

use wave_core::clock::Nanos;

use crate::capabilities::Capabilities;
use crate::datapath::{
    Batch, Command, Counter, Datapath, Established, FlowId, Limits, NoRoom, Output, Path, Settings,
    Statistics, Ticket, Tuple,
};
use crate::flextoe::{self, FlexToe};
use crate::laminar;
use crate::laminar::datapath::LaminarDatapath;
use crate::pipeline;
use crate::trace::{PointInfo, Trace};

macro_rules! datapaths {
    ($($(#[doc = $about:literal])* $kind:ident: $type:ty = $make:expr, $name:expr, $points:expr;)*) => {
        /// A data path to choose.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum DatapathKind { $($(#[doc = $about])* $kind,)* }

        impl DatapathKind {
            /// All data paths; the first is the default.
            pub const ALL: &[DatapathKind] = &[$(DatapathKind::$kind,)*];

            /// The [name](Datapath::name) of the data path.
            pub const fn name(self) -> &'static str {
                match self { $(DatapathKind::$kind => $name,)* }
            }

            /// The [trace points](Datapath::points) of the data path.
            pub const fn points(self) -> &'static [PointInfo] {
                match self { $(DatapathKind::$kind => $points,)* }
            }

            /// A data path without connections.
            pub fn make<F: AsRef<[u8]>>(self, settings: Settings, trace: Arc<Trace>) -> AnyDatapath<F> {
                match self { $(DatapathKind::$kind => AnyDatapath::$kind($make(settings, trace)),)* }
            }
        }

        /// Any of the data paths.
        #[derive(Debug)]
        pub enum AnyDatapath<F> { $($(#[doc = $about])* $kind($type),)* }

        impl<F: AsRef<[u8]>> Datapath<F> for AnyDatapath<F> {
            forward_datapath!(F, self: $(AnyDatapath::$kind(data))|+ => data);
        }
    };
}

impl FromStr for DatapathKind {
    type Err = UnknownDatapath;

    fn from_str(name: &str) -> Result<DatapathKind, UnknownDatapath> {
        DatapathKind::ALL.iter().copied().find(|kind| kind.name() == name).ok_or(UnknownDatapath)
    }
}

/// There is no data path with that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownDatapath;

impl fmt::Display for UnknownDatapath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the data paths are ")?;
        for (at, kind) in DatapathKind::ALL.iter().enumerate() {
            write!(f, "{}{}", if at > 0 { ", " } else { "" }, kind.name())?;
        }
        Ok(())
    }
}

impl core::error::Error for UnknownDatapath {}

impl Default for DatapathKind {
    fn default() -> DatapathKind {
        DatapathKind::ALL[0]
    }
}

datapaths! {
    /// FlexTOE's stages on one core, with selective acknowledgements.
    FlexToe: FlexToe<F> = FlexToe::with_trace, flextoe::NAME, pipeline::Point::ALL_INFO;
    /// Laminar's match-action pipeline, with one interval out of order.
    Laminar: LaminarDatapath<F> = FlexToe::with_trace, laminar::datapath::NAME, pipeline::Point::ALL_INFO;
}
