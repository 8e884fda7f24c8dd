//! Makes sure that tasks that yield are woken again.

use std::future::{Future, poll_fn};
use std::pin::pin;

use tokio::task::coop::has_budget_remaining;

/// Keeps `task` running after tokio has made it yield, as after 128 accepts or reads in a row. tokio wakes such a task when
/// its runtime polls the sockets again, and forgets it if `block_on` returns before that, as a front's polls do.
pub async fn in_turns<T>(task: impl Future<Output = T>) -> T {
    let mut task = pin!(task);
    poll_fn(|cx| {
        let polled = task.as_mut().poll(cx);
        if polled.is_pending() && !has_budget_remaining() {
            cx.waker().wake_by_ref();
        }
        polled
    })
    .await
}
