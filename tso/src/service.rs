//! The gRPC service: each message of a stream is answered where it is read.

use std::fmt;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::Stream;
use percolator_protocol::election::{NamedLeader, OracleReplica};
use percolator_protocol::oracle::{ClockEvent, Now};
use percolator_server::leadership::RegisterOutage;
use percolator_server::{Folder, StallWatch};
use percolator_telemetry::trace::{Remote, Span, Tracer, key};
use percolator_wire::v1::oracle_server::Oracle;
use percolator_wire::v1::{
    HeartbeatRequest, HeartbeatResponse, TimestampsRequest, TimestampsResponse, TraceContext,
};
use tokio::sync::Notify;
use tonic::{Request, Response, Status, Streaming};

use crate::clock::Clock;
use crate::core::{CountRefused, Store};
use crate::granting::{Granting, Reply, Right};
use crate::leadership::LoggedState;
use crate::metrics::{Metrics, RequestCounters};

/// The most traces that one request reports; a request has room for so many.
const TRACES_MAX: usize = 16;

/// The core, and who waits for what on it.
pub(crate) struct Shared {
    locked: Mutex<Locked>,
    clock: Arc<dyn Clock>,
    pub(crate) metrics: Metrics,
    tracer: Option<Tracer>,
    /// A limit became durable: requests go on.
    extended: Notify,
    /// A request waits for a limit: the keeper goes on.
    exhausted: Notify,
    /// If this oracle hands over.
    successor: Mutex<Successor>,
    /// Of several oracles: whether their register can be read, and what was logged of the election last.
    pub(crate) outage: RegisterOutage,
    logged: Mutex<Option<LoggedState>>,
    pub(crate) stall: StallWatch,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// The oracle that leads after this one, which hands over.
#[derive(Clone, Debug, Default)]
pub(crate) enum Successor {
    /// It doesn't hand over, or no oracle has taken over in time.
    #[default]
    None,
    /// Requests wait until it is known.
    Awaited,
    /// Requests are sent there.
    Known(NamedLeader),
}

struct Locked {
    core: Granting,
    counted: RequestCounters,
    /// Why the last limit is not durable, if it isn't.
    failing: Option<String>,
}

impl Shared {
    pub(crate) fn new(
        core: Granting,
        clock: Arc<dyn Clock>,
        metrics: Metrics,
        tracer: Option<Tracer>,
    ) -> Self {
        let counted = metrics.counted();
        Self {
            locked: Mutex::new(Locked {
                core,
                counted,
                failing: None,
            }),
            clock,
            metrics,
            tracer,
            extended: Notify::new(),
            exhausted: Notify::new(),
            successor: Mutex::default(),
            outage: RegisterOutage::default(),
            logged: Mutex::default(),
            stall: StallWatch::default(),
        }
    }

    /// What to make durable now.
    pub(crate) fn store(&self) -> Option<Store> {
        let now = self.clock.now();
        let mut locked = self.locked();
        let store = locked.core.store(now);
        self.report_clock(&mut locked.core);
        store
    }

    /// That is durable.
    pub(crate) fn stored(&self, store: Store) {
        let now = self.clock.now();
        let mut locked = self.locked();
        locked.core.stored(now, store);
        locked.failing = None;
        drop(locked);
        self.extended.notify_waiters();
    }

    /// That may not be durable, for this reason.
    pub(crate) fn not_stored(&self, why: String) {
        let mut locked = self.locked();
        locked.core.not_stored();
        locked.failing = Some(why);
    }

    /// The progress that a heartbeat reports, and when that was read, on the monotonic clock.
    pub(crate) fn report(&self, register: u64) -> (HeartbeatRequest, u64) {
        let now = self.clock.now();
        let mut locked = self.locked();
        let report = locked.core.report(now, register);
        self.report_clock(&mut locked.core);
        (report, now.mono_ms)
    }

    /// From now on the master decides whether it hands out timestamps.
    pub(crate) fn obey_master(&self) {
        self.locked().core.obey_master();
    }

    /// Takes in the master's response to a heartbeat that was sent at this time.
    pub(crate) fn take_response(&self, sent_ms: u64, response: &HeartbeatResponse) {
        self.locked().core.take_response(sent_ms, response);
        self.extended.notify_waiters();
    }

    /// Why there will be no timestamps soon, if so: what was granted below the last limit is all there is.
    pub(crate) fn ready(&self) -> Result<(), String> {
        let now = self.clock.now();
        let locked = self.locked();
        if let Some(why) = locked.core.not_granting(now) {
            return Err(why);
        }
        self.stall.check()?;
        match &locked.failing {
            None => Ok(()),
            Some(why) => Err(format!(
                "no further limit of timestamps can be made durable: {why}"
            )),
        }
    }

