//! How a load or a swap can fail, by what the caller may conclude from it.

use crate::files::FileError;
use crate::{RegisterVersion, VALUE_BYTES_MAX, WriteId};

/// Why there is no value to be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The store could not be asked, or gave no answer in time. A later load may succeed.
    #[error("the register {register} cannot be read now: {reason}")]
    Unavailable {
        /// Which register: a path, an object or a key.
        register: String,
        /// What happened.
        reason: String,
    },
    /// The store refuses. No load succeeds before permissions or configuration change.
    #[error("the register {register} cannot be read: {reason}")]
    Refused {
        /// Which register.
        register: String,
        /// The store's reason.
        reason: String,
    },
    /// What is stored is not what a register stored last: it was changed by something else, removed, or replaced by an
    /// older copy.
    #[error("the register {register} is damaged: {reason}")]
    Damaged {
        /// Which register.
        register: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// Why a swap did not return a new version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwapError {
    /// The register had another version than the expected one. This swap did not happen, and never will.
    #[error("the register {register} has version {}, not {}", version(.found), version(.expected))]
    Conflict {
        /// Which register.
        register: String,
        /// The version that the swap expected; none for a register without a value.
        expected: Option<RegisterVersion>,
        /// A version that the register has had since; none if it had no value.
        found: Option<RegisterVersion>,
    },
    /// The value is larger than registers take. Nothing was sent.
    #[error("a value of {bytes} bytes is too large for a register: at most {bytes_max}")]
    TooLarge {
        /// Size of the value.
        bytes: usize,
        /// The most that a register holds.
        bytes_max: usize,
    },
    /// The store refuses. This swap did not happen, and none will before permissions or configuration change.
    #[error("the register {register} cannot be changed: {reason}")]
    Refused {
        /// Which register.
        register: String,
        /// The store's reason.
        reason: String,
    },
    /// What is stored is not what a register stored last. This swap did not happen.
    #[error("the register {register} is damaged: {reason}")]
    Damaged {
        /// Which register.
        register: String,
        /// What is wrong with it.
        reason: String,
    },
    /// This swap surely did not happen, for a reason that may pass: nothing was sent, or the store reports that it did nothing.
    #[error("the register {register} cannot be changed now: {reason}")]
    Unavailable {
        /// Which register.
        register: String,
        /// What happened.
        reason: String,
    },
    /// This swap happened, or did not, or will when its request arrives: the answer was lost. A later load shows which, by
    /// [`SwapOutcome`](crate::SwapOutcome).
    #[error("the register {register} may have been changed, or not: {reason}")]
    Unknown {
        /// Which register.
        register: String,
        /// The swap, to be searched in a later load.
        write: WriteId,
        /// What happened instead of an answer.
        reason: String,
    },
}

impl From<LoadError> for SwapError {
    /// Of a read that came before anything was written.
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Unavailable { register, reason } => Self::Unavailable { register, reason },
            LoadError::Refused { register, reason } => Self::Refused { register, reason },
            LoadError::Damaged { register, reason } => Self::Damaged { register, reason },
        }
    }
}

impl From<FileError> for LoadError {
    fn from(error: FileError) -> Self {
        let register = error.path.display().to_string();
        let reason = error.to_string();
        if error.is_refusal() {
            Self::Refused { register, reason }
        } else {
            Self::Unavailable { register, reason }
        }
    }
}

/// Whether a register takes a value of this size.
///
/// # Errors
/// [`SwapError::TooLarge`].
pub fn check_size(value: &[u8]) -> Result<(), SwapError> {
    check_size_up_to(value, VALUE_BYTES_MAX)
}

/// [`check_size`], for a register with another limit.
pub(crate) fn check_size_up_to(value: &[u8], bytes_max: usize) -> Result<(), SwapError> {
    if value.len() > bytes_max {
        return Err(SwapError::TooLarge {
            bytes: value.len(),
            bytes_max,
        });
    }
    Ok(())
}

fn version(version: &Option<RegisterVersion>) -> String {
    version.map_or_else(|| "none".to_owned(), |version| version.to_string())
}
