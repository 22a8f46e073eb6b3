//! The client against an oracle that the test holds in its hand: what comes when, and what is
//! answered.

use std::collections::HashSet;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{Stream, try_unfold};
use percolator_client::oracle::{OracleClient, OracleError};
use percolator_server::{listen, serve};
use percolator_wire::v1::oracle_server::{Oracle, OracleServer};
use percolator_wire::v1::{TimestampsRequest, TimestampsResponse};
use tokio::sync::{mpsc, oneshot};
use tonic::{Request, Response, Status, Streaming};

/// A request at the oracle, to be answered by the test.
struct Asked {
    count: u32,
    answer: oneshot::Sender<Result<TimestampsResponse, Status>>,
}

impl Asked {
    fn answer(self, first: u64, count: u32) {
        let _ = self.answer.send(Ok(TimestampsResponse { first, count }));
    }
}

struct Held {
    asked: mpsc::UnboundedSender<Asked>,
}

type Answers = std::pin::Pin<Box<dyn Stream<Item = Result<TimestampsResponse, Status>> + Send>>;

#[tonic::async_trait]
impl Oracle for Held {
    type TimestampsStream = Answers;

    async fn timestamps(
        &self,
        request: Request<Streaming<TimestampsRequest>>,
    ) -> Result<Response<Answers>, Status> {
        let state = (request.into_inner(), self.asked.clone());
        let answers = try_unfold(state, |(mut requests, asked)| async move {
            let Some(TimestampsRequest { count, .. }) = requests.message().await? else {
                return Ok(None);
            };
            let (answer, answered) = oneshot::channel();
            let _ = asked.send(Asked { count, answer });
            // A test that drops the request loses the stream.
            let response = answered
                .await
                .map_err(|_| Status::unavailable("dropped by the test"))??;
            Ok(Some((response, (requests, asked))))
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

/// An oracle, the requests that reach it, and a client of it.
fn held() -> (mpsc::UnboundedReceiver<Asked>, OracleClient) {
    held_with(Duration::from_secs(60))
}

fn held_with(deadline: Duration) -> (mpsc::UnboundedReceiver<Asked>, OracleClient) {
    let (asked, requests) = mpsc::unbounded_channel();
    let (listener, address) = listen(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = address.to_string();
    let service = OracleServer::new(Held { asked });
    let never = std::future::pending();
    tokio::spawn(serve(listener, service, Duration::ZERO, never));
    (requests, client_of(address, deadline))
}

fn client_of(address: String, deadline: Duration) -> OracleClient {
    let provide = move || {
        let address = address.clone();
        Box::pin(async move { Ok(address.into()) }) as futures_util::future::BoxFuture<'static, _>
    };
    OracleClient::with_deadline(provide, deadline)
}

/// An oracle that answers everything by itself from 1 on.
fn answering(mut requests: mpsc::UnboundedReceiver<Asked>) {
    tokio::spawn(async move {
        let mut next = 1;
        while let Some(asked) = requests.recv().await {
            let count = asked.count;
            asked.answer(next, count);
            next += u64::from(count);
        }
    });
}

async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(std::pin::Pin::new(&mut *future).poll(cx))).await
}

#[tokio::test]
async fn a_call_never_gets_a_timestamp_that_was_asked_for_before_it_began() {
    let (mut requests, client) = held();
    let mut first = Box::pin(client.timestamp());
    assert!(poll_once(&mut first).await.is_pending());
    let asked_before = requests.recv().await.unwrap();
    // Calls that begin while that request is at the oracle.
    let mut second = Box::pin(client.timestamp());
    let mut third = Box::pin(client.timestamps(5));
    assert!(poll_once(&mut second).await.is_pending());
    assert!(poll_once(&mut third).await.is_pending());
    // Even an answer with room for them is not theirs.
    assert_eq!(asked_before.count, 1);
    asked_before.answer(100, 1);
    assert_eq!(first.await.unwrap().as_u64(), 100);
    let asked_after = requests.recv().await.unwrap();
    assert!(poll_once(&mut second).await.is_pending());
    assert_eq!(asked_after.count, 6, "both are in the next request");
    asked_after.answer(200, 6);
    assert_eq!(second.await.unwrap().as_u64(), 200);
    assert_eq!(third.await.unwrap().first.as_u64(), 201);
}

#[tokio::test]
async fn a_cancelled_call_wastes_its_timestamp_and_nobody_elses() {
    let (mut requests, client) = held();
    let mut kept = Box::pin(client.timestamp());
    let mut cancelled = Box::pin(client.timestamp());
    let mut last = Box::pin(client.timestamp());
    for future in [&mut cancelled, &mut kept, &mut last] {
        assert!(poll_once(future).await.is_pending());
    }
    drop(cancelled);
    let asked = requests.recv().await.unwrap();
    assert_eq!(asked.count, 3);
    asked.answer(10, 3);
    assert_eq!(kept.await.unwrap().as_u64(), 11);
    assert_eq!(last.await.unwrap().as_u64(), 12);
}

struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn the_task_that_polled_last_is_woken() {
    let (mut requests, client) = held();
    let old = Arc::new(Woken(AtomicU64::new(0)));
    let waker = Waker::from(old.clone());
    let mut call = Box::pin(client.timestamp());
    assert!(
        call.as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    let asked = requests.recv().await.unwrap();
    // The future moves to another task, which must be woken now.
    let (polled, was_polled) = oneshot::channel();
    let mut polled = Some(polled);
    let waiting = poll_fn(|cx| {
        let poll = call.as_mut().poll(cx);
        if let Some(polled) = polled.take() {
            let _ = polled.send(());
        }
        poll
    });
    let answer = async {
        was_polled.await.unwrap();
        asked.answer(7, 1);
    };
    let (timestamp, ()) = futures_util::future::join(waiting, answer).await;
    assert_eq!(timestamp.unwrap().as_u64(), 7);
    assert_eq!(old.0.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_lost_stream_is_made_again_and_the_request_repeated() {
    let (mut requests, client) = held();
    let mut call = Box::pin(client.timestamps(3));
    assert!(poll_once(&mut call).await.is_pending());
    for _ in 0..3 {
        let asked = requests.recv().await.unwrap();
        assert_eq!(asked.count, 3);
        drop(asked);
    }
    requests.recv().await.unwrap().answer(50, 3);
    let granted = call.await.unwrap();
    assert_eq!((granted.first.as_u64(), granted.count), (50, 3));
}

#[tokio::test]
async fn a_short_answer_serves_the_first_and_the_rest_ask_again() {
    let (mut requests, client) = held();
    let mut first = Box::pin(client.timestamp());
    let mut second = Box::pin(client.timestamps(4));
    assert!(poll_once(&mut first).await.is_pending());
    assert!(poll_once(&mut second).await.is_pending());
    requests.recv().await.unwrap().answer(10, 2);
    assert_eq!(first.await.unwrap().as_u64(), 10);
    let answer = async {
        let asked = requests.recv().await.unwrap();
        assert_eq!(asked.count, 4);
        asked.answer(20, 4);
    };
    let (granted, ()) = futures_util::future::join(second, answer).await;
    assert_eq!(granted.unwrap().first.as_u64(), 20);
}

#[tokio::test]
async fn answers_that_break_the_order_are_not_handed_out() {
    let (mut requests, client) = held();
    let mut call = Box::pin(client.timestamp());
    assert!(poll_once(&mut call).await.is_pending());
    requests.recv().await.unwrap().answer(10, 1);
    call.await.unwrap();
    let answers = async {
        // Not higher than the last one, more than asked for, none at all.
        for (first, count) in [(10, 1), (11, 2), (11, 0), (u64::MAX, 1)] {
            requests.recv().await.unwrap().answer(first, count);
        }
        requests.recv().await.unwrap().answer(11, 1);
    };
    let (timestamp, ()) = futures_util::future::join(client.timestamp(), answers).await;
    assert_eq!(timestamp.unwrap().as_u64(), 11);
}

#[tokio::test]
async fn an_oracle_that_is_away_is_an_error_after_the_deadline() {
    let (listener, address) = listen(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = address.to_string();
    drop(listener);
    let client = client_of(address.clone(), Duration::from_millis(50));
    let error = client.timestamp().await.unwrap_err();
    assert!(matches!(error, OracleError::Unavailable { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains(&address) && text.contains("refused"),
        "{text}"
    );

    let provide = || Box::pin(async { Err("no oracle is known".to_owned()) }) as _;
    let client = OracleClient::with_deadline(provide, Duration::from_millis(50));
    let text = client.timestamp().await.unwrap_err().to_string();
    assert!(text.contains("no oracle is known"), "{text}");
}

#[tokio::test]
async fn an_oracle_that_does_not_answer_is_an_error_and_its_late_answer_nobodys() {
    let (mut requests, client) = held_with(Duration::from_millis(50));
    let (error, late) = futures_util::future::join(client.timestamp(), requests.recv()).await;
    let text = error.unwrap_err().to_string();
    assert!(text.contains("did not answer"), "{text}");
    late.unwrap().answer(1, 1);
    let answer = async { requests.recv().await.unwrap().answer(2, 1) };
    let (timestamp, ()) = futures_util::future::join(client.timestamp(), answer).await;
    assert_eq!(timestamp.unwrap().as_u64(), 2);
}

/// Of those who wait for the next request, each waits for as long as a call may.
#[tokio::test]
async fn a_caller_that_came_later_gives_up_later() {
    let deadline = Duration::from_secs(8);
    let (mut requests, client) = held_with(deadline);
    let mut first = Box::pin(client.timestamp());
    assert!(poll_once(&mut first).await.is_pending());
    let _never_answered = requests.recv().await.unwrap();
    let mut second = Box::pin(client.timestamp());
    assert!(poll_once(&mut second).await.is_pending());
    let late = async {
        tokio::time::sleep(deadline * 5 / 6).await;
        client.timestamp().await
    };
    let answer = async { requests.recv().await.unwrap().answer(7, 2) };
    let all = futures_util::future::join4(first, second, late, answer);
    let (first, second, late, ()) = tokio::time::timeout(20 * deadline, all).await.unwrap();
    let error = first.unwrap_err();
    assert!(error.waited() >= deadline, "{error}");
    assert_eq!(late.unwrap().as_u64(), 8);
    // Its time is over with the first one's, or the answer was there a moment before.
    match second {
        Ok(timestamp) => assert_eq!(timestamp.as_u64(), 7),
        Err(error) => assert!(error.waited() >= deadline, "{error}"),
    }
}

/// The answer is still somebody's.
#[tokio::test]
async fn callers_give_up_one_by_one_while_the_request_goes_on() {
    let deadline = Duration::from_secs(8);
    let (mut requests, client) = held_with(deadline);
    let mut first = Box::pin(client.timestamp());
    assert!(poll_once(&mut first).await.is_pending());
    let asked = requests.recv().await.unwrap();
    let mut second = Box::pin(client.timestamp());
    assert!(poll_once(&mut second).await.is_pending());
    tokio::time::sleep(deadline / 2).await;
    let mut late = Box::pin(client.timestamp());
    assert!(poll_once(&mut late).await.is_pending());
    asked.answer(1, 1);
    assert_eq!(first.await.unwrap().as_u64(), 1);
    let asked = requests.recv().await.unwrap();
    assert_eq!(asked.count, 2);
    let error = second.await.unwrap_err();
    assert!(error.to_string().contains("did not answer"), "{error}");
    assert!(poll_once(&mut late).await.is_pending());
    asked.answer(2, 2);
    assert_eq!(late.await.unwrap().as_u64(), 3);
}

#[tokio::test]
async fn counts_that_make_no_sense_are_refused() {
    let (_requests, client) = held();
    for count in [0, 65_537] {
        let error = client.timestamps(count).await.unwrap_err();
        assert_eq!(error, OracleError::Count { count });
    }
}

#[tokio::test]
async fn more_callers_than_a_request_may_carry_are_served_in_several() {
    let (requests, client) = held();
    answering(requests);
    let calls = (0..40).map(|_| client.timestamps(10_000));
    let mut seen = HashSet::new();
    for granted in join_all(calls).await {
        let granted = granted.unwrap();
        let first = granted.first.as_u64();
        assert!((first..first + 10_000).all(|timestamp| seen.insert(timestamp)));
    }
    let calls = (0..17).map(|_| client.timestamps(65_536));
    let refused = join_all(calls).await.into_iter().filter_map(Result::err);
    let waiting = 16 * 65_536;
    let expected = vec![OracleError::Overloaded { waiting }];
    assert_eq!(refused.collect::<Vec<_>>(), expected);
}

#[test]
fn a_client_outlives_the_runtime_of_its_connection() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let (servers, callers) = (runtime(), runtime());
    let (requests, client) = servers.block_on(async { held() });
    servers.block_on(async { answering(requests) });
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        let _ = servers.block_on(stopped);
    });
    callers.block_on(client.timestamp()).unwrap();
    drop(callers);
    let callers = runtime();
    callers.block_on(client.timestamp()).unwrap();
    drop(stop);
    thread.join().unwrap();

    drop(callers);

    let mut outside = pin!(client.timestamp());
    let error = outside
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(error, Poll::Ready(Err(OracleError::NoRuntime)));
}
