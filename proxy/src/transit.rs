//! What is on its way: requests until they are carried out, and answers until their clients have taken them. Bounded, as each may have a
//! value of 4 MiB before anybody can say to which session it belongs, and a client that never reads would have the proxy keep all
//! that it has asked for.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use percolator_telemetry::IntCounter;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::Extensions;
use tonic::transport::server::TcpConnectInfo;

use crate::failure::{Failure, Reason};
use crate::pool::{Full, Pool};

/// What a request has beside values, which doesn't count: a client that has too much on the way can end what it has.
const UNCOUNTED_BYTES: usize = 4 << 10;

/// The address that a request came from.
pub(crate) fn client_of(request: &Extensions) -> IpAddr {
    let connection = request.get::<TcpConnectInfo>();
    let address = connection.and_then(TcpConnectInfo::remote_addr);
    // One that has closed its connection has none any more.
    address.map_or(IpAddr::from([0, 0, 0, 0]), |it| one_client(it.ip()))
}

/// The address by which a client counts: a machine has all those of a network of IPv6.
pub(crate) fn one_client(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let mut octets = address.octets();
            octets[8..].fill(0);
            octets.into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

/// The bytes of all that is on its way.
#[derive(Debug)]
pub(crate) struct Transit {
    bytes: Mutex<Pool>,
    /// Requests that were not received to their end.
    refused: IntCounter,
}

impl Transit {
    pub(crate) fn new(most: usize, refused: IntCounter) -> Arc<Self> {
        Arc::new(Self {
            bytes: Mutex::new(Pool::new(most)),
            refused,
        })
    }

    /// All that is on its way.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.lock().taken()
    }

    /// The same body of a request, whose bytes beyond the first count from when they come to when both are dropped: a request is
    /// in memory while it is carried out. Beyond the bound the body fails.
    pub(crate) fn received(self: &Arc<Self>, client: IpAddr, body: Body) -> (Body, Received) {
        let received = Received(Arc::new(Mutex::new(self.counted(client))));
        let body = Body::new(ReceivedBody {
            body,
            uncounted: UNCOUNTED_BYTES,
            received: received.clone(),
        });
        (body, received)
    }

    /// The same body of an answer, whose bytes count from when they are known to when the connection has sent them: whether there is
    /// room for what it has was asked before.
    pub(crate) fn answered(self: &Arc<Self>, client: IpAddr, mut body: Body) -> Body {
        // The connection asks for what there is when it has room.
        let ahead = body.frame().now_or_never().flatten();
        Body::new(AnsweredBody {
            body,
            ahead: ahead.map(|frame| frame.map(|frame| self.counted_frame(client, frame))),
            of: self.clone(),
            client,
        })
    }

    fn counted_frame(self: &Arc<Self>, client: IpAddr, frame: Frame<Bytes>) -> Frame<Bytes> {
        frame.map_data(|bytes| {
            let mut counted = self.counted(client);
            counted.add(bytes.len());
            Bytes::from_owner(CountedBytes {
                bytes,
                _counted: counted,
            })
        })
    }

    /// Nothing of this client yet, to which may be added.
    pub(crate) fn counted(self: &Arc<Self>, client: IpAddr) -> Counted {
        Counted {
            of: self.clone(),
            client,
            bytes: 0,
        }
    }
}

fn refused(full: Full) -> Failure {
    Failure::full(
        Reason::Bytes,
        full,
        "too many bytes are on their way to and from the proxy: read the answers, and try again",
    )
}

/// Bytes that a client has on their way, until this is dropped.
#[derive(Debug)]
pub(crate) struct Counted {
    of: Arc<Transit>,
    client: IpAddr,
    bytes: usize,
}

