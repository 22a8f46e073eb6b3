//! Requests to tablet servers, each sent once.

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};
use parking_lot::Mutex;
use percolator_protocol::lease::NotLeased;
use percolator_protocol::safe_point::TooOld;
use percolator_protocol::types::Tablet;
use percolator_wire::v1::request_error::Kind;
use percolator_wire::v1::response::Body;
use percolator_wire::{Malformed, v1};

use crate::convert::trace_context;
use crate::group::RequestGroup;
use crate::metrics;
use crate::no_response::{NoResponse, failed};
use crate::retry::RetryCause;
use crate::router::{Answered, CallError, Deadline, Router};
use crate::trace::Trace;
use crate::transport::Lost;

/// Requests of one call that a server has at a time, where the call is too large for one.
const AT_A_TIME: usize = 2;

/// What became of sending a request once.
pub(crate) enum Attempt {
    Done(Body),
    Again(String),
    /// As Again; the server has the tablets, and too much to do.
    Busy(String),
    /// As Again; no response came.
    Lost(String),
    /// As Again; and nothing was sent.
    NeverSent(String),
    /// As Again; one of the tablets belongs to a table that is being deleted.
    Frozen(String),
    /// As Again; a tablet was split, merged or handed over, and where the rows are now is known, or will be in a moment.
    Moved(String),
    /// As Again; what the server has stored is not what was written to it, so that it doesn't help to ask again.
    Damaged(String),
    Invalid(String),
    TooOld(TooOld),
}

impl From<Attempt> for RetryCause {
    fn from(attempt: Attempt) -> Self {
        match attempt {
            Attempt::Busy(why) => Self::Busy(why),
            Attempt::Moved(why) => Self::Moved(why),
            Attempt::Damaged(why) => Self::Damaged(why),
            Attempt::Again(why)
            | Attempt::Lost(why)
            | Attempt::NeverSent(why)
            | Attempt::Frozen(why)
            | Attempt::Invalid(why) => Self::Other(why),
            Attempt::TooOld(too_old) => Self::Other(too_old.to_string()),
            Attempt::Done(_) => Self::Other("a response of another kind".to_owned()),
        }
    }
}

impl Router {
    /// Remembers what the server at this address said of its start.
    fn met(&self, address: &str, incarnation: u64) {
        if incarnation != 0 && self.world.incarnations.read().get(address) != Some(&incarnation) {
            self.world
                .incarnations
                .write()
                .insert(address.to_owned(), incarnation);
        }
    }

    /// Sends a request to a tablet server, once, and waits for its response until the deadline.
    pub(crate) async fn send(
        &self,
        address: &str,
        tablets: Vec<v1::TabletRef>,
        body: v1::request::Body,
        deadline: Deadline,
    ) -> Attempt {
        let counted = self.metrics().map(|metrics| {
            let method = metrics::method(&body);
            (metrics, method, self.world.transport.now())
        });
        let attempt = self.send_uncounted(address, tablets, body, deadline).await;
        if let Some((metrics, method, began)) = counted {
            let took = self.world.transport.now().saturating_sub(began);
            metrics.asked(method, &attempt, took);
        }
        attempt
    }

    async fn send_uncounted(
        &self,
        address: &str,
        tablets: Vec<v1::TabletRef>,
        body: v1::request::Body,
        deadline: Deadline,
    ) -> Attempt {
        let request = v1::Request {
            id: 0,
            tablets,
            body: Some(body),
            trace: None,
        };
        let Some(trace) = &self.trace else {
            return self.send_request(address, request, deadline).await;
        };
        // In a box, so that the usual request's future stays small.
        Box::pin(self.send_traced(trace, address, request, deadline)).await
    }

    async fn send_traced(
        &self,
        trace: &Trace,
        address: &str,
        mut request: v1::Request,
        deadline: Deadline,
    ) -> Attempt {
        let step = trace.asking(address, &request, &self.locations());
        request.trace = trace_context(step.context()).map(Box::new);
        let attempt = self.send_request(address, request, deadline).await;
        step.answered(&attempt);
        attempt
    }

