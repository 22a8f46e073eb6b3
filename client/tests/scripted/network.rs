//! The transport of a test's client: every message goes to the [`Cluster`], and the test's script decides what becomes of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use percolator_client::transport::{BoxFuture, Lost, MasterError, Transport};
use percolator_client::{Client, Options, Timestamp, TraceParent};
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::request_error::Kind as Refused;
use percolator_wire::v1::response::Body;

use crate::cluster::Cluster;
use crate::monitor::Monitor;
use crate::world::World;

/// How long a message is on its way.
pub(crate) const LATENCY: Duration = Duration::from_millis(1);
/// After this the transport itself reports that a request got no answer.
pub(crate) const NOTICED_AFTER: Duration = Duration::from_millis(20);
/// A caller that waits for an answer is woken so often, to look at its deadline.
const TICK: Duration = Duration::from_millis(250);

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Get,
    GetOne,
    Scan,
    Prewrite,
    OnePhase,
    /// Of one cell: the primary's, or another one's.
    Commit,
    Rollback,
    CheckStatus,
    KeepAlive,
    Resolve,
    WaitForCell,
    Observe,
    /// A worker asks for changes, or says what it does with those that it has.
    Notifications,
    Notify,
    Timestamp,
    Session,
    Locate,
}

/// What becomes of a message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fault {
    /// Nothing leaves the client, and it knows that.
    NeverSent,
    /// It does not arrive; the transport reports that there is no answer.
    LoseRequest,
    /// It is carried out; the transport reports that there is no answer.
    LoseAnswer,
    /// The transport reports that there is no answer. It is carried out after this time.
    Late(Duration),
    /// It does not arrive, and the transport reports nothing.
    Silence,
    /// It is carried out, and the transport reports nothing.
    SilentlyDone,
    /// It is on its way for this time, and the answer is not.
    SlowRequest(Duration),
    /// The answer is on its way for this time.
    SlowAnswer(Duration),
    /// It is carried out and answered, and once again after this time.
    Twice(Duration),
    /// The server refuses it.
    Refuse(Refused),
    /// It is carried out, and the server reports that it failed.
    DoneAndFailed,
    /// It is carried out, and the answer is empty.
    DoneAndEmpty,
    /// It is carried out, and the answer is one to another question.
    DoneAndWrong,
}

/// A message, as a script sees it.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    /// Counted from 0 over all messages of the client.
    pub(crate) number: usize,
    /// Counted from 0 over those of this kind.
    pub(crate) nth: usize,
    pub(crate) kind: Kind,
    /// The tablet server; empty: another server.
    pub(crate) address: String,
    pub(crate) body: Option<Ask>,
    /// It gives a lease back.
    pub(crate) gives_back: bool,
    pub(crate) at: Duration,
}

type Script = Box<dyn Fn(&Sent) -> Option<Fault> + Send + Sync>;

/// What a client asks.
#[derive(Clone, Debug)]
pub(crate) enum Question {
    Tablet(String, v1::Request),
    Timestamp,
    Session(v1::SessionRequest),
    Locate(v1::LocateRequest),
}

/// What it receives.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Tablet(v1::Response),
    Timestamp(Timestamp),
    Session(v1::SessionResponse),
    Locate(v1::LocateResponse),
}

/// One client's way to the cluster.
pub(crate) struct Network {
    cluster: Arc<Cluster>,
    script: Mutex<Arc<Script>>,
    log: Mutex<Vec<Sent>>,
    pub(crate) monitor: Monitor,
    random: AtomicU64,
    /// A server sends at most so many cells of a scan or a batch of reads at a time.
    page: Mutex<Option<usize>>,
    /// How much later than the test began this client's clock began.
    clock_offset: Duration,
}

impl Network {
    /// A way on which every message arrives.
    pub(crate) fn new(cluster: &Arc<Cluster>) -> Arc<Self> {
        Arc::new(Self {
            cluster: cluster.clone(),
            script: Mutex::new(Arc::new(Box::new(|_: &Sent| None))),
            log: Mutex::default(),
            monitor: Monitor::new(cluster.clone()),
            random: AtomicU64::new(0),
            page: Mutex::default(),
            clock_offset: Duration::from_secs(1_000),
        })
    }

