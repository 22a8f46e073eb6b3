//! Mutants of the election. The model in this folder kills all of them, and so does the simulator, with replicas of the
//! whole cluster.

/// A rule of the election with a bug on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElectionMutant {
    /// The leader's right is counted from the answer to its renewal, not from the sending.
    RightFromAnswer,
    /// The leader's right never ends.
    RightNeverEnds,
    /// A new leader grants without a swap of its own.
    TakeoverWithoutSwap,
    /// A new leader goes on with the oracle of its earlier term.
    OracleReused,
    /// A hand-over stores a limit that is lower than the next timestamp.
    HandOverBelowNext,
    /// The leader goes on granting while it hands over.
    GrantsDuringHandOver,
    /// A swap whose outcome is unknown counts as done.
    UnknownIsDone,
    /// After a conflict the leader goes on, whoever leads now.
    ConflictRetried,
    /// A standby counts from when it sent its load.
    SeenFromSending,
    /// A standby counts from its first load, although the version has changed since.
    SeenNotReset,
    /// In the world around the rules: the clock is read before the request.
    ClockBeforeRequest,
}

/// Whether this thread runs this mutant.
#[cfg(not(any(test, feature = "mutants")))]
#[inline(always)]
pub const fn on(_: ElectionMutant) -> bool {
    false
}

#[cfg(any(test, feature = "mutants"))]
pub use switch::{on, set};

#[cfg(any(test, feature = "mutants"))]
mod switch {
    use std::cell::Cell;

    use super::ElectionMutant;

    thread_local! {
        static ON: Cell<Option<ElectionMutant>> = const { Cell::new(None) };
    }

    impl ElectionMutant {
        /// All of them.
        pub const ALL: [Self; 11] = [
            Self::RightFromAnswer,
            Self::RightNeverEnds,
            Self::TakeoverWithoutSwap,
            Self::OracleReused,
            Self::HandOverBelowNext,
            Self::GrantsDuringHandOver,
            Self::UnknownIsDone,
            Self::ConflictRetried,
            Self::SeenFromSending,
            Self::SeenNotReset,
            Self::ClockBeforeRequest,
        ];
    }

    /// From now on this thread runs this mutant, or none.
    pub fn set(mutant: Option<ElectionMutant>) {
        ON.set(mutant);
    }

    /// Whether this thread runs it.
    pub fn on(mutant: ElectionMutant) -> bool {
        ON.get() == Some(mutant)
    }
}
