//! Time for what waits on a connection, from a thread of its own.
//!
//! A connection runs on the tokio runtime of its first user. That one may stand still, or be left without anybody
//! who drives it, while calls on other runtimes wait for the connection. The ticker wakes these calls.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

/// Waiting calls are woken once a tick, and check their deadlines.
pub(crate) const TICK: Duration = Duration::from_millis(250);
/// A runtime that has not come to its connection for so many ticks, while others wait for it, stands still.
const STANDS_STILL_TICKS: u32 = 8;
/// The reason that is given to calls that waited for such a runtime.
pub(crate) const STANDS_STILL: &str =
    "the runtime that holds the connection stands still: another one was waiting for it";

/// The time of a connection, in ticks, and when its runtime came to it last.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    now: u32,
    last: u32,
}

impl Pulse {
    pub(crate) fn now(&self) -> u32 {
        self.now
    }

    /// A tick has passed.
    pub(crate) fn tick(&mut self) {
        self.now += 1;
    }

    /// The runtime comes to the connection.
    pub(crate) fn beat(&mut self) {
        self.last = self.now;
    }

    /// Whether the runtime hasn't come for long.
    pub(crate) fn stands_still(&self) -> bool {
        self.now - self.last > STANDS_STILL_TICKS
    }
}

/// What wants to know of time.
pub(crate) trait Ticked: Send + Sync {
    /// A tick has passed.
    fn tick(&self);
}

struct Ticker {
    ticked: Vec<Weak<dyn Ticked>>,
    runs: bool,
}

static TICKER: Mutex<Ticker> = Mutex::new(Ticker {
    ticked: Vec::new(),
    runs: false,
});

/// Ticks this until it is dropped.
pub(crate) fn watch(ticked: Weak<dyn Ticked>) {
    let mut ticker = TICKER.lock();
    ticker.ticked.push(ticked);
    if !ticker.runs {
        let thread = std::thread::Builder::new().name("percolator-ticks".to_owned());
        // Without a thread the next one tries again.
        ticker.runs = thread.spawn(run).is_ok();
    }
}

/// Ends with the last that is ticked.
fn run() {
    loop {
        std::thread::sleep(TICK);
        let ticked: Vec<Arc<dyn Ticked>> = {
            let mut ticker = TICKER.lock();
            ticker.ticked.retain(|one| one.strong_count() > 0);
            if ticker.ticked.is_empty() {
                ticker.runs = false;
                return;
            }
            ticker.ticked.iter().filter_map(Weak::upgrade).collect()
        };
        for one in ticked {
            one.tick();
        }
    }
}

/// Never ends: calls this once a tick, on the runtime that it is awaited on.
pub(crate) async fn pulse(beat: impl Fn()) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        beat();
    }
}
