//! Responses on their way to one client. All that are queued when the connection can take more go into one message.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::Stream;
use parking_lot::Mutex;
use percolator_wire::v1;
use percolator_wire::v1::response::Body;
use tokio::sync::Notify;
use tonic::Status;

/// The most responses in one message.
const PACK_RESPONSES_MAX: usize = 1024;
/// The most bytes in one message, about.
const PACK_BYTES_MAX: usize = 1 << 20;
/// While more than this many bytes wait for a client, its requests are not read.
const QUEUED_BYTES_MAX: usize = 8 << 20;

/// The queue of one client's stream.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    drained: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    responses: VecDeque<v1::Response>,
    bytes: usize,
    closed: bool,
    reader: Option<Waker>,
}

impl Outbox {
    /// Queues a response.
    pub(crate) fn push(&self, response: v1::Response) {
        let reader = {
            let mut queue = self.queue.lock();
            queue.bytes += cost(&response);
            queue.responses.push_back(response);
            queue.reader.take()
        };
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Drops the queue, for a client that doesn't take it.
    pub(crate) fn clear(&self) {
        let mut queue = self.queue.lock();
        queue.responses = VecDeque::new();
        queue.bytes = 0;
    }

    /// Ends the stream when the queue is empty.
    pub(crate) fn close(&self) {
        let reader = {
            let mut queue = self.queue.lock();
            queue.closed = true;
            queue.reader.take()
        };
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Waits until the client has taken enough responses.
    pub(crate) async fn room(&self) {
        loop {
            let drained = self.drained.notified();
            if self.queue.lock().bytes <= QUEUED_BYTES_MAX {
                return;
            }
            drained.await;
        }
    }
}

/// The stream's source of messages.
#[derive(Debug)]
pub(crate) struct Packs(pub(crate) Arc<Outbox>);

impl Stream for Packs {
    type Item = Result<v1::ResponsePack, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut queue = self.0.queue.lock();
        if queue.responses.is_empty() {
            if queue.closed {
                return Poll::Ready(None);
            }
            queue.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let mut responses = Vec::with_capacity(queue.responses.len().min(PACK_RESPONSES_MAX));
        let mut bytes = 0;
        while responses.len() < PACK_RESPONSES_MAX
            && bytes < PACK_BYTES_MAX
            && let Some(response) = queue.responses.pop_front()
        {
            bytes += cost(&response);
            responses.push(response);
        }
        queue.bytes -= bytes;
        let room = queue.bytes <= QUEUED_BYTES_MAX;
        drop(queue);
        if room {
            self.0.drained.notify_one();
        }
        Poll::Ready(Some(Ok(v1::ResponsePack { responses })))
    }
}

/// The bytes of a response, about.
fn cost(response: &v1::Response) -> usize {
    use v1::get_result::Result as Got;
    const SMALL: usize = 64;
    SMALL
        + match &response.body {
            Some(Body::Get(get)) => get
                .results
                .iter()
                .map(|result| match &result.result {
                    Some(Got::Found(found)) => SMALL + found.value.len(),
                    _ => SMALL,
                })
                .sum(),
            Some(Body::GetOne(get)) => get.value.as_ref().map_or(0, |value| value.len()),
            Some(Body::Scan(scan)) => scan
                .cells
                .iter()
                .map(|cell| SMALL + cell.row.len() + cell.column.len() + cell.value.len())
                .sum(),
            Some(Body::Prewrite(prewrite)) => prewrite.rejections.len() * 2 * SMALL,
            _ => 0,
        }
}
