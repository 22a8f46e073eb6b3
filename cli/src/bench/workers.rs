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

/// Calls again and again from `callers` tasks for as long as this; `call` gets the number of the task.
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
    // Nanoseconds, up to a minute, with two digits.
    let latency = Arc::new(Mutex::new(Histogram::<u64>::new_with_bounds(
        100,
        60_000_000_000,
        2,
    )?));
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
        let (call, latency, calls) = (call.clone(), latency.clone(), calls.clone());
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
                let nanos = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
                latency.lock().saturating_record(nanos);
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended?.map_err(Into::into)?;
    }
    let latency = latency.lock();
    let ms = |quantile| latency.value_at_quantile(quantile) as f64 / 1e6;
    Ok(Figure {
        name: name.into(),
        per_second: (calls.load(Ordering::Relaxed) - callers as u64) as f64
            / started.elapsed().as_secs_f64(),
        p50_ms: ms(0.5),
        p99_ms: ms(0.99),
        ratio: None,
        note: format!("mean {:.3} ms", latency.mean() / 1e6),
    })
}
