//! One packed stream to one tablet server: whatever is queued when the connection can take more goes
//! into one message, and responses find their callers by the slot in their id.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::Stream;
use parking_lot::Mutex;
use percolator_wire::v1::tablets_client::TabletsClient;
use percolator_wire::{of_cluster, v1};
use slab::Slab;
use tonic::transport::Endpoint;

use crate::no_response::{NoResponse, cause, failed, no_response, no_response_of_status};
use crate::ticker::{self, Pulse, STANDS_STILL, TICK, Ticked, pulse};
use crate::transport::Lost;

/// Requests in one message.
const PACK_REQUESTS_MAX: usize = 1024;
/// Responses may be this large; a scan's or a row's response can be.
const MESSAGE_BYTES_MAX: usize = 256 << 20;
/// A server that can't be connected to within this is away.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A request that isn't answered within this many ticks is given up; counted in ticks, because a timer
/// for each request would cost more than the request.
const ANSWER_TICKS: u32 = 40;
/// A silent connection is pinged after this long, and lost without a response.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;

/// A stream to a server. Once lost, it stays lost; a new one has to be opened.
#[derive(Debug)]
pub(crate) struct Connection {
    state: Mutex<State>,
    /// What is said of a server that doesn't answer.
    silent: String,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<v1::Request>,
    slots: Slab<Slot>,
    generation: u32,
    pulse: Pulse,
    writer: Option<Waker>,
    lost: Option<String>,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    sent_tick: u32,
    /// It went into a message.
    sent: bool,
    state: SlotState,
}

#[derive(Debug)]
enum SlotState {
    Waiting(Option<Waker>),
    Answered(v1::Response),
    /// Nobody waits any more; the slot is free when the response is there.
    Abandoned,
}

impl Connection {
    /// Connects in the background; requests wait until it is done. Needs a tokio runtime around it.
    ///
    /// `cluster_id`: a server of another cluster refuses it; empty: it isn't known.
    pub(crate) fn open(address: &str, cluster_id: String) -> Arc<Self> {
        let connection = Arc::new(Self {
            state: Mutex::default(),
            silent: failed(
                "tablet server",
                address,
                &NoResponse::Silent(TICK * ANSWER_TICKS),
            ),
        });
        ticker::watch(Arc::downgrade(&connection) as Weak<dyn Ticked>);
        tokio::spawn(run(connection.clone(), address.to_owned(), cluster_id));
        connection
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.state.lock().lost.is_some()
    }

    /// Sends a request.
    pub(crate) fn call(self: &Arc<Self>, mut request: v1::Request) -> Call {
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.lost.is_some() {
            return Call {
                connection: self.clone(),
                slot: None,
            };
        }
        state.generation = state.generation.wrapping_add(1);
        let slot = state.slots.insert(Slot {
            generation: state.generation,
            sent_tick: state.pulse.now(),
            sent: false,
            state: SlotState::Waiting(None),
        });
        request.id = id(slot, state.generation);
        state.queue.push_back(request);
        if let Some(writer) = state.writer.take() {
            writer.wake();
        }
        Call {
            connection: self.clone(),
            slot: Some(slot),
        }
    }

    fn answered(&self, pack: v1::ResponsePack) {
        let mut state = self.state.lock();
        for response in pack.responses {
            let (index, generation) = slot_of(response.id);
            let Some(slot) = state.slots.get_mut(index) else {
                continue;
            };
            if slot.generation != generation {
                continue;
            }
            match std::mem::replace(&mut slot.state, SlotState::Answered(response)) {
                SlotState::Waiting(Some(waker)) => waker.wake(),
                SlotState::Abandoned => {
                    state.slots.remove(index);
                }
                SlotState::Waiting(None) | SlotState::Answered(_) => {}
            }
        }
    }

    /// Its runtime comes to it.
    fn pulse(&self) {
        self.state.lock().pulse.beat();
    }

    fn lose(&self, why: String) {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.lost.get_or_insert(why);
        state.queue.clear();
        // The writer's stream ends.
        if let Some(writer) = state.writer.take() {
            writer.wake();
        }
        state.slots.retain(|_, slot| match &mut slot.state {
            SlotState::Waiting(waker) => {
                if let Some(waker) = waker.take() {
                    waker.wake();
                }
                true
            }
            SlotState::Answered(_) => true,
            SlotState::Abandoned => false,
        });
    }
}

impl Ticked for Connection {
    fn tick(&self) {
        let mut state = self.state.lock();
        state.pulse.tick();
        let (tick, stands_still) = (state.pulse.now(), state.pulse.stands_still());
        let mut why = None;
        for (_, slot) in &state.slots {
            if let SlotState::Waiting(waker) = &slot.state {
                if tick - slot.sent_tick > ANSWER_TICKS {
                    why = Some(self.silent.clone());
                } else if stands_still {
                    why = why.or_else(|| Some(STANDS_STILL.to_owned()));
                }
                if let Some(waker) = waker {
                    waker.wake_by_ref();
                }
            }
        }
        drop(state);
        if let Some(why) = why {
            self.lose(why);
        }
    }
}