    async fn send_request(
        &self,
        address: &str,
        request: v1::Request,
        deadline: Deadline,
    ) -> Attempt {
        let transport = &*self.world.transport;
        let attempt = transport.tablet(address, request);
        let answer = deadline.watching(transport, attempt).await;
        match answer.unwrap_or_else(|waited| {
            let why = failed("tablet server", address, &NoResponse::Silent(waited));
            Err(Lost::unknown(why))
        }) {
            Ok(response) => match response.body {
                Some(Body::Error(error)) => match error.kind {
                    Some(Kind::Invalid(why)) => Attempt::Invalid(why),
                    Some(Kind::NotServed(not)) if not.frozen => Attempt::Frozen(format!(
                        "{address} has frozen tablet {}: its table is being deleted",
                        not.tablet_id
                    )),
                    Some(Kind::NotServed(not)) => self.not_served(address, not),
                    Some(Kind::OtherServer(other)) => Attempt::Again(format!("{address}: {other}")),
                    Some(Kind::TooOld(too_old)) => Attempt::TooOld(too_old.into()),
                    Some(Kind::NotLeased(not)) => {
                        Attempt::Again(format!("{address}: {}", NotLeased::from(not)))
                    }
                    Some(Kind::Busy(why)) => Attempt::Busy(format!("{address} is busy: {why}")),
                    Some(Kind::Failed(failed)) if failed.damaged => Attempt::Damaged(format!(
                        "{address} has stored what is not what was written to it, and stops: {}",
                        failed.message
                    )),
                    Some(Kind::Failed(failed)) => {
                        Attempt::Again(format!("{address}: {}", failed.message))
                    }
                    None => Attempt::Again(format!("{address} sent an empty error")),
                },
                Some(body) => {
                    if let Body::Prewrite(prewritten) = &body {
                        self.met(address, prewritten.incarnation);
                    }
                    Attempt::Done(body)
                }
                None => Attempt::Again(format!("{address} sent an empty answer")),
            },
            Err(lost) if lost.never_sent => Attempt::NeverSent(lost.why),
            Err(lost) => Attempt::Lost(lost.why),
        }
    }

    /// The server doesn't serve a tablet at the epoch that it was asked for. What it names instead is taken in.
    fn not_served(&self, address: &str, not: v1::NotServed) -> Attempt {
        let why = format!(
            "{address} does not serve tablet {} at epoch {}",
            not.tablet_id, not.asked_epoch
        );
        if not.moving {
            return Attempt::Moved(format!("{why}: it is being handed over"));
        }
        if not.known_epoch <= not.asked_epoch || not.tablets.is_empty() {
            return Attempt::Again(why);
        }
        let tablets: Result<Vec<Tablet>, Malformed> =
            not.tablets.into_iter().map(Tablet::try_from).collect();
        let tablets = match tablets {
            Ok(tablets) => tablets,
            Err(error) => return Attempt::Again(format!("{why}: {error}")),
        };
        let mut locations = self.world.locations.write();
        let Some(to) = not.moved_to else {
            locations.learn_cut(address, tablets);
            return Attempt::Moved(why);
        };
        let Some(v1::Addressee {
            server,
            incarnation,
        }) = to.server
        else {
            return Attempt::Again(format!("{why}: it names no server that has it"));
        };
        locations.learn_move(&server, incarnation, &to.address, tablets);
        Attempt::Moved(format!("{why}: it was handed over to {server}"))
    }

    async fn attempt(
        &self,
        group: RequestGroup,
        build: &(dyn Fn(Vec<(usize, v1::CellRef)>) -> v1::request::Body + Sync),
        deadline: Deadline,
    ) -> (Vec<usize>, Attempt) {
        let indices = group.cells.iter().map(|(at, _)| *at).collect();
        let body = build(group.cells);
        let attempt = self
            .send(&group.address, group.tablets, body, deadline)
            .await;
        (indices, attempt)
    }

