//! Why a transaction has to be begun again.

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
}
