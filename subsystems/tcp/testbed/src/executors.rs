//! FlexTOE's data path over every executor and with every loss recovery, chosen by values.

use std::num::NonZeroUsize;

use wave_tcp::datapath::{Datapath, Settings};
use wave_tcp::executors::{Executor, Inline, Shape, Threads, VirtualTime};
use wave_tcp::flextoe::FlexToe;
use wave_tcp::stages::arbiter::ByStages;
use wave_tcp::stages::recover::{GoBackN, Recovery, Sack};

/// Replicas of a stage that runs in threads.
const REPLICAS: NonZeroUsize = NonZeroUsize::new(2).expect("two");

/// A machine's loss recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Go-back-N: one interval of received bytes; everything after a loss is sent again.
    GoBackN,
    /// Selective acknowledgements, if the peer has them, too.
    Sack,
}

/// Any data path.
pub type Data<F> = Box<dyn Datapath<F>>;

/// The executor of FlexTOE's data path.
pub type Stages<F> = Box<dyn Executor<F>>;

/// How the stages of FlexTOE's data path run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// On one core.
    Inline,
    Threads,
    /// With times drawn from this seed.
    VirtualTime(u64),
}

impl Runs {
    /// A data path without flows.
    pub fn datapath<F>(self, settings: Settings, by: By) -> Data<F>
    where
        F: AsRef<[u8]> + Send + 'static,
    {
        Box::new(FlexToe::over(&settings, self.start(settings, by)))
    }

    /// An executor without flows.
    pub fn start<F>(self, settings: Settings, by: By) -> Stages<F>
    where
        F: AsRef<[u8]> + Send + 'static,
    {
        match by {
            By::GoBackN => self.with::<F, GoBackN>(settings),
            By::Sack => self.with::<F, Sack>(settings),
        }
    }

    fn with<F, R: Recovery>(self, settings: Settings) -> Stages<F>
    where
        F: AsRef<[u8]> + Send + 'static,
    {
        match self {
            Runs::Inline => Box::new(Inline::<F, ByStages<R>>::new(settings)),
            Runs::Threads => Box::new(Threads::<F, R>::start(settings, REPLICAS)),
            Runs::VirtualTime(seed) => {
                Box::new(VirtualTime::<F, R>::new(settings, Shape::default(), seed))
            }
        }
    }
}