    fn not_granting(&self) -> Option<String> {
        let now = self.clock.now();
        self.locked().core.not_granting(now)
    }

    /// Lets one of several oracles take note of the time, or of the register. None if this oracle is alone.
    pub(crate) fn replica<T>(&self, act: impl FnOnce(&mut OracleReplica, Now) -> T) -> Option<T> {
        let now = self.clock.now();
        let mut locked = self.locked();
        let result = locked.core.replica().map(|replica| act(replica, now));
        self.report_clock(&mut locked.core);
        result
    }

    /// What the right of one of several oracles rests on.
    pub(crate) fn right(&self) -> Right {
        let now = self.clock.now();
        self.locked().core.right(now)
    }

    /// How long this oracle's last takeover from another one took, in milliseconds.
    pub(crate) fn takeover_ms(&self) -> Option<u64> {
        let took = self.metrics.leadership.last_takeover()?;
        u64::try_from(took.as_millis()).ok()
    }

    /// Requests that wait try again.
    pub(crate) fn recheck_waiting(&self) {
        self.extended.notify_waiters();
    }

    /// Ends when a request waits for a limit.
    pub(crate) async fn exhausted(&self) {
        self.exhausted.notified().await;
    }

    /// This oracle hands over, or knows to which one it has.
    pub(crate) fn succeeded_by(&self, successor: Successor) {
        *self
            .successor
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = successor;
        self.recheck_waiting();
    }

    /// The oracle that leads, by a replica that doesn't. None: it is known soon.
    fn leader(&self, known: Option<NamedLeader>) -> Option<Option<NamedLeader>> {
        if known.is_some() {
            return Some(known);
        }
        let successor = self.successor.lock();
        match &*successor.unwrap_or_else(PoisonError::into_inner) {
            Successor::None => Some(None),
            Successor::Awaited => None,
            Successor::Known(leader) => Some(Some(leader.clone())),
        }
    }

    /// Logs this of the election, if it isn't what was logged last.
    pub(crate) fn log_once(&self, state: LoggedState, log: impl FnOnce(&LoggedState)) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.as_ref() != Some(&state) {
            log(&state);
            *logged = Some(state);
        }
    }

    /// Brings the metrics up to date.
    pub(crate) fn show(&self, folder: &Path) {
        let now = self.clock.now();
        let mut locked = self.locked();
        let facts = locked.core.facts(now);
        let right = locked.core.right(now);
        self.report_clock(&mut locked.core);
        locked.counted.flush();
        drop(locked);
        self.metrics.show(facts, folder);
        self.metrics.show_right(right);
    }

    /// Takes a request that has waited since then, if it has. The clock is read after the request was: one of several
    /// oracles may only then conclude that its right had not ended when the request was sent.
    fn request(&self, count: u32, since: Option<Instant>) -> Result<Reply, CountRefused> {
        let now = self.clock.now();
        let mut locked = self.locked();
        let answer = locked.core.request(now, count);
        self.report_clock(&mut locked.core);
        if let Ok(Reply::Granted(granted)) = &answer {
            let waited = since.map(|since| since.elapsed()).unwrap_or_default();
            locked.counted.granted(granted.count, waited);
        }
        answer
    }

    /// A core whose rule panicked must not grant anything any more: that panic goes on.
    fn locked(&self) -> MutexGuard<'_, Locked> {
        self.locked
            .lock()
            .unwrap_or_else(|_: PoisonError<_>| panic!("the oracle's rule was broken before"))
    }

    /// Logs and counts what happened to the clock.
    fn report_clock(&self, core: &mut Granting) {
        match core.take_event() {
            Some(ClockEvent::JumpedAhead {
                unix_ms,
                expected_ms,
                jump_ms_max,
            }) => {
                self.metrics.clock_jumps.inc();
                tracing::error!(
                    unix_ms,
                    expected_ms,
                    jump_ms_max,
                    "the clock jumped ahead and is not followed; time goes on by the monotonic clock. Set \
                     the clock right, or, if it is right, restart the oracle"
                );
            }
            Some(ClockEvent::Followed { unix_ms }) => {
                tracing::info!(unix_ms, "the clock is within its bound again, and followed");
            }
            None => {}
        }
    }
}

/// Spans of a request, which end when this is dropped.
#[derive(Debug)]
struct RequestSpans(Vec<Span>);

impl RequestSpans {
    /// Nothing, and without a cost, if no trace is sampled.
    fn begin(tracer: Option<&Tracer>, request: &TimestampsRequest) -> Option<Self> {
        if request.traces.is_empty() {
            return None;
        }
        let (tracer, began) = (tracer?, SystemTime::now());
        let span = |trace: &TraceContext| {
            let remote = Remote {
                trace_id: trace.trace_id(),
                span_id: trace.span_id,
            };
            let span = tracer.serving("timestamps", remote, began);
            span.say(key::COUNT, i64::from(request.count));
            span
        };
        let traces = request.traces.iter().take(TRACES_MAX);
        Some(Self(traces.map(span).collect()))
    }

