//! Virtual time, and an executor that runs all tasks of a test in one thread.
//!
//! Time stands still while any task can go on, and then jumps to the next timer. So a test takes no wall time, and one
//! test is one sequence of events.

use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use percolator_client::transport::BoxFuture;

/// A test that takes longer than this in virtual time hangs.
const HANGS_AFTER: Duration = Duration::from_secs(3600);

/// Time and tasks.
#[derive(Default)]
pub(crate) struct World {
    clock: Mutex<Clock>,
    spawned: Mutex<Vec<BoxFuture<'static, ()>>>,
    tasks: Mutex<FuturesUnordered<BoxFuture<'static, ()>>>,
}

#[derive(Default)]
struct Clock {
    now: Duration,
    timers: BTreeMap<(Duration, u64), Waker>,
    last_timer: u64,
}

struct Flag(AtomicBool);

impl Flag {
    fn raised() -> Arc<Self> {
        Arc::new(Self(AtomicBool::new(true)))
    }

    fn take(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl World {
    /// Time since the test began.
    pub(crate) fn now(&self) -> Duration {
        self.clock.lock().now
    }

    /// Waits.
    pub(crate) fn sleep(self: &Arc<Self>, duration: Duration) -> Sleep {
        let mut clock = self.clock.lock();
        clock.last_timer += 1;
        Sleep {
            world: self.clone(),
            key: (clock.now + duration, clock.last_timer),
        }
    }

    /// Runs a task beside the test.
    pub(crate) fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.spawned.lock().push(task);
    }

    /// Runs the test's own task to its end. The other tasks stand still until the next call.
    pub(crate) fn run<T>(&self, main: impl Future<Output = T>) -> T {
        let mut main = pin!(main);
        let (main_flag, tasks_flag) = (Flag::raised(), Flag::raised());
        let (main_waker, tasks_waker) = (main_flag.clone().into(), tasks_flag.clone().into());
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        let result = loop {
            if main_flag.take()
                && let Poll::Ready(result) =
                    main.as_mut().poll(&mut Context::from_waker(&main_waker))
            {
                break result;
            }
            let spawned = std::mem::take(&mut *self.spawned.lock());
            let is_new = !spawned.is_empty();
            tasks.extend(spawned);
            if tasks_flag.take() || is_new {
                let mut context = Context::from_waker(&tasks_waker);
                while let Poll::Ready(Some(())) = tasks.poll_next_unpin(&mut context) {}
                continue;
            }
            if !main_flag.0.load(Ordering::SeqCst) {
                self.advance();
            }
        };
        *self.tasks.lock() = tasks;
        result
    }

    /// Goes to the next timer, when nothing else is left to do.
    fn advance(&self) {
        let mut clock = self.clock.lock();
        let Some(((at, _), waker)) = clock.timers.pop_first() else {
            drop(clock);
            panic!("the test hangs: nothing is left to wait for");
        };
        clock.now = clock.now.max(at);
        let is_late = clock.now > HANGS_AFTER;
        drop(clock);
        assert!(!is_late, "the test hangs: it takes {HANGS_AFTER:?} already");
        waker.wake();
    }
}

/// A wait for a time.
pub(crate) struct Sleep {
    world: Arc<World>,
    key: (Duration, u64),
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut clock = self.world.clock.lock();
        if clock.now >= self.key.0 {
            return Poll::Ready(());
        }
        clock.timers.insert(self.key, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.world.clock.lock().timers.remove(&self.key);
    }
}
