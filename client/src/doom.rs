//! The reasons to begin a transaction again.

use crate::Error;
use crate::error::Conflict;

/// What was met that ends the transaction, and not the next one.
#[derive(Clone, Debug)]
pub(crate) enum Doom {
    Conflict(Conflict),
    TooOld,
}

impl Doom {
    pub(crate) fn by(error: &Error) -> Option<Self> {
        match error {
            Error::Conflict(conflict) => Some(Self::Conflict(conflict.clone())),
            Error::TooOld(_) => Some(Self::TooOld),
            _ => None,
        }
    }

    /// Of a transaction that ended with this error of its commit, or with one of the application's own, and had met that
    /// before. Where the commit says more, as that its outcome is unknown, what was met before doesn't count.
    pub(crate) fn behind(error: Option<&Error>, met: Option<Self>) -> Option<Self> {
        match error {
            None | Some(Error::Ended) => met,
            Some(error) => Self::by(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use percolator_protocol::types::{Cell, TableId, Timestamp};

    use super::*;

    #[test]
    fn a_commit_that_may_have_happened_is_not_done_again() {
        let unknown = Error::Unknown {
            start_ts: Timestamp::from_u64(1),
            primary: Cell::new(TableId(1), "row", "column"),
            why: "no answer".into(),
        };
        let met = || Some(Doom::TooOld);
        assert!(Doom::behind(Some(&unknown), met()).is_none());
        assert!(Doom::behind(Some(&Error::Ended), met()).is_some());
        assert!(Doom::behind(None, met()).is_some());
        assert!(Doom::behind(None, None).is_none());
    }
}
