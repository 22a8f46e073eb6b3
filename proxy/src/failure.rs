//! Errors as clients get them: a code of gRPC that says what to do, and a reason that says why.

use std::collections::HashMap;

use percolator_client::{Conflict, Error};
use tonic::body::Body;
use tonic::codegen::http;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::sessions::{Expiry, Full, Refusal, SessionEnd};

/// Whose reasons these are, in `google.rpc.ErrorInfo`.
pub const DOMAIN: &str = "percolator.dev";

/// Declares the reasons, each with its code.
macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident, $name:literal, $code:ident;)*) => {
        /// Why a call failed, as `google.rpc.ErrorInfo` names it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Reason {
            $($(#[$doc])* $variant,)*
        }

        impl Reason {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Its code.
            pub fn code(self) -> Code {
                match self {
                    $(Self::$variant => Code::$code,)*
                }
            }
        }
    };
}

reasons! {
    /// Another transaction was first.
    Conflict, "CONFLICT", Aborted;
    /// The transaction began so long ago that what it would read may have been collected.
    TooOld, "TOO_OLD", Aborted;
    /// The session was idle or open for too long, and was rolled back.
    SessionExpired, "SESSION_EXPIRED", Aborted;
    /// The transaction was rolled back by an earlier call, which said why.
    SessionAborted, "SESSION_ABORTED", Aborted;
    /// The proxy has stopped, and rolled the transaction back.
    ProxyStopped, "PROXY_STOPPED", Aborted;
    /// A client that had joined the transaction has ended without finishing, or had not finished when it was to be committed.
    ParticipantLost, "PARTICIPANT_LOST", Aborted;
    /// The session that was joined has ended, or its proxy has.
    ManagerGone, "MANAGER_GONE", Aborted;
    /// Two clients of the transaction have written one cell.
    TwoWriters, "TWO_WRITERS", Aborted;
    /// The transaction is committed, or being committed, and can't be joined.
    TooLate, "TOO_LATE", FailedPrecondition;
    /// The participant has handed over what it has written: how that ends, the session knows that it joined.
    ParticipantFinished, "PARTICIPANT_FINISHED", FailedPrecondition;
    /// The session was committed or rolled back by its client.
    SessionEnded, "SESSION_ENDED", FailedPrecondition;
    /// This proxy has no such session.
    SessionUnknown, "SESSION_UNKNOWN", FailedPrecondition;
    /// Another proxy has the session.
    OtherProxy, "OTHER_PROXY", FailedPrecondition;
    /// The cluster was deleted, and another one has taken its place.
    ClusterReplaced, "CLUSTER_REPLACED", FailedPrecondition;
    /// There is such a table already.
    AlreadyExists, "ALREADY_EXISTS", AlreadyExists;
    /// There is no such table.
    UnknownTable, "UNKNOWN_TABLE", NotFound;
    /// The request has no meaning, or breaks a limit of the data.
    Invalid, "INVALID", InvalidArgument;
    /// Nothing can be read at the snapshot.
    NoSnapshot, "NO_SNAPSHOT", InvalidArgument;
    /// Too many sessions are open.
    Sessions, "SESSIONS", ResourceExhausted;
    /// The session has written too much.
    SessionBytes, "SESSION_BYTES", ResourceExhausted;
    /// All sessions together have written too much.
    Bytes, "BYTES", ResourceExhausted;
    /// Too many calls are under way.
    Calls, "CALLS", ResourceExhausted;
    /// Too many scans are under way.
    Scans, "SCANS", ResourceExhausted;
    /// Too many calls of one session are under way.
    SessionCalls, "SESSION_CALLS", ResourceExhausted;
    /// The cluster has not answered in time, or can't be reached.
    Unavailable, "UNAVAILABLE", Unavailable;
    /// The proxy stops, and begins nothing.
    Stopping, "STOPPING", Unavailable;
    /// The commit of the session is under way: ask again.
    Committing, "COMMITTING", Unavailable;
    /// The answer to the commit was lost: the transaction may be committed.
    OutcomeUnknown, "OUTCOME_UNKNOWN", Unknown;
    /// The proxy made a mistake.
    Internal, "INTERNAL", Internal;
}

/// A call that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Why.
    pub reason: Reason,
    /// The same for people.
    pub message: String,
    /// The same for programs.
    pub metadata: HashMap<String, String>,
}

