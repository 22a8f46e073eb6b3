//! Mutants of the sessions' rules. The model beside this file kills all of them; programs are built without any.

/// A rule with a bug on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionMutant {
    /// A transaction is joined although its commit is under way.
    JoinAfterCommit,
    /// A manager commits although a participant has not finished.
    CommitWithoutAll,
    /// A participant that ends without finishing is forgotten.
    LossForgotten,
    /// A participant that has finished counts as lost.
    FinishedIsLost,
    /// What a participant has written is handed over to a commit that is under way.
    GivenToCommit,
    /// A commit that comes twice is carried out twice.
    CommitTwice,
    /// A participant that may have handed over what it wrote is said to be rolled back.
    SealedIsRolledBack,
    /// A participant writes although what it wrote may be handed over.
    SealedWrites,
    /// A session that has ended goes on being counted.
    BytesKept,
    /// A participant that came too late keeps its place.
    PlaceKept,
    /// A participant goes on without its manager.
    ManagerGoneUnnoticed,
    /// A session whose time is over comes back by a call of its participant.
    ExpiredComesBack,
}

#[cfg(test)]
impl SessionMutant {
    pub(super) const ALL: [Self; 12] = [
        Self::JoinAfterCommit,
        Self::CommitWithoutAll,
        Self::LossForgotten,
        Self::FinishedIsLost,
        Self::GivenToCommit,
        Self::CommitTwice,
        Self::SealedIsRolledBack,
        Self::SealedWrites,
        Self::BytesKept,
        Self::PlaceKept,
        Self::ManagerGoneUnnoticed,
        Self::ExpiredComesBack,
    ];
}

#[cfg(test)]
std::thread_local! {
    static ON: std::cell::Cell<Option<SessionMutant>> = const { std::cell::Cell::new(None) };
}

/// Turns this one on, on this thread, and all others off.
#[cfg(test)]
pub(super) fn set(mutant: Option<SessionMutant>) {
    ON.set(mutant);
}

/// Whether this one is on.
#[cfg(test)]
pub(super) fn on(mutant: SessionMutant) -> bool {
    ON.get() == Some(mutant)
}

/// Whether this one is on.
#[cfg(not(test))]
pub(super) const fn on(_: SessionMutant) -> bool {
    false
}
