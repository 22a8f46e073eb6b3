//! Callers in batches, each batch with one result: a list of wakers and a first timestamp do what
//! a channel for each caller would, at a third less cost.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use percolator_protocol::oracle::Granted;
use percolator_protocol::types::{Timestamp, TraceParent};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::{COUNT_MAX, OracleError};
use crate::ticker::{Pulse, Ticked};

/// The most traces that one request names.
const TRACES_MAX: usize = 16;
/// How many timestamps may be waited for at a time.
const WAITING_MAX: u32 = 16 * COUNT_MAX;

/// The batches that are not asked for yet.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// There is a batch, or the queue is closed.
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// The last one takes callers; the ones before are full.
    batches: VecDeque<Arc<Batch>>,
    /// Timestamps that the batches ask for.
    waiting: u32,
    /// Callers of the batch that was taken last: as many are expected again.
    callers: usize,
    /// The number of the driver that takes batches; zero: there is none.
    driver: u64,
    /// The last one that was begun.
    drivers: u64,
    /// What the driver has taken and not finished.
    taken: Option<Arc<Batch>>,
    /// The driver's.
    pulse: Pulse,
    /// When that came last.
    pulsed: Option<Instant>,
    closed: bool,
}

/// What a caller gets when it joins.
pub(super) struct Joined {
    pub(super) ticket: Ticket,
    /// Nobody takes batches from the queue: the caller starts a driver of this number.
    pub(super) new_driver: Option<u64>,
}

impl Queue {
    /// Adds a caller to a batch that is not asked for yet. `since`: when it came, if it was in another batch before.
    pub(super) fn join(
        &self,
        waker: &Waker,
        count: u32,
        traces: &[TraceParent],
        since: Option<Instant>,
    ) -> Result<Joined, OracleError> {
        let mut state = self.state.lock();
        let State {
            batches,
            waiting,
            callers,
            pulsed,
            ..
        } = &mut *state;
        let came = ArrivalTime {
            since,
            pulsed: *pulsed,
        };
        if *waiting + count > WAITING_MAX {
            return Err(OracleError::Overloaded { waiting: *waiting });
        }
        let joined = batches
            .back()
            .and_then(|batch| Ticket::in_batch(batch, waker, count, came));
        let ticket = match joined {
            Some(ticket) => ticket,
            None => {
                let batch = Arc::new(Batch::new(*callers));
                let Some(ticket) = Ticket::in_batch(&batch, waker, count, came) else {
                    return Err(OracleError::Count { count });
                };
                batches.push_back(batch);
                if batches.len() == 1 {
                    self.changed.notify_one();
                }
                ticket
            }
        };
        if !traces.is_empty() {
            ticket.batch.callers.lock().trace(traces);
        }
        *waiting += count;
        let new_driver = (state.driver == 0).then(|| {
            state.drivers += 1;
            state.driver = state.drivers;
            state.pulse.beat();
            state.driver
        });
        Ok(Joined { ticket, new_driver })
    }

    /// Takes the oldest batch, when there is one: nobody joins it from then on. None when every
    /// client is gone, or another driver has taken this one's place.
    pub(super) async fn take(&self, driver: u64) -> Option<Arc<Batch>> {
        loop {
            {
                let mut state = self.state.lock();
                if state.closed || state.driver != driver {
                    return None;
                }
                state.taken = state.batches.pop_front();
                if let Some(batch) = &state.taken {
                    let (count, callers) = batch.size();
                    let batch = batch.clone();
                    state.waiting -= count;
                    state.callers = callers;
                    return Some(batch);
                }
            }
            self.changed.notified().await;
        }
    }

    /// The driver's runtime comes to it.
    pub(super) fn pulse(&self) {
        let mut state = self.state.lock();
        state.pulse.beat();
        state.pulsed = Some(Instant::now());
    }

    /// Every client is gone.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_one();
    }

    /// This driver takes no batches any more: their callers get an error, and the next caller starts another driver.
    pub(super) fn driver_ended(&self, driver: u64) {
        let (taken, batches) = {
            let mut state = self.state.lock();
            if state.driver != driver {
                return;
            }
            state.driver = 0;
            state.waiting = 0;
            (state.taken.take(), std::mem::take(&mut state.batches))
        };
        // It may still be asleep for a batch.
        self.changed.notify_one();
        for batch in taken.into_iter().chain(batches) {
            batch.finish(Err(OracleError::Stopped));
        }
    }
}

impl Ticked for Queue {
    /// Ends a driver whose runtime stands still, while others wait for it.
    fn tick(&self) {
        let mut state = self.state.lock();
        state.pulse.tick();
        let waits =
            state.taken.as_ref().is_some_and(|batch| !batch.is_done()) || !state.batches.is_empty();
        let driver = state.driver;
        let stands_still = state.pulse.stands_still();
        drop(state);
        if waits && stands_still && driver != 0 {
            self.driver_ended(driver);
        }
    }
}

/// When a caller came, as far as that is known.
#[derive(Clone, Copy)]
struct ArrivalTime {
    since: Option<Instant>,
    /// Not before this.
    pulsed: Option<Instant>,
}

