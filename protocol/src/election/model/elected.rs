//! A replica of the model: an oracle's, or a master's.

use crate::election::{
    Command, Election, MasterReplica, Member, OracleReplica, Peer, PromiseCall, PromiseRecord,
    PromiseRequest, PromiseRound, RoleKind, StoredLeadership, SwapResult, Timing,
};
use crate::oracle::{Now, Settings};
use crate::types::Timestamp;

/// The kind of replicas that the world elects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Elected {
    Oracle,
    /// Without a state.
    Master,
    /// With one.
    States,
}

pub(super) enum Replica {
    Oracle(Box<OracleReplica>),
    Master(Box<Election>),
    States(Box<MasterReplica>),
}

impl Replica {
    pub(super) fn new(elected: Elected, member: Member, dead: Vec<u64>, timing: Timing) -> Self {
        match elected {
            Elected::Oracle => {
                let oracle = OracleReplica::new(member, dead, timing, Settings::default());
                Self::Oracle(Box::new(oracle))
            }
            Elected::Master => Self::Master(Box::new(Election::new(member, dead, timing))),
            Elected::States => Self::States(Box::new(MasterReplica::new(member, dead, timing))),
        }
    }

    pub(super) fn poll(&mut self, now: Now) -> Option<Command> {
        match self {
            Self::Oracle(oracle) => oracle.poll(now),
            Self::Master(master) => master.poll(now.mono_ms),
            Self::States(master) => master.poll(now.mono_ms),
        }
    }

    pub(super) fn loaded(&mut self, now: Now, result: Result<Option<StoredLeadership>, ()>) {
        match self {
            Self::Oracle(oracle) => oracle.loaded(now, result),
            Self::Master(master) => master.loaded(now.mono_ms, result),
            Self::States(master) => master.loaded(now.mono_ms, result),
        }
    }

    pub(super) fn swapped(&mut self, now: Now, result: SwapResult) {
        match self {
            Self::Oracle(oracle) => oracle.swapped(now, result),
            Self::Master(master) => master.swapped(now.mono_ms, result),
            Self::States(master) => master.swapped(now.mono_ms, result),
        }
    }

    pub(super) fn role(&self) -> RoleKind {
        match self {
            Self::Oracle(oracle) => oracle.role(),
            Self::Master(master) => master.role(),
            Self::States(master) => master.role(),
        }
    }

    pub(super) fn hand_over(&mut self) {
        match self {
            Self::Oracle(oracle) => oracle.hand_over(),
            Self::Master(master) => master.hand_over(),
            Self::States(master) => master.hand_over(),
        }
    }

    pub(super) fn restore(&mut self, now: Now, record: PromiseRecord) {
        match self {
            Self::Oracle(oracle) => oracle.restore(now, record),
            Self::Master(master) => master.restore(now.mono_ms, record),
            Self::States(master) => master.restore(now.mono_ms, record),
        }
    }

    pub(super) fn promise(&mut self, now: Now, request: &PromiseRequest) -> Option<PromiseRecord> {
        match self {
            Self::Oracle(oracle) => oracle.promise(now, request),
            Self::Master(master) => master.promise(now.mono_ms, request),
            Self::States(master) => master.promise(now.mono_ms, request),
        }
    }

    pub(super) fn ask_promises(&mut self, now: Now) -> Option<PromiseRound> {
        match self {
            Self::Oracle(oracle) => oracle.ask_promises(now),
            Self::Master(master) => master.ask_promises(now.mono_ms, Timestamp::ZERO),
            Self::States(master) => master.ask_promises(now.mono_ms),
        }
    }

    pub(super) fn promised(&mut self, now: Now, call: &PromiseCall) {
        match self {
            Self::Oracle(oracle) => oracle.promised(now, call),
            Self::Master(master) => master.promised(now.mono_ms, call),
            Self::States(master) => master.promised(now.mono_ms, call),
        }
    }

    pub(super) fn kept(&mut self, now: Now, record: &PromiseRecord) {
        match self {
            Self::Oracle(oracle) => oracle.kept(now, record),
            Self::Master(master) => master.kept(record),
            Self::States(master) => master.kept(record),
        }
    }

    pub(super) fn is_term_kept(&self) -> bool {
        match self {
            Self::Oracle(oracle) => oracle.election().is_term_kept(),
            Self::Master(master) => master.is_term_kept(),
            Self::States(master) => master.election().is_term_kept(),
        }
    }

    pub(super) fn record(&self) -> PromiseRecord {
        match self {
            Self::Oracle(oracle) => oracle.record(),
            Self::Master(master) => master.record(),
            Self::States(master) => master.record(),
        }
    }

    pub(super) fn introduces_to(&self) -> Option<&str> {
        match self {
            Self::Oracle(oracle) => oracle.election().introduces_to(),
            Self::Master(master) => master.introduces_to(),
            Self::States(master) => master.election().introduces_to(),
        }
    }

    pub(super) fn introduced(&mut self, now: Now, peer: &Peer) {
        match self {
            Self::Oracle(oracle) => oracle.introduced(now, peer),
            Self::Master(master) => master.introduced(now.mono_ms, peer),
            Self::States(master) => master.introduced(now.mono_ms, peer),
        }
    }
}
