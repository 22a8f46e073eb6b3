//! Encodes results as responses.

use percolator_protocol::actions::min_commit_ts;
use percolator_wire::v1;
use percolator_wire::v1::request_error::Kind;
use percolator_wire::v1::response::Body;
use prost::Message as _;

use super::{Asker, Core, Reply};
use crate::Refusal;
use crate::decision::Decision;
use crate::probe::{Limit, Note};

impl Core {
    /// Answers a request.
    pub(super) fn answer(
        &self,
        to: Option<Asker>,
        id: u64,
        note: Note,
        result: Result<Option<Body>, Refusal>,
        out: &mut Vec<Reply>,
    ) {
        self.state.probe.answered(note, &result);
        out.push(reply(to, id, result));
    }

    /// Refuses a request because of a limit.
    pub(super) fn refuse(
        &self,
        to: Option<Asker>,
        id: u64,
        note: Note,
        (limit, why): (Limit, String),
        out: &mut Vec<Reply>,
    ) {
        self.state.probe.limited(limit);
        self.answer(to, id, note, Err(Refusal::Busy(why)), out);
    }

    /// The limit that refuses further requests, and a message for the caller.
    pub(super) fn limit_reached(&self, waiting: usize) -> Option<(Limit, String)> {
        let for_disk = || format!("{waiting} requests wait for the disk");
        if self.state.limits.no_more_requests(waiting) {
            return Some((Limit::Requests, for_disk()));
        }
        if self.state.limits.enough_decided(self.groups.decided_bytes) {
            return Some((Limit::DecidedBytes, for_disk()));
        }
        let queued = self.state.limits.enough_queued(self.queue.bytes);
        let for_rows = || {
            format!(
                "{} requests of {} bytes wait for rows that others write",
                self.queue.waiting.len(),
                self.queue.bytes
            )
        };
        queued.then(|| (Limit::QueuedBytes, for_rows()))
    }

    /// Holds a read until the next group is durable.
    pub(super) fn hold(
        &mut self,
        to: Asker,
        request: v1::Request,
        note: Note,
        out: &mut Vec<Reply>,
    ) {
        let reads = self.queue.reads.len();
        let why = || format!("{reads} reads wait for the disk");
        if self.state.limits.no_more_reads(reads) {
            return self.refuse(Some(to), request.id, note, (Limit::Reads, why()), out);
        }
        if self.state.limits.enough_queued(self.queue.bytes) {
            return self.refuse(Some(to), request.id, note, (Limit::QueuedBytes, why()), out);
        }
        self.queue.bytes += request.encoded_len();
        self.queue.reads.push((to, request, note));
    }

    /// The response, now that the batch is durable. Reads until now have not met the locks of a prewrite, so that their
    /// snapshots count.
    pub(super) fn durable_answer(&self, decision: &mut Decision) -> Option<Body> {
        let mut answer = decision.answer.take();
        if let (Some(Body::Prewrite(answer)), Some(start_ts)) = (&mut answer, decision.prewritten) {
            answer.min_commit_ts = min_commit_ts(start_ts, self.state.read_ts()).as_u64();
        }
        answer
    }
}

fn reply(to: Option<Asker>, id: u64, result: Result<Option<Body>, Refusal>) -> Reply {
    let body = match result {
        Ok(body) => body,
        Err(refusal) => Some(Body::Error(v1::RequestError {
            kind: Some(match refusal {
                Refusal::NotServed(not_served) => Kind::NotServed(not_served.into()),
                Refusal::OtherServer { meant, this } => Kind::OtherServer(v1::OtherServer {
                    meant: meant.map(Into::into),
                    answers: Some(this.into()),
                }),
                Refusal::TooOld(too_old) => Kind::TooOld(too_old.into()),
                Refusal::NotLeased(not_leased) => Kind::NotLeased(not_leased.into()),
                Refusal::Invalid(why) => Kind::Invalid(why),
                Refusal::Busy(why) => Kind::Busy(why),
                Refusal::Engine {
                    message,
                    unknown,
                    damaged,
                    ..
                } => Kind::Failed(v1::Failed {
                    message,
                    unknown,
                    damaged,
                }),
            }),
        })),
    };
    Reply {
        to: to.unwrap_or_default(),
        response: v1::Response { id, body },
    }
}
