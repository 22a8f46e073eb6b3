//! Many callers at once, on this thread.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::task::LocalSet;

use super::Figure;

/// Calls again and again from `callers` tasks for as long as this; `call` gets the number of the task.
pub(super) async fn run<F, Fut, E>(
    name: impl Into<String>,
    callers: usize,
    duration: Duration,
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
    let started = Instant::now();
    let end = started + duration;
    let local = LocalSet::new();
    let mut tasks = Vec::with_capacity(callers);
    for number in 0..callers {
        let (call, latency) = (call.clone(), latency.clone());
        tasks.push(local.spawn_local(async move {
            loop {
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
        per_second: latency.len() as f64 / started.elapsed().as_secs_f64(),
        p50_ms: ms(0.5),
        p99_ms: ms(0.99),
        ratio: None,
        note: format!("mean {:.3} ms", latency.mean() / 1e6),
    })
}