/// The response to come. Dropping it abandons the request, which may still be carried out.
#[derive(Debug)]
pub(crate) struct Call {
    connection: Arc<Connection>,
    slot: Option<usize>,
}

impl Future for Call {
    type Output = Result<v1::Response, Lost>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let connection = self.connection.clone();
        let mut state = connection.state.lock();
        let Some(index) = self.slot else {
            return Poll::Ready(Err(state.why_lost(true)));
        };
        let lost = state.lost.is_some();
        let Some(slot) = state.slots.get_mut(index) else {
            unreachable!("a call keeps its slot until it is dropped");
        };
        if let SlotState::Waiting(waker) = &mut slot.state {
            if !lost {
                match waker {
                    Some(known) if known.will_wake(cx.waker()) => {}
                    other => *other = Some(cx.waker().clone()),
                }
                return Poll::Pending;
            }
            let never_sent = !slot.sent;
            state.slots.remove(index);
            self.slot = None;
            return Poll::Ready(Err(state.why_lost(never_sent)));
        }
        let slot = state.slots.remove(index);
        self.slot = None;
        match slot.state {
            SlotState::Answered(response) => Poll::Ready(Ok(response)),
            _ => Poll::Ready(Err(state.why_lost(false))),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let Some(index) = self.slot else {
            return;
        };
        let mut state = self.connection.state.lock();
        let lost = state.lost.is_some();
        if let Some(slot) = state.slots.get_mut(index) {
            if lost || matches!(slot.state, SlotState::Answered(_)) {
                state.slots.remove(index);
            } else {
                slot.state = SlotState::Abandoned;
            }
        }
    }
}

impl State {
    fn why_lost(&self, never_sent: bool) -> Lost {
        Lost {
            why: self.lost.clone().unwrap_or_else(|| "no answer".into()),
            never_sent,
        }
    }
}

fn id(slot: usize, generation: u32) -> u64 {
    (slot as u64) << 32 | u64::from(generation)
}

fn slot_of(id: u64) -> (usize, u32) {
    ((id >> 32) as usize, id as u32)
}

/// The messages to the server.
struct Packs(Arc<Connection>);

impl Stream for Packs {
    type Item = v1::RequestPack;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<v1::RequestPack>> {
        let mut state = self.0.state.lock();
        if state.lost.is_some() {
            return Poll::Ready(None);
        }
        if state.queue.is_empty() {
            state.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let mut requests = Vec::with_capacity(state.queue.len().min(PACK_REQUESTS_MAX));
        let mut bytes = 0;
        while requests.len() < PACK_REQUESTS_MAX
            && bytes < PACK_BYTES_MAX
            && let Some(request) = state.queue.pop_front()
        {
            bytes += cost(&request);
            let (slot, generation) = slot_of(request.id);
            if let Some(slot) = state.slots.get_mut(slot)
                && slot.generation == generation
            {
                slot.sent = true;
            }
            requests.push(request);
        }
        Poll::Ready(Some(v1::RequestPack { requests }))
    }
}

/// Bytes of requests in one message, about; a server takes messages of 24 MiB, and the last request
/// may be as large as a request can be.
const PACK_BYTES_MAX: usize = 1 << 20;

fn cost(request: &v1::Request) -> usize {
    use v1::request::Body as B;
    const CELL: usize = 32;
    let cells = |cells: &[v1::CellRef]| -> usize {
        cells
            .iter()
            .map(|cell| CELL + cell.row.len() + cell.column.len())
            .sum()
    };
    match &request.body {
        Some(B::Prewrite(prewrite)) => prewrite
            .mutations
            .iter()
            .map(|mutation| {
                2 * CELL
                    + mutation.value.len()
                    + mutation.cell.as_ref().map_or(0, |cell| cell.row.len())
            })
            .sum(),
        Some(B::Commit(commit)) => cells(&commit.cells),
        Some(B::Rollback(rollback)) => cells(&rollback.cells),
        Some(B::Get(get)) => cells(&get.cells),
        Some(B::GetOne(get)) => CELL + get.row.len() + get.column.len(),
        _ => 2 * CELL,
    }
}

/// Loses the connection if its task ends early, with its runtime: nothing else would wake the waiting calls.
struct LosesAtEnd(Arc<Connection>);

impl Drop for LosesAtEnd {
    fn drop(&mut self) {
        self.0
            .lose("the runtime that held the connection has ended".into());
    }
}

async fn run(connection: Arc<Connection>, address: String, cluster_id: String) {
    let _ends = LosesAtEnd(connection.clone());
    let ended = tokio::select! {
        biased;
        ended = stream(&connection, &address, &cluster_id) => ended,
        // Also while it connects: requests wait from the beginning.
        () = pulse(|| connection.pulse()) => Ok(()),
    };
    let why = match ended {
        Ok(()) => format!("the tablet server at {address} closed the connection"),
        Err(why) => failed("tablet server", &address, &why),
    };
    tracing::debug!(address, why, "connection lost");
    connection.lose(why);
}

async fn stream(
    connection: &Arc<Connection>,
    address: &str,
    cluster_id: &str,
) -> Result<(), NoResponse> {
    let channel = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| NoResponse::Reason(format!("not an address: {}", cause(&error))))?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .connect()
        .await
        .map_err(|error| no_response(&error, CONNECT_TIMEOUT))?;
    let lost = |status: tonic::Status| {
        no_response_of_status(&status, KEEPALIVE_INTERVAL + KEEPALIVE_TIMEOUT)
    };
    let mut responses = TabletsClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .serve(of_cluster(Packs(connection.clone()), cluster_id))
        .await
        .map_err(lost)?
        .into_inner();
    while let Some(pack) = responses.message().await.map_err(lost)? {
        connection.answered(pack);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, StreamExt as _};