    /// A client on this way.
    pub(crate) fn client(self: &Arc<Self>, options: Options) -> Client {
        Client::over(self.clone(), options)
    }

    /// From now on this decides what becomes of messages.
    pub(crate) fn script(&self, script: impl Fn(&Sent) -> Option<Fault> + Send + Sync + 'static) {
        *self.script.lock() = Arc::new(Box::new(script));
    }

    /// From now on every message arrives.
    pub(crate) fn heal(&self) {
        self.script(|_| None);
    }

    /// From now on servers send at most so many cells at a time.
    pub(crate) fn page(&self, cells: usize) {
        *self.page.lock() = Some(cells);
    }

    /// All messages so far.
    pub(crate) fn log(&self) -> Vec<Sent> {
        self.log.lock().clone()
    }

    /// How many messages of a kind there were.
    pub(crate) fn count(&self, kind: Kind) -> usize {
        let log = self.log.lock();
        log.iter().filter(|sent| sent.kind == kind).count()
    }

    fn world(&self) -> &Arc<World> {
        &self.cluster.world
    }

    fn note(&self, question: &Question) -> Sent {
        let kind = question.kind();
        let mut log = self.log.lock();
        let (address, body) = match question {
            Question::Tablet(address, request) => (address.clone(), request.body.clone()),
            _ => (String::new(), None),
        };
        let sent = Sent {
            number: log.len(),
            nth: log.iter().filter(|sent| sent.kind == kind).count(),
            kind,
            address,
            body,
            gives_back: matches!(question, Question::Session(request) if request.floor == 0),
            at: self.world().now(),
        };
        log.push(sent.clone());
        sent
    }

    /// Sends a message, with the fault that the script has for it.
    async fn exchange(&self, question: Question) -> Result<Answer, Lost> {
        let sent = self.note(&question);
        let asked = self.monitor.asks(&question);
        let script = self.script.lock().clone();
        let fault = script(&sent);
        let answer = self.carry(question.clone(), fault).await?;
        self.monitor.answered(asked, &question, &answer);
        Ok(answer)
    }

    async fn carry(&self, question: Question, fault: Option<Fault>) -> Result<Answer, Lost> {
        let lost = || Err(Lost::unknown("the test lost it".to_owned()));
        let Some(fault) = fault else {
            return Ok(self.round_trip(question).await);
        };
        match fault {
            Fault::NeverSent => Err(Lost::never_sent("the test sent nothing".to_owned())),
            Fault::LoseRequest => {
                self.wait(NOTICED_AFTER).await;
                lost()
            }
            Fault::LoseAnswer => {
                self.round_trip(question).await;
                self.wait(NOTICED_AFTER).await;
                lost()
            }
            Fault::Late(after) => {
                self.later(after, question);
                self.wait(NOTICED_AFTER).await;
                lost()
            }
            Fault::Silence => self.never().await,
            Fault::SilentlyDone => {
                self.round_trip(question).await;
                self.never().await
            }
            Fault::SlowRequest(time) => {
                // It goes on its way also where the client has gone.
                let (answer, answered) = tokio::sync::oneshot::channel();
                let (cluster, world) = (self.cluster.clone(), self.world().clone());
                let page = *self.page.lock();
                self.world().spawn(
                    async move {
                        world.sleep(time).await;
                        let _ = answer.send(cluster_answer(&cluster, question, page).await);
                    }
                    .boxed(),
                );
                self.ticking(answered).await.map_err(|_| unreachable!())
            }
            Fault::SlowAnswer(time) => {
                let answer = self.round_trip(question).await;
                self.wait(time).await;
                Ok(answer)
            }
            Fault::Twice(after) => {
                self.later(after, question.clone());
                Ok(self.round_trip(question).await)
            }
            Fault::Refuse(refusal) => {
                self.wait(LATENCY * 2).await;
                Ok(refused(refusal))
            }
            Fault::DoneAndFailed => {
                self.round_trip(question).await;
                Ok(refused(Refused::Failed(v1::Failed {
                    message: "the test's disk".to_owned(),
                    unknown: true,
                    damaged: false,
                })))
            }
            Fault::DoneAndEmpty => {
                self.round_trip(question).await;
                Ok(Answer::Tablet(v1::Response { id: 0, body: None }))
            }
            Fault::DoneAndWrong => {
                self.round_trip(question).await;
                let body = Some(Body::RawPut(v1::RawPutResponse {}));
                Ok(Answer::Tablet(v1::Response { id: 0, body }))
            }
        }
    }