impl Failure {
    /// Without metadata.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            metadata: HashMap::new(),
        }
    }

    /// What another proxy has answered. Without a reason it hasn't, or the network did.
    pub fn of(status: &Status) -> Self {
        let details = status.get_error_details();
        let known = details.error_info().and_then(|info| {
            let mut all = Reason::ALL.iter();
            let reason = all.find(|reason| reason.name() == info.reason)?;
            Some((*reason, info.metadata.clone()))
        });
        match known {
            Some((reason, metadata)) => Self {
                reason,
                message: status.message().to_owned(),
                metadata,
            },
            None => Self::new(
                Reason::Unavailable,
                format!(
                    "the proxy that has the transaction doesn't answer: {}",
                    status.message()
                ),
            ),
        }
    }

    /// There is no more, of what clients share.
    pub(crate) fn full(reason: Reason, full: Full, what: &str) -> Self {
        let most = full.most();
        let failure = |why: String| Self::new(reason, format!("{what}; {why}")).with("limit", most);
        match full {
            Full::All(_) => failure(format!("the limit is {most}")),
            Full::Share { client, has, .. } => failure(format!(
                "{client} has {has} of {most}, and no client gets more than is left for others"
            ))
            .with("client", client),
        }
    }

    /// With one more entry of the metadata.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl ToString) -> Self {
        self.metadata.insert(key.to_owned(), value.to_string());
        self
    }

    /// As gRPC has it.
    pub fn status(&self) -> Status {
        let name = self.reason.name();
        let details = ErrorDetails::with_error_info(name, DOMAIN, self.metadata.clone());
        Status::with_error_details(self.reason.code(), self.message.clone(), details)
    }
}

/// The same answer. Where a message was refused before the service had it, as one that is too large or no message, it gets the
/// reason that clients expect.
pub(crate) fn with_reason(answer: http::Response<Body>) -> http::Response<Body> {
    match Status::from_header_map(answer.headers()) {
        Some(status)
            if status.details().is_empty()
                && matches!(status.code(), Code::OutOfRange | Code::Internal) =>
        {
            let failure = Failure::new(Reason::Invalid, status.message());
            failure.status().into_http()
        }
        _ => answer,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let failure = |reason| Self::new(reason, error.to_string());
        match &error {
            Error::Conflict(conflict) => {
                let kind = match conflict {
                    Conflict::Committed { .. } => "committed",
                    Conflict::Locked { .. } => "locked",
                    Conflict::RolledBack { .. } => "rolled_back",
                    Conflict::NotNotified { .. } => "not_notified",
                };
                let failure = failure(Reason::Conflict).with("conflict", kind);
                failure.with("cell", conflict.cell())
            }
            Error::Unknown {
                start_ts, primary, ..
            } => outcome_unknown(&error, start_ts, primary),
            Error::TooOld(_) => failure(Reason::TooOld),
            Error::NoSnapshot { .. } => failure(Reason::NoSnapshot),
            Error::NoTransaction { .. } | Error::Invalid(_) | Error::NoRoom(_) => {
                failure(Reason::Invalid)
            }
            Error::Timeout { .. } | Error::Unavailable(_) => failure(Reason::Unavailable),
            Error::ClusterReplaced(_) => failure(Reason::ClusterReplaced),
            Error::UnknownTable { name } => failure(Reason::UnknownTable).with("table", name),
            Error::Ended => failure(Reason::SessionEnded),
            Error::AlreadyExists(_) => failure(Reason::AlreadyExists),
            Error::Application(_) => failure(Reason::Internal),
        }
    }
}

fn outcome_unknown(why: impl ToString, start_ts: impl ToString, primary: impl ToString) -> Failure {
    Failure::new(Reason::OutcomeUnknown, why.to_string())
        .with("start_ts", start_ts)
        .with("primary", primary)
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let limit = |reason, most: usize, what: &str| {
            Self::new(reason, format!("{what}; the limit is {most}")).with("limit", most)
        };
        match refusal {
            Refusal::Stopping => {
                Self::new(Reason::Stopping, "the proxy stops; begin at another one")
            }
            Refusal::Sessions(full) => {
                Self::full(Reason::Sessions, full, "too many sessions are open")
            }
            Refusal::SessionBytes(most) => limit(
                Reason::SessionBytes,
                most,
                "the transaction would have written too many bytes: make smaller ones, or use the Rust library",
            ),
            Refusal::Bytes(full) => Self::full(
                Reason::Bytes,
                full,
                "the proxy's sessions have written too many bytes: try again when some have ended",
            ),
            Refusal::Calls(full) => Self::full(Reason::Calls, full, "too many calls are under way"),
            Refusal::Scans(full) => Self::full(Reason::Scans, full, "too many scans are under way"),
            Refusal::SessionCalls(most) => limit(
                Reason::SessionCalls,
                most,
                "too many calls of this session are under way",
            ),
            Refusal::Committing => Self::new(
                Reason::Committing,
                "the commit of this session is under way; ask again for its outcome",
            ),
            Refusal::IsParticipant => Self::new(
                Reason::Invalid,
                "this session has joined the transaction of another one: finish it, and commit or join that one",
            ),
            Refusal::NoParticipant => Self::new(
                Reason::Invalid,
                "this session has begun the transaction, and joined no other one: commit it",
            ),
            Refusal::TooLate => Self::new(
                Reason::TooLate,
                "the transaction is committed, or being committed: nobody joins it any more",
            ),
            Refusal::Unknown => Self::new(
                Reason::SessionUnknown,
                "there is no such session: the proxy was started again, or it ended long ago. If its commit was asked \
                 for, it may be committed",
            ),
            Refusal::Ended(end) => ended(&end),
        }
    }
}

