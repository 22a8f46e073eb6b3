//! Which directory a master serves now, and which requests it admits: the server and the simulator both ask it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::candidate::{Candidate, Host, NotLeading};
use crate::core::Directory;
use crate::runner::{Runner, RunnerHost};

/// A planned end waits this long for requests that wait for tablet servers. It is well below the request timeout of those who are
/// refused meanwhile.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// A planned end waits this long until servers know of it: more than the interval of their heartbeats.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_millis(700);
/// How often it checks whether they do.
const ANNOUNCE_POLL: Duration = Duration::from_millis(10);

/// The directory that answers requests now, if this master may answer any.
pub struct Serving<C, R> {
    /// None if this master is alone.
    candidate: Option<Arc<Candidate<C>>>,
    current: RwLock<Option<Arc<Runner<R>>>>,
    admits: Mutex<Admission>,
    /// How many requests wait for tablet servers.
    waiting: watch::Sender<usize>,
}

/// Which requests a master admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    All,
    /// It is about to end: those alone that wait for no tablet server.
    Immediate,
    /// None: earlier ones are being made durable.
    Nothing,
}

/// A request that may wait for tablet servers, for as long as the value exists.
#[derive(Debug)]
pub struct WaitingRequest<'a>(&'a watch::Sender<usize>);

impl Drop for WaitingRequest<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|waiting| *waiting -= 1);
    }
}

impl<C: Host, R: RunnerHost> Serving<C, R> {
    /// Of a master that is alone, and serves this directory.
    pub fn alone(runner: Arc<Runner<R>>) -> Self {
        Self {
            current: RwLock::new(Some(runner)),
            ..Self::new(None)
        }
    }

    /// Of one of several masters.
    pub fn elected(candidate: Arc<Candidate<C>>) -> Self {
        Self::new(Some(candidate))
    }

    fn new(candidate: Option<Arc<Candidate<C>>>) -> Self {
        Self {
            candidate,
            current: RwLock::default(),
            admits: Mutex::new(Admission::All),
            waiting: watch::Sender::default(),
        }
    }

    /// The part in the election of one of several masters.
    pub fn candidate(&self) -> Option<&Arc<Candidate<C>>> {
        self.candidate.as_ref()
    }

    /// The directory that answers a request. To be called when the request was read: see [`Candidate::leading_term`].
    ///
    /// # Errors
    /// This master doesn't lead.
    pub fn runner(&self) -> Result<Arc<Runner<R>>, NotLeading> {
        let Some(candidate) = &self.candidate else {
            return self.current().ok_or(NotLeading::Stopping);
        };
        let term = candidate.leading_term()?;
        // A leader that still reads the state answers as one that doesn't lead yet, and one that ends as one that does no more.
        let admits = *self.admits.lock() != Admission::Nothing;
        self.current()
            .filter(|runner| admits && runner.term() == term)
            .ok_or(NotLeading::Standby(None))
    }

    /// As [`Self::runner`], for a request that may wait for tablet servers.
    ///
    /// # Errors
    /// Also when this master is about to end: the next leader is to be asked.
    pub fn runner_to_wait(&self) -> Result<(Arc<Runner<R>>, WaitingRequest<'_>), NotLeading> {
        let runner = self.runner()?;
        if *self.admits.lock() != Admission::All {
            return Err(NotLeading::Standby(None));
        }
        self.waiting.send_modify(|waiting| *waiting += 1);
        Ok((runner, WaitingRequest(&self.waiting)))
    }

    /// Prepares a planned end of one of several masters. It waits, each for a limited time, until servers know that they are to send
    /// heartbeats often, so that the next leader soon knows where all tablets are; until requests that wait for tablet servers are
    /// done; and until all changes are durable. Requests are answered as long as no other master could, and are sent to the next
    /// leader then.
    pub async fn drain(&self) {
        let Some((candidate, runner)) = self.candidate.as_ref().zip(self.current()) else {
            return;
        };
        let host = candidate.host();
        let announced = async {
            while let Ok(false) = runner.step(Directory::announce_end).await {
                host.sleep(ANNOUNCE_POLL).await;
            }
        };
        // Meanwhile all requests are admitted.
        select(pin!(announced), pin!(host.sleep(ANNOUNCE_TIMEOUT))).await;
        *self.admits.lock() = Admission::Immediate;
        let mut waiting = self.waiting.subscribe();
        let none_waits = pin!(waiting.wait_for(|waiting| *waiting == 0));
        select(none_waits, pin!(host.sleep(DRAIN_TIMEOUT))).await;
        *self.admits.lock() = Admission::Nothing;
        // The outcome of a request that isn't durable by then is reported as unknown.
        let right = Duration::from_millis(candidate.timing().right_ms);
        select(pin!(runner.settled()), pin!(host.sleep(right))).await;
    }

    /// The directory, whether or not it may answer.
    pub fn current(&self) -> Option<Arc<Runner<R>>> {
        self.current.read().clone()
    }

    /// Replaces the directory that answers requests. The one before answers nothing any more.
    pub fn set(&self, runner: Option<Arc<Runner<R>>>) {
        let before = std::mem::replace(&mut *self.current.write(), runner);
        if let Some(before) = before {
            before.close();
        }
    }

    /// Why no request is answered, if so. A standby that sees its leader renew its right is ready.
    pub(crate) fn not_ready(&self) -> Option<NotLeading> {
        let candidate = self.candidate.as_ref()?;
        let why = self.runner().err()?;
        let now_ms = candidate.host().now_ms();
        let has_leader = candidate.replica().election().has_live_leader(now_ms);
        (!has_leader).then_some(why)
    }

    /// Stops answering, and lets another master take over at once, if there are several.
    pub async fn hand_over(&self) {
        if let Some(candidate) = &self.candidate {
            candidate.hand_over().await;
        }
    }
}