impl Counted {
    /// So many more.
    ///
    /// # Errors
    /// The client has to take its answers before.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), Failure> {
        if bytes == 0 {
            return Ok(());
        }
        let taken = self.of.bytes.lock().take(self.client, bytes);
        taken.map_err(refused)?;
        self.bytes += bytes;
        Ok(())
    }

    fn add(&mut self, bytes: usize) {
        self.of.bytes.lock().add(self.client, bytes);
        self.bytes += bytes;
    }

    fn give_back(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.of.bytes.lock().give_back(self.client, bytes);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// What was received of a request, until all of these are dropped.
#[derive(Clone, Debug)]
pub(crate) struct Received(Arc<Mutex<Counted>>);

impl Received {
    /// It counts elsewhere now.
    pub(crate) fn handed_on(&self) {
        self.0.lock().give_back();
    }

    fn take(&self, bytes: usize) -> Result<(), Failure> {
        let mut counted = self.0.lock();
        let taken = counted.take(bytes);
        if taken.is_err() {
            counted.of.refused.inc();
        }
        taken
    }
}

struct ReceivedBody {
    body: Body,
    /// So many bytes more don't count.
    uncounted: usize,
    received: Received,
}

impl HttpBody for ReceivedBody {
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
        let uncounted = bytes.min(this.uncounted);
        this.uncounted -= uncounted;
        match this.received.take(bytes - uncounted) {
            Ok(()) => Poll::Ready(frame),
            Err(failure) => Poll::Ready(Some(Err(failure.status()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

struct AnsweredBody {
    body: Body,
    /// What the body has given before it was asked.
    ahead: Option<Result<Frame<Bytes>, Status>>,
    of: Arc<Transit>,
    client: IpAddr,
}

impl HttpBody for AnsweredBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if let Some(frame) = this.ahead.take() {
            return Poll::Ready(Some(frame));
        }
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        let counted = |frame| this.of.counted_frame(this.client, frame);
        Poll::Ready(frame.map(|frame| frame.map(counted)))
    }

    fn is_end_stream(&self) -> bool {
        self.ahead.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let ahead = self.ahead.as_ref().and_then(|frame| frame.as_ref().ok());
        let ahead = ahead.and_then(Frame::data_ref).map_or(0, Bytes::len) as u64;
        let rest = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + ahead);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + ahead);
        }
        hint
    }
}

/// Bytes of an answer, which count for as long as anybody has a part of them.
struct CountedBytes {
    bytes: Bytes,
    _counted: Counted,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full as FullBody;
    use tonic::Code;

    fn client(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    fn refused_requests() -> IntCounter {
        IntCounter::new("refused", "Refused.").unwrap()
    }

    fn body(bytes: usize) -> Body {
        Body::new(FullBody::new(Bytes::from(vec![b'x'; bytes])))
    }

    #[tokio::test]
    async fn requests_count_together_until_they_are_gone() {
        let refused = refused_requests();
        let transit = Transit::new(150, refused.clone());
        let receive = |client, bytes| transit.received(client, body(UNCOUNTED_BYTES + bytes)).0;
        let mut first = receive(client(1), 60);
        first.frame().await.unwrap().unwrap();
        // It would have more than is left for the others.
        let status = receive(client(1), 60).collect().await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        let failure = Failure::of(&status);
        assert_eq!(failure.reason, Reason::Bytes);
        assert_eq!(failure.metadata["client"], "10.0.0.1");
        assert_eq!(refused.get(), 1);
        // What says no more than what to do comes through.
        receive(client(1), 0).collect().await.unwrap();
        receive(client(2), 60).collect().await.unwrap();
        // What was refused counts no more, and neither does what is gone.
        assert_eq!(transit.bytes(), 60);
        drop(first);
        receive(client(1), 60).collect().await.unwrap();
        assert_eq!(transit.bytes(), 0);
    }

    #[tokio::test]
    async fn a_request_counts_until_it_is_carried_out_or_handed_on() {
        let transit = Transit::new(1000, refused_requests());
        for hands_on in [false, true] {
            let (body, received) = transit.received(client(1), body(UNCOUNTED_BYTES + 60));
            body.collect().await.unwrap();
            assert_eq!(transit.bytes(), 60);
            let task = received.clone();
            drop(received);
            assert_eq!(transit.bytes(), 60);
            if hands_on {
                task.handed_on();
                assert_eq!(transit.bytes(), 0);
            }
            drop(task);
            assert_eq!(transit.bytes(), 0);
        }
    }

    #[tokio::test]
    async fn an_answer_counts_until_it_is_sent() {
        let transit = Transit::new(100, refused_requests());
        let mut answer = transit.answered(client(1), body(60));
        assert_eq!(answer.size_hint().exact(), Some(60));
        assert_eq!(transit.bytes(), 60);
        let failure = transit.counted(client(1)).take(1).unwrap_err();
        assert_eq!(failure.reason, Reason::Bytes);
        assert!(transit.counted(client(2)).take(1).is_ok());
        let frame = answer.frame().await.unwrap().unwrap();
        let mut data = frame.into_data().unwrap();
        assert!(answer.frame().await.is_none());
        drop(answer);
        // A part of it keeps all of it in memory.
        let end = data.split_off(59);
        drop(data);
        assert_eq!(transit.bytes(), 60);
        drop(end);
        // Nobody takes this one.
        drop(transit.answered(client(1), body(60)));
        assert_eq!(transit.bytes(), 0);
    }

    #[test]
    fn a_client_is_an_address_or_a_network_of_ipv6() {
        let counts = |address: &str| one_client(address.parse().unwrap()).to_string();
        assert_eq!(counts("10.0.0.1"), "10.0.0.1");
        assert_eq!(counts("::ffff:10.0.0.1"), "10.0.0.1");
        assert_eq!(counts("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
    }
}