    fn answered(&self, answer: &Result<TimestampsResponse, Status>) {
        let result = match answer {
            Ok(_) => "ok",
            Err(_) => "failed",
        };
        self.0.iter().for_each(|span| span.say(key::RESULT, result));
    }
}

/// One stream a client.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    shared: Arc<Shared>,
    folder: Arc<Folder>,
    wait_max: Duration,
}

impl Service {
    pub(crate) fn new(shared: Arc<Shared>, folder: Arc<Folder>, wait_max: Duration) -> Self {
        Self {
            shared,
            folder,
            wait_max,
        }
    }

    async fn wait_in_time(&self, count: u32) -> Result<TimestampsResponse, Status> {
        tokio::time::timeout(self.wait_max, self.wait(count))
            .await
            .unwrap_or_else(|_| {
                self.shared.metrics.failed("unavailable");
                let why = self.shared.not_granting();
                Err(Status::unavailable(format!(
                    "no timestamp within {} ms: {}",
                    self.wait_max.as_millis(),
                    why.as_deref()
                        .unwrap_or("the oracle cannot make its next limit durable")
                )))
            })
    }

    async fn wait(&self, count: u32) -> Result<TimestampsResponse, Status> {
        let began = Instant::now();
        self.shared.metrics.limit_waits.inc();
        loop {
            let mut extended = pin!(self.shared.extended.notified());
            // From here on a new limit is noticed, so that none can fall between check and wait.
            extended.as_mut().enable();
            if let Some(response) = self.granted(count, Some(began))? {
                return Ok(response);
            }
            extended.await;
        }
    }

    fn granted(
        &self,
        count: u32,
        since: Option<Instant>,
    ) -> Result<Option<TimestampsResponse>, Status> {
        match self.shared.request(count, since) {
            Ok(Reply::Granted(granted)) => Ok(Some(TimestampsResponse {
                first: granted.first.as_u64(),
                count: granted.count,
            })),
            Ok(Reply::Wait) => {
                // Only a leader's limit is hurried: a replica that doesn't lead, or not yet, wakes all that wait after each step of
                // the election, and would take that step again and again.
                self.shared.exhausted.notify_one();
                Ok(None)
            }
            Ok(Reply::Begins) => Ok(None),
            Ok(Reply::NotLeader(leader)) => match self.shared.leader(leader) {
                None => Ok(None),
                Some(leader) => {
                    self.shared.metrics.failed("unavailable");
                    Err(percolator_wire::not_leader("oracle", leader.as_ref()))
                }
            },
            Ok(Reply::RightEnded) => {
                self.shared.metrics.failed("unavailable");
                Err(percolator_wire::right_ended("oracle"))
            }
            Err(refused) => {
                self.shared.metrics.failed("refused");
                Err(Status::invalid_argument(refused.to_string()))
            }
        }
    }
}

/// The answers of one stream, each made when its request is read. Written out, because a combinator moves
/// the whole stream in and out of a future with every message.
pub(crate) struct Answers {
    requests: Streaming<TimestampsRequest>,
    service: Service,
    /// A request that waits for a limit.
    waiting: Option<BoxFuture<'static, Result<TimestampsResponse, Status>>>,
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.service.shared.metrics.streams.dec();
    }
}

impl Stream for Answers {
    type Item = Result<TimestampsResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(waiting) = &mut self.waiting {
            let answer = ready!(waiting.as_mut().poll(cx));
            self.waiting = None;
            return Poll::Ready(Some(answer));
        }
        let request = match ready!(Pin::new(&mut self.requests).poll_next(cx)) {
            Some(Ok(request)) => request,
            Some(Err(status)) => return Poll::Ready(Some(Err(status))),
            None => return Poll::Ready(None),
        };
        let spans = RequestSpans::begin(self.service.shared.tracer.as_ref(), &request);
        let end = |answer| {
            if let Some(spans) = &spans {
                spans.answered(&answer);
            }
            Poll::Ready(Some(answer))
        };
        match self.service.granted(request.count, None) {
            Ok(Some(response)) => end(Ok(response)),
            Err(status) => end(Err(status)),
            Ok(None) => {
                let service = self.service.clone();
                let mut waiting = async move {
                    let answer = service.wait_in_time(request.count).await;
                    if let Some(spans) = spans {
                        spans.answered(&answer);
                    }
                    answer
                }
                .boxed();
                match waiting.as_mut().poll(cx) {
                    Poll::Ready(answer) => Poll::Ready(Some(answer)),
                    Poll::Pending => {
                        self.waiting = Some(waiting);
                        Poll::Pending
                    }
                }
            }
        }
    }
}

