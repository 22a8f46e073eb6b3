//! Many callers at once, as tasks of this thread's runtime: the way an application runs them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::Figure;

/// Reading the clock twice for each call would be a part of what is measured, where a call takes less
/// than a microsecond: so only one in so many calls is timed.
#[derive(Clone, Copy)]
pub(super) enum Timed {
    Each,
    OneIn(u64),
}

/// What calls of one kind took, in one round of them or in several.
#[derive(Debug)]
pub(super) struct Calls {
    /// Nanoseconds, up to a minute, with two digits.
    latency: Histogram<u64>,
    count: u64,
    took: Duration,
}

impl Calls {
    pub(super) fn new() -> Self {
        let latency = Histogram::new_with_bounds(100, 60_000_000_000, 2);
        Self {
            latency: latency.expect("bounds that a histogram may have"),
            count: 0,
            took: Duration::ZERO,
        }
    }

    /// One more.
    pub(super) fn record(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.latency.saturating_record(nanos);
        self.count += 1;
    }

    /// Whether there were none.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// These were made within so long.
    pub(super) fn within(mut self, took: Duration) -> Self {
        self.took = took;
        self
    }

    /// Those of another round.
    pub(super) fn add(&mut self, other: &Self) {
        self.latency
            .add(&other.latency)
            .expect("histograms of one kind");
        self.count += other.count;
        self.took += other.took;
    }

    pub(super) fn figure(&self, name: impl Into<String>) -> Figure {
        Figure {
            name: name.into(),
            per_second: self.count as f64 / self.took.as_secs_f64(),
            p50_ms: self.ms(0.5),
            p99_ms: self.ms(0.99),
            ratio: None,
            note: format!("mean {:.3} ms", self.latency.mean() / 1e6),
        }
    }

    /// What this part of them took at the most.
    pub(super) fn ms(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64 / 1e6
    }
}

/// As [`calls`], in one round that has a name.
pub(super) async fn run<F, Fut, E>(
    name: impl Into<String>,
    callers: usize,
    duration: Duration,
    timed: Timed,
    call: F,
) -> anyhow::Result<Figure>
where
    F: Fn(usize) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send,
    E: Into<anyhow::Error> + Send + 'static,
{
    let calls = calls(callers, duration, timed, call).await?;
    Ok(calls.figure(name))
}

/// Calls again and again from `callers` tasks for as long as this; `call` gets the number of the task.
pub(super) async fn calls<F, Fut, E>(
    callers: usize,
    duration: Duration,
    timed: Timed,
    call: F,
) -> anyhow::Result<Calls>
where
    F: Fn(usize) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send,
    E: Into<anyhow::Error> + Send + 'static,
{
    let timed_calls = Arc::new(Mutex::new(Calls::new()));
    let call = Arc::new(call);
    let calls = Arc::new(AtomicU64::new(0));
    let every = match timed {
        Timed::Each => 1,
        Timed::OneIn(calls) => calls,
    };
    let started = Instant::now();
    let end = started + duration;
    let mut tasks = JoinSet::new();
    for number in 0..callers {
        let (call, timed_calls, calls) = (call.clone(), timed_calls.clone(), calls.clone());
        tasks.spawn(async move {
            loop {
                let count = calls.fetch_add(1, Ordering::Relaxed);
                if count % every != 0 {
                    call(number).await?;
                    continue;
                }
                let begun = Instant::now();
                if begun >= end {
                    return Ok::<(), E>(());
                }
                call(number).await?;
                timed_calls.lock().record(begun.elapsed());
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended?.map_err(Into::into)?;
    }
    let took = started.elapsed();
    let mut done = std::mem::replace(&mut *timed_calls.lock(), Calls::new()).within(took);
    // Also those that weren't timed.
    done.count = calls.load(Ordering::Relaxed) - callers as u64;
    Ok(done)
}
