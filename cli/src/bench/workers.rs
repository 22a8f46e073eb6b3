//! Many callers at once, on this thread.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::task::LocalSet;

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
    F: Fn(usize) -> Fut + 'static,
    Fut: Future<Output = Result<(), E>>,
    E: Into<anyhow::Error> + 'static,
{
    // Nanoseconds, up to a minute, with two digits.
    let latency = Rc::new(RefCell::new(Histogram::<u64>::new_with_bounds(
        100,
        60_000_000_000,
        2,
    )?));
    let call = Rc::new(call);
    let calls = Rc::new(Cell::new(0_u64));
    let every = match timed {
        Timed::Each => 1,
        Timed::OneIn(calls) => calls,
    };
    let started = Instant::now();
    let end = started + duration;
    let local = LocalSet::new();
    let mut tasks = Vec::with_capacity(callers);
    for number in 0..callers {
        let (call, latency, calls) = (call.clone(), latency.clone(), calls.clone());
        tasks.push(local.spawn_local(async move {
            loop {
                let count = calls.get();
                calls.set(count + 1);
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
                latency.borrow_mut().saturating_record(nanos);
            }
        }));
    }
    local
        .run_until(async {
            for task in tasks {
                task.await?.map_err(Into::into)?;
            }
            anyhow::Ok(())
        })
        .await?;
    let latency = latency.borrow();
    let ms = |quantile| latency.value_at_quantile(quantile) as f64 / 1e6;
    Ok(Figure {
        name: name.into(),
        per_second: (calls.get() - callers as u64) as f64 / started.elapsed().as_secs_f64(),
        p50_ms: ms(0.5),
        p99_ms: ms(0.99),
        ratio: None,
        note: format!("mean {:.3} ms", latency.mean() / 1e6),
    })
}