impl ArrivalTime {
    /// The time of a caller that joins a batch which was made then. To read the clock for each caller would cost too much: one that
    /// joins a batch which has waited for long is taken to have come with the last pulse.
    fn to(self, made: Instant) -> Instant {
        let lately = || self.pulsed.map_or(made, |pulsed| pulsed.max(made));
        self.since.unwrap_or_else(lately)
    }
}

/// Callers that get their timestamps from one request.
pub(super) struct Batch {
    made: Instant,
    callers: Mutex<Callers>,
    result: OnceLock<Result<Granted, OracleError>>,
}

struct Callers {
    count: u32,
    wakers: Vec<Waker>,
    /// When they came: those in a row that came at one time have one entry.
    came: Vec<Instant>,
    traces: Vec<TraceParent>,
}

impl Callers {
    fn trace(&mut self, traces: &[TraceParent]) {
        let room = TRACES_MAX.saturating_sub(self.traces.len());
        self.traces.extend(traces.iter().take(room));
    }
}

impl Batch {
    fn new(callers: usize) -> Self {
        Self {
            made: Instant::now(),
            callers: Mutex::new(Callers {
                count: 0,
                wakers: Vec::with_capacity(callers),
                came: Vec::with_capacity(1),
                traces: Vec::new(),
            }),
            result: OnceLock::new(),
        }
    }

    /// How many timestamps it asks for, and how many callers it has.
    fn size(&self) -> (u32, usize) {
        let callers = self.callers.lock();
        (callers.count, callers.wakers.len())
    }

    fn is_done(&self) -> bool {
        self.result.get().is_some()
    }

    /// How many timestamps it asks for, and in which traces. Once it is taken, that doesn't change any more.
    pub(super) fn demand(&self) -> (u32, Vec<TraceParent>) {
        let callers = self.callers.lock();
        (callers.count, callers.traces.clone())
    }

    /// Whether nobody waits for it any more who gives up after so long.
    pub(super) fn is_over(&self, deadline: Duration) -> bool {
        let last = self.callers.lock().came.iter().max().copied();
        last.is_none_or(|came| came.elapsed() >= deadline)
    }

    /// Wakes callers when they have waited for so long; ends with the last of them. To be called when nobody joins any more.
    pub(super) async fn time_out(&self, deadline: Duration) {
        let mut came = self.callers.lock().came.clone();
        came.sort_unstable();
        for came in came {
            sleep_until(came + deadline).await;
            let wakers = self.callers.lock().wakers.clone();
            for waker in wakers {
                waker.wake();
            }
        }
    }

    /// Gives the callers the result; the first one stays.
    pub(super) fn finish(&self, result: Result<Granted, OracleError>) {
        // The result comes first: a caller that changes its waker checks for it under the lock.
        let _ = self.result.set(result);
        let wakers = std::mem::take(&mut self.callers.lock().wakers);
        for waker in wakers {
            waker.wake();
        }
    }
}

/// A caller's place in a batch. To drop it wastes the timestamps, nothing else.
pub(super) struct Ticket {
    batch: Arc<Batch>,
    /// Which of the batch's wakers is this caller's.
    caller: usize,
    /// Which of the batch's timestamps is this caller's first.
    offset: u32,
    count: u32,
    /// When it came.
    pub(super) since: Instant,
}

impl Ticket {
    /// A place in the batch; none if it's full.
    fn in_batch(batch: &Arc<Batch>, waker: &Waker, count: u32, came: ArrivalTime) -> Option<Self> {
        let mut callers = batch.callers.lock();
        let offset = callers.count;
        if offset + count > COUNT_MAX {
            return None;
        }
        callers.count += count;
        callers.wakers.push(waker.clone());
        let since = came.to(batch.made);
        if callers.came.last() != Some(&since) {
            callers.came.push(since);
        }
        Some(Self {
            batch: batch.clone(),
            caller: callers.wakers.len() - 1,
            offset,
            count,
            since,
        })
    }

    /// The caller's timestamps; none if the oracle granted too few for this caller.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Granted>, OracleError>> {
        if self.batch.result.get().is_none() {
            let mut callers = self.batch.callers.lock();
            // Anyone who finishes the batch takes the wakers after it set the result.
            if self.batch.result.get().is_none() {
                // The future may have moved to another task since.
                if let Some(waker) = callers.wakers.get_mut(self.caller) {
                    waker.clone_from(cx.waker());
                }
                return Poll::Pending;
            }
        }
        match self.batch.result.get() {
            None => Poll::Pending,
            Some(Err(error)) => Poll::Ready(Err(error.clone())),
            Some(Ok(granted)) => Poll::Ready(Ok(self.share(*granted))),
        }
    }

    fn share(&self, granted: Granted) -> Option<Granted> {
        if self.offset + self.count > granted.count {
            return None;
        }
        let first = granted.first.as_u64() + u64::from(self.offset);
        Some(Granted {
            first: Timestamp::from_u64(first),
            count: self.count,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_dropped_with_a_driver_is_waited_for_no_more() {
        let queue = Queue::default();
        for _ in 0..3 * WAITING_MAX / COUNT_MAX {
            let joined = queue
                .join(Waker::noop(), COUNT_MAX, &[], None)
                .expect("room");
            queue.driver_ended(joined.new_driver.expect("one more"));
        }
    }
}
