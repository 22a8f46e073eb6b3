//! What an answer of etcd means, and an answer that did not come.

use std::error::Error as _;

use percolator_register::{RegisterVersion, StoredRecord, WriteId};
use tonic::{Code, Status};

use crate::mvccpb::KeyValue;
use crate::pb::TxnResponse;
use crate::pb::response_op::Response;

/// Etcd's error for a request that it has not proposed, because it is behind with those before. Its other reason for the same
/// code, that there is no space, also comes behind a transaction that was carried out: the one that reaches the quota.
const TOO_MANY_REQUESTS: &str = "etcdserver: too many requests";

/// Why a request has no response, by its certainty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Etcd did nothing, and won't before its configuration or permissions change.
    Refused(String),
    /// Nothing was sent, or etcd reports that it did nothing for now.
    Unavailable(String),
    /// It was carried out, or was not, or will be.
    Unknown(String),
}

impl Failure {
    /// Only etcd's own errors are certain, and that there is no connection to it. Transports make statuses too, with the same
    /// codes, of connections that ended behind a request: those have a source.
    pub(crate) fn of(status: &Status) -> Self {
        let reason = format!("{:?}: {}", status.code(), status.message());
        let mut sources = std::iter::successors(status.source(), |error| (*error).source());
        if sources.any(|error| error.is::<tonic::ConnectError>()) {
            return Self::Unavailable(reason);
        }
        if status.source().is_some() {
            return Self::Unknown(reason);
        }
        match status.code() {
            Code::InvalidArgument
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::FailedPrecondition
            | Code::Unimplemented => Self::Refused(reason),
            Code::ResourceExhausted if status.message() == TOO_MANY_REQUESTS => {
                Self::Unavailable(reason)
            }
            // Also etcd's own time-outs and changes of leader: the proposal may be in the log.
            _ => Self::Unknown(reason),
        }
    }
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxnOutcome {
    /// Its value was put, with this revision.
    Swapped(RegisterVersion),
    /// The key had another revision; none if it did not exist.
    Compared(Option<RegisterVersion>),
}

/// Reads the response. A value that is ours already was put by this request all the same: something on the way has sent it
/// twice, and this is the second one's response.
///
/// # Errors
/// Why it is no answer to a transaction of ours.
pub(crate) fn outcome(answer: TxnResponse, write: WriteId) -> Result<TxnOutcome, String> {
    if answer.succeeded {
        let header = answer.header.ok_or("an answer without a header")?;
        return Ok(TxnOutcome::Swapped(version(header.revision)?));
    }
    let response = answer.responses.into_iter().next();
    let Some(Response::ResponseRange(range)) = response.and_then(|op| op.response) else {
        return Err("an answer without what was found".to_owned());
    };
    let Some((version, bytes)) = only(range.kvs)? else {
        return Ok(TxnOutcome::Compared(None));
    };
    let is_ours = StoredRecord::decode(bytes).is_ok_and(|found| found.write == write);
    Ok(if is_ours {
        TxnOutcome::Swapped(version)
    } else {
        TxnOutcome::Compared(Some(version))
    })
}

/// The one key that was asked for, with its revision.
///
/// # Errors
/// Why it can't be a key's.
pub(crate) fn only(kvs: Vec<KeyValue>) -> Result<Option<(RegisterVersion, Vec<u8>)>, String> {
    let Some(found) = kvs.into_iter().next() else {
        return Ok(None);
    };
    Ok(Some((version(found.mod_revision)?, found.value.into())))
}

fn version(revision: i64) -> Result<RegisterVersion, String> {
    match u64::try_from(revision) {
        Ok(version @ 1..) => Ok(RegisterVersion(version)),
        _ => Err(format!("{revision} is no revision")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::{RangeResponse, ResponseHeader, ResponseOp};

    #[test]
    fn only_what_etcd_says_itself_is_certain() {
        let of = |code| Failure::of(&Status::new(code, "etcdserver: as it says"));
        assert!(matches!(of(Code::PermissionDenied), Failure::Refused(_)));
        assert!(matches!(of(Code::InvalidArgument), Failure::Refused(_)));
        let exhausted = |message| Failure::of(&Status::resource_exhausted(message));
        let too_many = exhausted("etcdserver: too many requests");
        assert!(matches!(too_many, Failure::Unavailable(_)));
        // The transaction that reaches the quota is carried out, and answered so.
        let no_space = exhausted("etcdserver: mvcc: database space exceeded");
        assert!(matches!(no_space, Failure::Unknown(_)));
        for code in [
            Code::ResourceExhausted,
            Code::Unavailable,
            Code::Unknown,
            Code::Cancelled,
            Code::DeadlineExceeded,
            Code::Internal,
            Code::OutOfRange,
            Code::Aborted,
            Code::DataLoss,
        ] {
            assert!(matches!(of(code), Failure::Unknown(_)), "{code:?}");
        }
        // As of a connection that was reset.
        let lost = Status::from_error(Box::new(Lost(Status::permission_denied("reset"))));
        assert_eq!(lost.code(), Code::PermissionDenied);
        assert!(matches!(Failure::of(&lost), Failure::Unknown(_)));
    }

    #[derive(Debug)]
    struct Lost(Status);

    impl std::fmt::Display for Lost {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "a lost connection")
        }
    }

    impl std::error::Error for Lost {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    fn compared(kvs: Vec<KeyValue>) -> TxnResponse {
        let range = RangeResponse { header: None, kvs };
        TxnResponse {
            header: Some(ResponseHeader { revision: 9 }),
            succeeded: false,
            responses: vec![ResponseOp {
                response: Some(Response::ResponseRange(range)),
            }],
        }
    }

    #[test]
    fn an_answer_says_what_became_of_it() {
        let (ours, other) = (WriteId([1; 16]), WriteId([2; 16]));
        let swapped = TxnResponse {
            succeeded: true,
            ..compared(Vec::new())
        };
        let version = RegisterVersion(9);
        assert_eq!(outcome(swapped, ours), Ok(TxnOutcome::Swapped(version)));
        let found = |write, mod_revision| {
            let value = StoredRecord::encode(write, &[b"value"]).into();
            let value = KeyValue {
                mod_revision,
                value,
                ..KeyValue::default()
            };
            outcome(compared(vec![value]), ours)
        };
        let conflict = TxnOutcome::Compared(Some(RegisterVersion(7)));
        assert_eq!(found(other, 7), Ok(conflict));
        // The same request was sent twice on the way.
        let again = TxnOutcome::Swapped(RegisterVersion(7));
        assert_eq!(found(ours, 7), Ok(again));
        let none = outcome(compared(Vec::new()), ours);
        assert_eq!(none, Ok(TxnOutcome::Compared(None)));
        found(other, 0).unwrap_err();
        outcome(TxnResponse::default(), ours).unwrap_err();
    }
}