    /// Sends each of these requests once. A server has so many of them at a time.
    pub(crate) async fn attempts(
        &self,
        mut groups: Vec<RequestGroup>,
        build: &(dyn Fn(Vec<(usize, v1::CellRef)>) -> v1::request::Body + Sync),
        deadline: Deadline,
    ) -> Vec<(Vec<usize>, Attempt)> {
        if groups.len() == 1 {
            return vec![self.attempt(groups.remove(0), build, deadline).await];
        }
        let attempt = |group| self.attempt(group, build, deadline);
        let mut servers: Vec<Vec<RequestGroup>> = Vec::new();
        for group in groups {
            let here = |of_server: &&mut Vec<RequestGroup>| of_server[0].address == group.address;
            match servers.iter_mut().find(here) {
                Some(of_server) => of_server.push(group),
                None => servers.push(vec![group]),
            }
        }
        if servers.iter().all(|of_server| of_server.len() == 1) {
            return join_all(servers.into_iter().flatten().map(attempt)).await;
        }
        let attempts = servers
            .into_iter()
            .map(|of_server| self.attempts_at_one(of_server, build, deadline));
        join_all(attempts).await.into_iter().flatten().collect()
    }

    /// The same, of one server. Once one of them gets no response, or the time is over, the others are not sent any more:
    /// each of them would wait again.
    async fn attempts_at_one(
        &self,
        groups: Vec<RequestGroup>,
        build: &(dyn Fn(Vec<(usize, v1::CellRef)>) -> v1::request::Body + Sync),
        deadline: Deadline,
    ) -> Vec<(Vec<usize>, Attempt)> {
        let stopped: Mutex<Option<String>> = Mutex::new(None);
        let attempts = groups.into_iter().map(async |group: RequestGroup| {
            if let Some(why) = stopped.lock().clone() {
                let indices = group.cells.iter().map(|(at, _)| *at).collect();
                return (indices, Attempt::NeverSent(why));
            }
            let (indices, attempt) = self.attempt(group, build, deadline).await;
            match &attempt {
                Attempt::Lost(why) | Attempt::NeverSent(why) => {
                    *stopped.lock() = Some(why.clone());
                }
                _ if deadline.passed(&*self.world.transport) => {
                    *stopped.lock() = Some("the time is over".to_owned());
                }
                _ => {}
            }
            (indices, attempt)
        });
        let attempts = stream::iter(attempts).buffer_unordered(AT_A_TIME);
        attempts.collect().await
    }
}

/// Sorts what came of requests: responses, cells that are to be asked for again, and why.
pub(crate) fn sort(
    attempts: Vec<(Vec<usize>, Attempt)>,
    answered: &mut Vec<Answered>,
    frozen: &mut Vec<usize>,
) -> (Vec<usize>, RetryCause) {
    let mut again = Vec::new();
    let mut last = RetryCause::default();
    for (indices, attempt) in attempts {
        match attempt {
            Attempt::Done(body) => answered.push((indices, Ok(body))),
            Attempt::Invalid(why) => answered.push((indices, Err(CallError::Invalid(why)))),
            Attempt::TooOld(too_old) => answered.push((indices, Err(CallError::TooOld(too_old)))),
            Attempt::Busy(why) => {
                again.extend(indices);
                last = last.or(RetryCause::Busy(why));
            }
            Attempt::Moved(why) => {
                again.extend(indices);
                last = last.or(RetryCause::Moved(why));
            }
            Attempt::Again(why) | Attempt::Lost(why) | Attempt::NeverSent(why) => {
                again.extend(indices);
                last = last.or(RetryCause::Other(why));
            }
            Attempt::Frozen(why) => {
                frozen.extend(&indices);
                again.extend(indices);
                last = last.or(RetryCause::Other(why));
            }
            Attempt::Damaged(why) => {
                again.extend(indices);
                last = RetryCause::Damaged(why);
            }
        }
    }
    (again, last)
}