/// What a call on a session that has ended is answered.
fn ended(end: &SessionEnd) -> Failure {
    match end {
        SessionEnd::Committed(commit_ts) => {
            let failure = Failure::new(Reason::SessionEnded, "the transaction is committed");
            failure.with("commit_ts", commit_ts)
        }
        SessionEnd::RolledBack => {
            Failure::new(Reason::SessionEnded, "the transaction was rolled back")
        }
        SessionEnd::Aborted => Failure::new(
            Reason::SessionAborted,
            "the transaction was rolled back by an earlier call, which said why; begin again",
        ),
        SessionEnd::Expired(expiry) => {
            let (limit, why) = match expiry {
                Expiry::Idle => ("idle", "no call came for too long"),
                Expiry::Total => ("total", "it was open for too long"),
            };
            let message = format!("the transaction was rolled back: {why}; begin again");
            Failure::new(Reason::SessionExpired, message).with("limit", limit)
        }
        SessionEnd::Stopped => Failure::new(
            Reason::ProxyStopped,
            "the transaction was rolled back: the proxy stops; begin again at another one",
        ),
        SessionEnd::Finished => Failure::new(
            Reason::ParticipantFinished,
            "the participant has finished: the session that it joined commits what it has written, and knows the outcome",
        ),
        SessionEnd::HandOverUnknown => Failure::new(
            Reason::OutcomeUnknown,
            "the answer of the proxy that has the transaction was lost: what this participant has written may be committed; \
             the session that it joined knows the outcome",
        ),
        SessionEnd::ParticipantLost => Failure::new(
            Reason::ParticipantLost,
            "the transaction was rolled back: a client that had joined it has not finished; begin again",
        ),
        SessionEnd::ManagerGone => Failure::new(
            Reason::ManagerGone,
            "the transaction was rolled back: the session that was joined has ended; begin again",
        ),
        SessionEnd::Unknown { start_ts, primary } => outcome_unknown(
            "the answer to the commit was lost: it may be committed; ask for its outcome",
            start_ts,
            primary,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use percolator_client::{Cell, TableId, Timestamp};

    fn unknown() -> [Failure; 2] {
        let (start_ts, primary) = (Timestamp::from_u64(7), Cell::new(TableId(1), "r", "c"));
        let error = Error::Unknown {
            start_ts,
            primary: primary.clone(),
            why: "cut off".into(),
        };
        let end = SessionEnd::Unknown { start_ts, primary };
        [error.into(), Refusal::Ended(end).into()]
    }

    #[test]
    fn an_unknown_outcome_is_neither_aborted_nor_to_be_sent_again() {
        for failure in unknown() {
            assert_eq!(failure.reason, Reason::OutcomeUnknown);
            assert_eq!(failure.reason.code(), Code::Unknown);
            assert_eq!(failure.metadata["start_ts"], "7");
            assert!(!failure.metadata["primary"].is_empty());
        }
    }

    #[test]
    fn aborted_means_that_nothing_of_it_is_visible() {
        let aborted = Reason::ALL.iter().filter(|it| it.code() == Code::Aborted);
        let names: Vec<&str> = aborted.map(|reason| reason.name()).collect();
        assert_eq!(
            names,
            [
                "CONFLICT",
                "TOO_OLD",
                "SESSION_EXPIRED",
                "SESSION_ABORTED",
                "PROXY_STOPPED",
                "PARTICIPANT_LOST",
                "MANAGER_GONE",
                "TWO_WRITERS"
            ]
        );
    }

    #[test]
    fn a_message_that_is_refused_gets_a_reason_and_no_other_status_does() {
        let answered = |status: Status| {
            let answer = with_reason(status.into_http());
            Status::from_header_map(answer.headers()).unwrap()
        };
        for refused in [Status::out_of_range("too large"), Status::internal("wrong")] {
            let status = answered(refused.clone());
            let failure = Failure::of(&status);
            assert_eq!(failure.reason, Reason::Invalid);
            assert_eq!(failure.message, refused.message());
            assert_eq!(status.code(), Code::InvalidArgument);
        }
        let internal = answered(Failure::new(Reason::Internal, "wrong").status());
        assert_eq!(Failure::of(&internal).reason, Reason::Internal);
        let unknown = answered(Status::unimplemented("no such method"));
        assert_eq!(unknown.code(), Code::Unimplemented);
        assert!(unknown.details().is_empty());
        assert!(with_reason(http::Response::default()).headers().is_empty());
    }

    #[test]
    fn details_go_along_with_the_status() {
        let failure = Failure::from(Error::UnknownTable { name: "t".into() });
        let status = failure.status();
        assert_eq!(status.code(), Code::NotFound);
        let info = status.get_error_details();
        let info = info.error_info().unwrap();
        assert_eq!(
            (&*info.reason, &*info.domain),
            ("UNKNOWN_TABLE", "percolator.dev")
        );
        assert_eq!(info.metadata["table"], "t");
    }
}