    async fn round_trip(&self, question: Question) -> Answer {
        self.wait(LATENCY).await;
        let page = *self.page.lock();
        let answer = self
            .ticking(cluster_answer(&self.cluster, question, page))
            .await;
        self.wait(LATENCY).await;
        answer
    }

    fn later(&self, after: Duration, question: Question) {
        let (cluster, world) = (self.cluster.clone(), self.world().clone());
        let late = async move {
            world.sleep(after).await;
            cluster_answer(&cluster, question, None).await;
        };
        self.world().spawn(late.boxed());
    }

    /// Waits, and wakes the caller now and then.
    async fn wait(&self, time: Duration) {
        self.ticking(self.world().sleep(time)).await;
    }

    async fn ticking<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = self.world().sleep(TICK) => {}
            }
        }
    }

    async fn never(&self) -> Result<Answer, Lost> {
        self.ticking(std::future::pending()).await
    }
}

impl Question {
    fn kind(&self) -> Kind {
        let request = match self {
            Self::Timestamp => return Kind::Timestamp,
            Self::Session(_) => return Kind::Session,
            Self::Locate(_) => return Kind::Locate,
            Self::Tablet(_, request) => request,
        };
        match request.body.as_ref().expect("a body") {
            Ask::Get(_) => Kind::Get,
            Ask::GetOne(_) => Kind::GetOne,
            Ask::Scan(_) => Kind::Scan,
            Ask::Prewrite(prewrite) if prewrite.one_phase.is_some() => Kind::OnePhase,
            Ask::Prewrite(_) => Kind::Prewrite,
            Ask::Commit(_) => Kind::Commit,
            Ask::Rollback(_) => Kind::Rollback,
            Ask::CheckStatus(_) => Kind::CheckStatus,
            Ask::KeepAlive(_) => Kind::KeepAlive,
            Ask::Resolve(_) => Kind::Resolve,
            Ask::WaitForCell(_) => Kind::WaitForCell,
            Ask::Observe(_) => Kind::Observe,
            Ask::Notifications(_) => Kind::Notifications,
            Ask::Notify(_) => Kind::Notify,
            other => panic!("no client of these tests sends {other:?}"),
        }
    }
}

async fn cluster_answer(cluster: &Cluster, question: Question, page: Option<usize>) -> Answer {
    match question {
        Question::Tablet(address, mut request) => {
            if let (Some(page), Some(Ask::Scan(scan))) = (page, &mut request.body) {
                scan.limit = scan.limit.min(u32::try_from(page).expect("a small page"));
            }
            let whole_rows = matches!(&request.body, Some(Ask::Get(get)) if get.whole_rows);
            let mut response = cluster.tablet(&address, request).await;
            if let (Some(page), Some(Body::Get(got))) = (page, &mut response.body) {
                got.truncated |= whole_rows && got.results.len() > page;
                got.results.truncate(page);
            }
            Answer::Tablet(response)
        }
        Question::Timestamp => Answer::Timestamp(cluster.timestamp()),
        Question::Session(request) => Answer::Session(cluster.session(&request)),
        Question::Locate(request) => Answer::Locate(cluster.locate(&request)),
    }
}

fn refused(kind: Refused) -> Answer {
    let body = Some(Body::Error(v1::RequestError { kind: Some(kind) }));
    Answer::Tablet(v1::Response { id: 0, body })
}

