//! A register: one small durable value that is changed by compare-and-swap.
//!
//! One swap both proves leadership and makes a value durable: a leader that was replaced holds an old version, and
//! its next swap is a conflict. The design is `docs/design/register.md`.
//!
//! [`FolderRegister`] is for processes of one machine, and [`FileRegister`] for one process. Registers over Kubernetes and etcd are crates of their own, so
//! that a server pulls in neither client. It must not know what a value means.

mod blocking;
#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
mod file;
pub mod files;
mod floor;
mod folder;
mod record;
mod versioned_file;

use std::fmt;

pub use futures_util::future::BoxFuture;

pub use error::{LoadError, SwapError, check_size};
pub use file::FileRegister;
pub use floor::VersionFloor;
pub use folder::{FolderRegister, VersionedFolder};
pub use record::StoredRecord;
pub use versioned_file::VersionedFile;

/// The most that a value may have: 896 KiB. The smallest limit among the stores is the data of a ConfigMap, 1 MiB; etcd takes requests of
/// 1.5 MiB, and an API server bodies of 3 MiB, in base64.
pub const VALUE_BYTES_MAX: usize = 896 << 10;

/// One small durable value that is changed by compare-and-swap.
///
/// Every operation is linearizable: a load that begins after a swap has returned sees that swap or a later one, through
/// any handle, of any process. A future that is dropped is a swap whose outcome is unknown.
pub trait Register: fmt::Debug + Send + Sync {
    /// The value with its version; none if none was ever stored.
    ///
    /// # Errors
    /// [`LoadError`].
    fn load(&self) -> BoxFuture<'_, Result<Option<VersionedValue>, LoadError>>;

    /// Replaces the value if its version is still the expected one; none expects that no value was ever stored. When this
    /// returns the new version, the value is durable. It sends one request that writes, and never a second one.
    ///
    /// # Errors
    /// [`SwapError`]. Only [`SwapError::Unknown`] leaves open whether the value was replaced.
    fn swap(
        &self,
        expected: Option<RegisterVersion>,
        value: Vec<u8>,
    ) -> BoxFuture<'_, Result<RegisterVersion, SwapError>>;

    /// The most bytes that a value may have in this register.
    fn value_bytes_max(&self) -> usize {
        VALUE_BYTES_MAX
    }
}

/// Which swap made the value: of two swaps of one register, the later one has the greater version. Versions of different
/// registers can't be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegisterVersion(pub u64);

impl fmt::Display for RegisterVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a register holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionedValue {
    /// The value, up to [`Register::value_bytes_max`] bytes; empty is a value, too.
    pub value: Vec<u8>,
    /// The version to expect in the next swap.
    pub version: RegisterVersion,
    /// The swap that stored it.
    pub write: WriteId,
}

/// The name of one swap: random, and stored with its value. When an answer was lost, it shows whether the store holds this write.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WriteId(pub [u8; 16]);

impl WriteId {
    /// A name that no other swap has.
    pub fn random() -> Self {
        Self(rand::random())
    }
}

impl fmt::Debug for WriteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteId({self})")
    }
}

impl fmt::Display for WriteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What a later load proves about a swap whose outcome was unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapOutcome {
    /// It happened, and its value is the register's, with this version.
    Happened(RegisterVersion),
    /// It has not happened, and still may: the request can be under way. A new swap with the same expected version
    /// decides: at most one of both happens.
    Undecided,
    /// The register has another version since. This swap did not happen, or was replaced; it can't happen any more.
    Superseded,
}

impl SwapOutcome {
    /// The outcome of the swap `write`, which expected a version, by what was loaded after it had ended.
    pub fn of(
        write: WriteId,
        expected: Option<RegisterVersion>,
        loaded: Option<&VersionedValue>,
    ) -> Self {
        match loaded {
            Some(found) if found.write == write => Self::Happened(found.version),
            found if found.map(|found| found.version) == expected => Self::Undecided,
            _ => Self::Superseded,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_load_shows_the_outcome_of_a_swap() {
        let (ours, other) = (WriteId([1; 16]), WriteId([2; 16]));
        let found = |version, write| VersionedValue {
            value: Vec::new(),
            version: RegisterVersion(version),
            write,
        };
        let before = Some(RegisterVersion(7));
        let outcome = |expected, loaded: Option<VersionedValue>| {
            SwapOutcome::of(ours, expected, loaded.as_ref())
        };
        let happened = SwapOutcome::Happened(RegisterVersion(8));
        assert_eq!(outcome(before, Some(found(8, ours))), happened);
        assert_eq!(outcome(None, Some(found(8, ours))), happened);
        assert_eq!(
            outcome(before, Some(found(7, other))),
            SwapOutcome::Undecided
        );
        assert_eq!(outcome(None, None), SwapOutcome::Undecided);
        assert_eq!(
            outcome(before, Some(found(8, other))),
            SwapOutcome::Superseded
        );
        assert_eq!(
            outcome(None, Some(found(8, other))),
            SwapOutcome::Superseded
        );
    }
}
