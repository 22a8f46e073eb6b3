//! A replica of the model: an oracle's, or a master's.

use crate::election::{
    Command, Election, Member, OracleReplica, RoleKind, StoredLeadership, SwapResult, Timing,
};
use crate::oracle::{Now, Settings};

/// What the world elects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Elected {
    Oracle,
    Master,
}

pub(super) enum Replica {
    Oracle(Box<OracleReplica>),
    Master(Box<Election>),
}

impl Replica {
    pub(super) fn new(elected: Elected, member: Member, dead: Vec<u64>, timing: Timing) -> Self {
        match elected {
            Elected::Oracle => {
                let oracle = OracleReplica::new(member, dead, timing, Settings::default());
                Self::Oracle(Box::new(oracle))
            }
            Elected::Master => Self::Master(Box::new(Election::new(member, dead, timing))),
        }
    }

    pub(super) fn poll(&mut self, now: Now) -> Option<Command> {
        match self {
            Self::Oracle(oracle) => oracle.poll(now),
            Self::Master(master) => master.poll(now.mono_ms),
        }
    }

    pub(super) fn loaded(&mut self, now: Now, result: Result<Option<StoredLeadership>, ()>) {
        match self {
            Self::Oracle(oracle) => oracle.loaded(now, result),
            Self::Master(master) => master.loaded(now.mono_ms, result),
        }
    }

    pub(super) fn swapped(&mut self, now: Now, result: SwapResult) {
        match self {
            Self::Oracle(oracle) => oracle.swapped(now, result),
            Self::Master(master) => master.swapped(now.mono_ms, result),
        }
    }

    pub(super) fn role(&self) -> RoleKind {
        match self {
            Self::Oracle(oracle) => oracle.role(),
            Self::Master(master) => master.role(),
        }
    }

    pub(super) fn hand_over(&mut self) {
        match self {
            Self::Oracle(oracle) => oracle.hand_over(),
            Self::Master(master) => master.hand_over(),
        }
    }
}