fn unavailable(lost: Lost) -> MasterError {
    MasterError::Unavailable(lost.why)
}

fn odd() -> MasterError {
    MasterError::Unavailable("the test refuses it".to_owned())
}

impl Transport for Network {
    fn tablet(
        &self,
        address: &str,
        request: v1::Request,
    ) -> BoxFuture<'_, Result<v1::Response, Lost>> {
        assert_eq!(request.trace, None, "nothing is traced here");
        let question = Question::Tablet(address.to_owned(), request);
        async move {
            match self.exchange(question).await? {
                Answer::Tablet(response) => Ok(response),
                other => panic!("a tablet server answers {other:?}"),
            }
        }
        .boxed()
    }

    fn timestamp(&self, trace: Option<TraceParent>) -> BoxFuture<'_, Result<Timestamp, Lost>> {
        assert_eq!(trace, None, "nothing is traced here");
        async move {
            match self.exchange(Question::Timestamp).await? {
                Answer::Timestamp(timestamp) => Ok(timestamp),
                _ => Err(Lost::unknown("the test refuses it".to_owned())),
            }
        }
        .boxed()
    }

    fn session(
        &self,
        request: v1::SessionRequest,
        _: Option<TraceParent>,
    ) -> BoxFuture<'_, Result<v1::SessionResponse, MasterError>> {
        async move {
            match self.exchange(Question::Session(request)).await {
                Ok(Answer::Session(response)) => Ok(response),
                Ok(_) => Err(odd()),
                Err(lost) => Err(unavailable(lost)),
            }
        }
        .boxed()
    }

    fn locate(
        &self,
        request: v1::LocateRequest,
        _: Option<TraceParent>,
    ) -> BoxFuture<'_, Result<v1::LocateResponse, MasterError>> {
        async move {
            match self.exchange(Question::Locate(request)).await {
                Ok(Answer::Locate(response)) => Ok(response),
                Ok(_) => Err(odd()),
                Err(lost) => Err(unavailable(lost)),
            }
        }
        .boxed()
    }

    fn directory(
        &self,
        _: Option<TraceParent>,
    ) -> BoxFuture<'_, Result<v1::DirectoryResponse, MasterError>> {
        async { Err(odd()) }.boxed()
    }

    /// All tables that tests use are there.
    fn create_table(
        &self,
        request: v1::CreateTableRequest,
    ) -> BoxFuture<'_, Result<v1::CreateTableResponse, MasterError>> {
        async { Err(MasterError::AlreadyExists(request.name)) }.boxed()
    }

    fn delete_table(
        &self,
        _: v1::DeleteTableRequest,
    ) -> BoxFuture<'_, Result<v1::DeleteTableResponse, MasterError>> {
        async { Err(odd()) }.boxed()
    }

    fn split_table(
        &self,
        _: v1::SplitTableRequest,
    ) -> BoxFuture<'_, Result<v1::SplitTableResponse, MasterError>> {
        async { Err(odd()) }.boxed()
    }

    fn merge_table(
        &self,
        _: v1::MergeTableRequest,
    ) -> BoxFuture<'_, Result<v1::MergeTableResponse, MasterError>> {
        async { Err(odd()) }.boxed()
    }

    fn move_tablet(
        &self,
        _: v1::MoveTabletRequest,
    ) -> BoxFuture<'_, Result<v1::MoveTabletResponse, MasterError>> {
        async { Err(odd()) }.boxed()
    }

    fn drain_servers(
        &self,
        _: v1::DrainServersRequest,
    ) -> BoxFuture<'_, Result<v1::DrainServersResponse, MasterError>> {
        async { Err(odd()) }.boxed()
    }

    fn now(&self) -> Duration {
        self.clock_offset + self.world().now()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'_, ()> {
        self.world().sleep(duration).boxed()
    }

    fn random(&self) -> u64 {
        let number = 1 + self.random.fetch_add(1, Ordering::Relaxed);
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 7
    }

    fn spawn(&self, future: BoxFuture<'static, ()>) {
        self.world().spawn(future);
    }
}
