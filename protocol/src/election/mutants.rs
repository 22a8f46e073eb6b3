//! Mutants of the election. The model in this folder kills all of them, and the simulator, with replicas of the whole cluster,
//! those that harm it before anything else does.

/// A rule of the election with a bug on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElectionMutant {
    /// A leader whose folder doesn't have its term hands over.
    HandedOverUnkept,
    /// A planned end of an earlier term ends a promise.
    EarlierEndFrees,
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
    /// After a conflict the leader goes on, although another one may lead.
    ConflictRetried,
    /// A standby counts from when it sent its load.
    SeenFromSending,
    /// A standby counts from its first load, although the version has changed since.
    SeenNotReset,
    /// In the world around the rules: the clock is read before the request.
    ClockBeforeRequest,
    /// A promise counts from its answer, not from when it was asked for.
    PromiseFromAnswer,
    /// The leader goes on by the promise of one replica.
    SomePromises,
    /// While the register is away a limit counts that only the leader's own folder has.
    LimitInOneFolder,
    /// A replica takes over from the register's limit, whatever its own folder has.
    OwnFolderIgnored,
    /// A replica that has started is not bound by the promises of earlier starts.
    PromiseForgotten,
    /// A replica promises although a swap of its own is undecided.
    PromiseWhileUndecided,
    /// A promise does not keep a replica from taking over.
    PromiseBroken,
    /// A replica takes over that the register's value does not list.
    UnlistedTakesOver,
    /// A takeover lets any replica take over next.
    TakeoverForgetsPromisers,
    /// A leader acts before its folder keeps its term.
    TermNotKept,
    /// A leader whose folder doesn't take its term renews its right all the same.
    UnkeptTermHeld,
    /// The leader goes by the promisers of the known value alone, although a swap with others is undecided.
    UndecidedPromisersIgnored,
    /// While the register is away a state counts that only the leader's own folder has.
    StateInOneFolder,
    /// A leader lists all that promise, although the newest state is only in the folders of those that were listed.
    ListChangesWhileAhead,
    /// A leader stores a planned end, although the newest state is only in folders.
    HandOverWhileAhead,
    /// A takeover goes on from the register's state, whatever its own folder has.
    OwnCopyIgnored,
    /// A takeover goes on from the state with the higher number, whatever the terms.
    TermOfStateIgnored,
    /// A folder takes the late copy of a lower term.
    LateCopyTaken,
    /// A new leader swaps the state before its folder keeps its term.
    StateBeforeTermKept,
    /// A new leader shows states that only folders have before the register has its first one.
    CopiesBeforeFirstState,
}

impl ElectionMutant {
    /// Whether it shows only where replicas go on by promises.
    pub fn is_of_promises(self) -> bool {
        matches!(
            self,
            Self::PromiseFromAnswer
                | Self::SomePromises
                | Self::LimitInOneFolder
                | Self::OwnFolderIgnored
                | Self::PromiseForgotten
                | Self::PromiseWhileUndecided
                | Self::PromiseBroken
                | Self::UnlistedTakesOver
                | Self::TakeoverForgetsPromisers
                | Self::TermNotKept
                | Self::UnkeptTermHeld
                | Self::UndecidedPromisersIgnored
                | Self::HandedOverUnkept
                | Self::EarlierEndFrees
        )
    }
}

impl ElectionMutant {
    /// Whether it concerns the states of masters.
    pub fn is_of_states(self) -> bool {
        matches!(
            self,
            Self::StateInOneFolder
                | Self::ListChangesWhileAhead
                | Self::HandOverWhileAhead
                | Self::OwnCopyIgnored
                | Self::TermOfStateIgnored
                | Self::LateCopyTaken
                | Self::StateBeforeTermKept
                | Self::CopiesBeforeFirstState
        )
    }
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
        /// All of them, but for those that concern the states of masters.
        pub const ALL: [Self; 25] = [
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
            Self::PromiseFromAnswer,
            Self::SomePromises,
            Self::LimitInOneFolder,
            Self::OwnFolderIgnored,
            Self::PromiseForgotten,
            Self::PromiseWhileUndecided,
            Self::PromiseBroken,
            Self::UnlistedTakesOver,
            Self::TakeoverForgetsPromisers,
            Self::UndecidedPromisersIgnored,
            Self::TermNotKept,
            Self::UnkeptTermHeld,
            Self::HandedOverUnkept,
            Self::EarlierEndFrees,
        ];

        /// Those that concern the states of masters.
        pub const OF_STATES: [Self; 8] = [
            Self::StateInOneFolder,
            Self::ListChangesWhileAhead,
            Self::HandOverWhileAhead,
            Self::OwnCopyIgnored,
            Self::TermOfStateIgnored,
            Self::LateCopyTaken,
            Self::StateBeforeTermKept,
            Self::CopiesBeforeFirstState,
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
