//! What is being received, and isn't a call yet: bounded for all requests together, as each may hold a value of 4 MiB before
//! anybody can say to which session it belongs.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use crate::failure::{Failure, Reason};

/// The bytes of all requests that are being received.
#[derive(Debug)]
pub(crate) struct ReceivedBytes {
    now: AtomicUsize,
    most: usize,
}

impl ReceivedBytes {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        let now = AtomicUsize::new(0);
        Arc::new(Self { now, most })
    }

    /// The same body, whose bytes count from when they come to when it is dropped. Beyond the bound it fails.
    pub(crate) fn counted(self: &Arc<Self>, body: Body) -> Body {
        Body::new(CountedBody {
            body,
            of: self.clone(),
            bytes: 0,
        })
    }

    fn add(&self, bytes: usize) -> Result<(), Failure> {
        let before = self.now.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) <= self.most {
            return Ok(());
        }
        self.now.fetch_sub(bytes, Ordering::Relaxed);
        let message = format!(
            "the requests that the proxy receives have too many bytes: try again; the limit is {}",
            self.most
        );
        Err(Failure::new(Reason::Bytes, message).with("limit", self.most))
    }
}

struct CountedBody {
    body: Body,
    of: Arc<ReceivedBytes>,
    bytes: usize,
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        let bytes = match &frame {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
            Some(Err(_)) | None => 0,
        };
        if let Err(failure) = this.of.add(bytes) {
            return Poll::Ready(Some(Err(failure.status())));
        }
        this.bytes += bytes;
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for CountedBody {
    fn drop(&mut self) {
        self.of.now.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt as _, Full};
    use tonic::Code;

    #[tokio::test]
    async fn requests_count_together_until_they_are_gone() {
        let received = ReceivedBytes::new(100);
        let body = || received.counted(Body::new(Full::new(Bytes::from(vec![b'x'; 60]))));
        let mut first = body();
        let frame = first.frame().await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap().len(), 60);
        let status = body().collect().await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        // What was refused counts no more, and neither does what is gone.
        assert_eq!(received.now.load(Ordering::Relaxed), 60);
        drop(first);
        assert_eq!(body().collect().await.unwrap().to_bytes().len(), 60);
        assert_eq!(received.now.load(Ordering::Relaxed), 0);
    }
}