    use super::*;

    /// A server takes messages up to a size, so that requests which wait together go into several.
    #[test]
    fn large_requests_that_wait_go_into_several_messages() {
        let connection = Arc::new(Connection {
            state: Mutex::default(),
            silent: String::new(),
        });
        let large = || {
            let mutation = v1::Mutation {
                value: vec![0; PACK_BYTES_MAX / 3 + 1].into(),
                ..v1::Mutation::default()
            };
            let prewrite = v1::PrewriteRequest {
                mutations: vec![mutation],
                ..v1::PrewriteRequest::default()
            };
            connection.call(v1::Request {
                body: Some(v1::request::Body::Prewrite(prewrite)),
                ..v1::Request::default()
            })
        };
        let _calls: Vec<Call> = std::iter::repeat_with(large).take(7).collect();
        let mut context = Context::from_waker(Waker::noop());
        let mut packs = Packs(connection.clone());
        let mut counts = Vec::new();
        while let Poll::Ready(Some(pack)) = packs.poll_next_unpin(&mut context) {
            counts.push(pack.requests.len());
        }
        assert_eq!(counts, [3, 3, 1]);
    }

    #[test]
    fn a_call_that_is_dropped_keeps_no_place() {
        for is_answered_first in [false, true] {
            let connection = Arc::new(Connection {
                state: Mutex::default(),
                silent: String::new(),
            });
            let call = connection.call(v1::Request::default());
            let mut packs = Packs(connection.clone());
            let mut context = Context::from_waker(Waker::noop());
            let Poll::Ready(Some(pack)) = packs.poll_next_unpin(&mut context) else {
                panic!("a request waits");
            };
            let responses = vec![v1::Response {
                id: pack.requests[0].id,
                ..v1::Response::default()
            }];
            let answer = || connection.answered(v1::ResponsePack { responses });
            if is_answered_first {
                answer();
                drop(call);
            } else {
                drop(call);
                answer();
            }
            assert!(connection.state.lock().slots.is_empty());
        }
    }

    /// The results of a lost connection's calls: of one that was written, one that had its response before, one that wasn't
    /// written yet, and one that comes later.
    #[test]
    fn only_what_was_not_written_was_never_sent() {
        let connection = Arc::new(Connection {
            state: Mutex::default(),
            silent: String::new(),
        });
        let mut context = Context::from_waker(Waker::noop());
        let call = || connection.call(v1::Request::default());
        let (mut written, mut answered) = (call(), call());
        assert!(written.poll_unpin(&mut context).is_pending());
        let mut packs = Packs(connection.clone());
        let Poll::Ready(Some(pack)) = packs.poll_next_unpin(&mut context) else {
            panic!("two requests wait");
        };
        assert_eq!(pack.requests.len(), 2);
        let response = v1::Response {
            id: pack.requests[1].id,
            ..v1::Response::default()
        };
        connection.answered(v1::ResponsePack {
            responses: vec![response.clone()],
        });
        let mut waits = call();
        assert!(waits.poll_unpin(&mut context).is_pending());
        connection.lose("cut".to_owned());
        let mut late = call();
        let mut lost = |call: &mut Call| match call.poll_unpin(&mut context) {
            Poll::Ready(Err(lost)) => (lost.why, lost.never_sent),
            other => panic!("{other:?}"),
        };
        let cut = |never_sent| ("cut".to_owned(), never_sent);
        assert_eq!(lost(&mut written), cut(false));
        assert_eq!(lost(&mut waits), cut(true));
        assert_eq!(lost(&mut late), cut(true));
        let found = answered.poll_unpin(&mut context);
        assert!(matches!(found, Poll::Ready(Ok(found)) if found == response));
        assert!(matches!(
            packs.poll_next_unpin(&mut context),
            Poll::Ready(None)
        ));
        assert!(connection.state.lock().slots.is_empty());
    }
}