#[tonic::async_trait]
impl Oracle for Service {
    type TimestampsStream = Answers;

    async fn timestamps(
        &self,
        request: Request<Streaming<TimestampsRequest>>,
    ) -> Result<Response<Answers>, Status> {
        let ours = self.folder.cluster_id();
        percolator_wire::check_cluster(request.metadata(), ours.as_deref())?;
        self.shared.metrics.streams.inc();
        Ok(Response::new(Answers {
            requests: request.into_inner(),
            service: self.clone(),
            waiting: None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use percolator_protocol::election::{
        Command, Leadership, Member, Peer, StoredLeadership, SwapName, SwapResult, Timing,
    };
    use percolator_protocol::oracle::Settings;
    use percolator_protocol::types::Timestamp;

    use super::*;
    use crate::clock::SystemClock;

    fn member(name: &str, incarnation: u64) -> Member {
        Member {
            name: name.to_owned(),
            address: format!("{name}:7400"),
            incarnation,
            replica: incarnation,
        }
    }

    fn shared() -> Arc<Shared> {
        let (member, timing) = (member("tso-0", 1), Timing::default());
        let replica = OracleReplica::new(member, Vec::new(), timing, Settings::default());
        let core = Granting::Replica(Box::new(replica));
        let metrics = Metrics::new(1_000).expect("metrics");
        Arc::new(Shared::new(core, Arc::new(SystemClock), metrics, None))
    }

    /// A request waits, and however often it is woken, it asks for no step of the election: a replica that doesn't lead wakes all
    /// that wait after each step, and would take the next one without a pause.
    fn waits_without_hurry(
        shared: &Shared,
        mut waiting: Pin<&mut impl Future<Output = Result<TimestampsResponse, Status>>>,
    ) {
        for _ in 0..3 {
            assert!(waiting.as_mut().now_or_never().is_none());
            let exhausted = shared.exhausted.notified().now_or_never();
            assert_eq!(exhausted, None, "nothing hurries the election");
            shared.recheck_waiting();
        }
    }

    fn service(shared: &Arc<Shared>, place: &tempfile::TempDir) -> Service {
        let folder = Folder::open(place.path(), "oracle", "tso-0", None).expect("its folder");
        Service::new(shared.clone(), Arc::new(folder), Duration::from_secs(60))
    }

    #[tokio::test]
    async fn a_request_that_waits_for_the_successor_asks_for_no_step_of_the_election() {
        let shared = shared();
        shared.succeeded_by(Successor::Awaited);
        let place = tempfile::tempdir().expect("a folder");
        let service = service(&shared, &place);
        let mut waiting = pin!(service.wait(1));
        waits_without_hurry(&shared, waiting.as_mut());
        let leader = NamedLeader {
            address: "tso-1:7400".to_owned(),
            silent_ms: 0,
        };
        shared.succeeded_by(Successor::Known(leader));
        let refused = waiting.await.expect_err("another one leads");
        assert_eq!(refused.code(), tonic::Code::Unavailable);
    }

    /// While the disk of one that takes over hangs.
    #[tokio::test]
    async fn a_request_that_waits_for_the_term_in_the_folder_asks_for_no_step_of_the_election() {
        let shared = shared();
        // The leader of before, which had this one's promise and is silent.
        let value = Leadership {
            term: 3,
            limit: Timestamp::from_millis(SystemClock.now().unix_ms),
            register: 7,
            holder: Some(member("tso-1", 2)),
            promisers: vec![Peer {
                replica: 1,
                address: "tso-0:7400".to_owned(),
            }],
            swap: SwapName {
                incarnation: 2,
                sequence: 4,
            },
        };
        let stored = StoredLeadership { version: 9, value };
        shared.replica(|replica, now| {
            let taken_over = (0..300).any(|tenths| {
                let mono_ms = now.mono_ms + 100 * tenths;
                let now = Now { mono_ms, ..now };
                match replica.poll(now) {
                    None => return false,
                    Some(Command::Load) => replica.loaded(now, Ok(Some(stored.clone()))),
                    Some(Command::Swap { .. }) => {
                        replica.swapped(now, SwapResult::Done(10));
                    }
                }
                replica.begins()
            });
            assert!(taken_over, "{:?}: {:?}", replica.role(), replica.blocked());
        });
        let place = tempfile::tempdir().expect("a folder");
        let service = service(&shared, &place);
        let mut waiting = pin!(service.wait(1));
        waits_without_hurry(&shared, waiting.as_mut());
        shared.replica(|replica, now| {
            let record = replica.record();
            replica.kept(now, &record);
        });
        shared.recheck_waiting();
        let granted = waiting.await.expect("it leads");
        assert_eq!(granted.count, 1);
    }
}
