//! The five stages as functions on one packet or request (thesis 4.3). They have no clock and no queue, and allocate nothing:
//! an executor calls them, in one thread or in several. Loss recovery is a type parameter of the protocol stage:
//! [`Recovery`](recover::Recovery).
//!
//! | stage | function | state |
//! | --- | --- | --- |
//! | pre | [`pre::examine`] | [`Pre`](crate::flow::state::Pre), the table of connections |
//! | protocol | [`receive`](receive::receive), [`apply_update`](update::apply_update), [`process_marks`](marks::process_marks), [`transmit`](transmit::transmit), [`compose_header`](compose::compose_header) | [`Protocol`](crate::flow::state::Protocol): the only one that must be atomic |
//! | post | [`post::count`], [`post::head`] | [`Post`](crate::flow::state::Post): counts that commute |
//! | DMA, context queue | [`Output`](crate::datapath::Output)s | none |

pub mod acknowledge;
pub mod arbiter;
pub mod compose;
pub mod marks;
pub mod post;
pub mod pre;
pub mod receive;
pub mod recover;
pub mod transmit;
pub mod update;
