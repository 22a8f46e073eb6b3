//! What must hold, one file each, which says where it comes from. Some are no [`Invariant`]: "durable" needs what
//! each server should hold, which `watch` knows, "liveness" goes on with the run, and "leases hold" and "errors are true" are
//! asked by anyone who is refused. "Floors cover" is asked where a client
//! asks for its lease, and "accepted before it writes" where a server sends a group to its disk.

mod atomicity;
mod bounded_memory;
mod collected_rightly;
mod collection_ends;
mod commit_above_start;
pub(crate) mod durable;
mod durable_answers;
mod durable_masters;
pub(crate) mod errors;
pub(crate) mod exact_reads;
mod first_committer;
pub(crate) mod floors_cover;
mod granted_leases;
mod isolation;
pub(crate) mod leases_hold;
pub(crate) mod liveness;
#[cfg(test)]
mod made_up;
mod nothing_overlooked;
mod one_fate;
mod one_leader;
mod one_lock;
mod one_outcome;
mod one_owner;
mod points_go_forward;
mod recency;
mod renewals_hold;
mod resolved;
mod retention_holds;
mod stays_dropped;
mod successors;
mod timestamps;

use std::time::Duration;

use percolator_protocol::election::StateNumber;
use percolator_protocol::oracle::Granted;
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{Cell, Timestamp};
use percolator_tablet::{Limits, Usage};
use percolator_wire::v1;

use crate::end::End;
use crate::seen::ShownState;
use crate::watch::Change;
use crate::workloads;
use crate::world::NodeId;

/// Something that must hold. Told of everything that happens, in the order in which it does; a text says
/// how it was broken.
#[allow(unused_variables, reason = "what an invariant doesn't look at")]
#[allow(
    clippy::missing_errors_doc,
    reason = "how it was broken, for all of them"
)]
pub trait Invariant: Send {
    /// Its name, as in messages and tables.
    fn name(&self) -> &'static str;

    /// The oracle hands out timestamps.
    fn granted(&mut self, granted: Granted) -> Result<(), String> {
        Ok(())
    }

    /// One of several oracles or masters has answered as the leader.
    fn led(&mut self, role: &'static str, server: &str, term: u64) -> Result<(), String> {
        Ok(())
    }

    /// One of several masters serves a directory in this term; the durable state was written in that one.
    fn served_state(&mut self, term: u64, stored_term: u64) -> Result<(), String> {
        Ok(())
    }

    /// One of several masters shows what its durable state doesn't have.
    fn shown_early(&mut self, server: &str, missing: &str) -> Result<(), String> {
        Ok(())
    }

    /// One of several masters has shown this in its term.
    fn shown_state(&mut self, term: u64, shown: ShownState) -> Result<(), String> {
        Ok(())
    }

    /// A state of one of several masters is durable.
    fn durable_state(&mut self, number: StateNumber) -> Result<(), String> {
        Ok(())
    }

    /// One of several masters leads in this term, and goes on from this state.
    fn opened_state(
        &mut self,
        term: u64,
        number: StateNumber,
        opened: ShownState,
    ) -> Result<(), String> {
        Ok(())
    }

    /// The only oracle was told that nobody may commit at or below this.
    fn bounded(&mut self, above: Timestamp) -> Result<(), String> {
        Ok(())
    }

    /// A client has a timestamp; `after` was the highest that anybody had when it asked.
    fn received(&mut self, ts: Timestamp, after: Timestamp) -> Result<(), String> {
        Ok(())
    }

    /// A server's durable state changes.
    fn changed(&mut self, change: &Change) -> Result<(), String> {
        Ok(())
    }

    /// A tablet server that was drained is gone with its folder. Another one may have its name later.
    fn removed(&mut self, server: &str) -> Result<(), String> {
        Ok(())
    }

    /// A server owns these tablets, and no others.
    fn owns(&mut self, server: &str, tablets: &[v1::TabletInfo]) -> Result<(), String> {
        Ok(())
    }

    /// A tablet server has durably reached these points; at this time of the world, unless a clock went fast or slow.
    fn points(
        &mut self,
        server: &str,
        points: Points,
        time: Option<Duration>,
    ) -> Result<(), String> {
        Ok(())
    }

    /// Versions may be kept for so long from now on, and no longer.
    fn retention_asked(&mut self, retention: Duration) -> Result<(), String> {
        Ok(())
    }

    /// One that was asked for is in force, or a later one: that of the beginning is not.
    fn retention_set(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// A client got the answer that what began at this timestamp is too old.
    fn too_old(&mut self, start_ts: Timestamp) -> Result<(), String> {
        Ok(())
    }

    /// A client asks for a lease, or gives its lease back.
    fn lease_asked(&mut self, session: u64, floor: Timestamp) -> Result<(), String> {
        Ok(())
    }

    /// A client was answered that the lock on its transaction's primary lives for so long after start_ts.
    fn kept_alive(
        &mut self,
        start_ts: Timestamp,
        (tablet, by): (u64, NodeId),
        ttl_ms: u64,
    ) -> Result<(), String> {
        Ok(())
    }

    /// Some process asks that a transaction be rolled back. `forced`: whatever its age.
    fn end_asked(&mut self, start_ts: Timestamp, by: NodeId, forced: bool) -> Result<(), String> {
        Ok(())
    }

    /// Somebody asks that a table be deleted.
    fn deletion_asked(&mut self, table: u32) -> Result<(), String> {
        Ok(())
    }

    /// Somebody who has asked what became of a transaction, and for nothing else, is answered that it is rolled back.
    fn found_rolled_back(&mut self, start_ts: Timestamp) -> Result<(), String> {
        Ok(())
    }

    /// A client has a lease until this time of the world.
    fn lease_granted(
        &mut self,
        session: u64,
        floor: Timestamp,
        barrier: Timestamp,
        until: Duration,
    ) -> Result<(), String> {
        Ok(())
    }

    /// A tablet server holds this in memory.
    fn holds(&mut self, held: &Usage, limits: &Limits) -> Result<(), String> {
        Ok(())
    }

    /// The master holds this in memory.
    fn master_holds(&mut self, held: &percolator_gc_master::DirectoryStats) -> Result<(), String> {
        Ok(())
    }

    /// A tablet server with nothing under way counts so many locks, and so many are stored.
    fn locks(&mut self, counted: usize, stored: usize) -> Result<(), String> {
        Ok(())
    }

    /// A tablet server answers.
    fn answered(&mut self, response: &v1::Response, limits: &Limits) -> Result<(), String> {
        Ok(())
    }

    /// A tablet server says that it has resolved the locks of a transaction that committed, and has these left of
    /// those that it was asked for.
    fn resolved(&mut self, start_ts: Timestamp, left: &[Cell]) -> Result<(), String> {
        Ok(())
    }

    /// The run is over.
    fn at_end(&mut self, end: &End<'_>) -> Result<(), String> {
        Ok(())
    }
}

/// The highest of these.
fn last_of(granted: Granted) -> Timestamp {
    Timestamp::from_u64(granted.first.as_u64() + u64::from(granted.count) - 1)
}

pub(crate) use durable::NAME as DURABLE;
pub(crate) use nothing_overlooked::NAME as NOTHING_OVERLOOKED;

/// A tablet server writes nothing before a master has accepted this start of it, and with that the folder (`docs/design/fencing.md`).
pub(crate) const ACCEPTED: &str = "accepted before it writes";
/// What a run looks at when its cluster was made again: a client takes none for another.
pub(crate) const NEW_CLUSTER: &str = "clusters are told apart";
/// What a run looks at when a tablet server has lost its folder: it says so, and nobody is told that nothing was there.
pub(crate) const LOST_FOLDER: &str = "lost data is missed";

/// The names of all there are, also of what is no [`Invariant`] and of what workloads look at.
pub fn names() -> Vec<&'static str> {
    let watched = all().into_iter().map(|invariant| invariant.name());
    let workloads = workloads::all();
    let looked_at = workloads.iter().flat_map(|workload| workload.invariants());
    watched
        .chain([
            DURABLE,
            errors::NAME,
            leases_hold::NAME,
            floors_cover::NAME,
            ACCEPTED,
            NEW_CLUSTER,
            LOST_FOLDER,
        ])
        .chain(liveness::NAMES)
        .chain(looked_at.copied())
        .collect()
}

/// An invariant's name as an argument: `one-lock-a-cell`.
pub fn argument(name: &str) -> String {
    name.replace(": ", "-").replace(' ', "-")
}

/// The invariant of this name, as it is or as an argument.
pub fn named(name: &str) -> Option<&'static str> {
    let is_it = |known: &&'static str| *known == name || argument(known) == name;
    names().into_iter().find(is_it)
}

/// All of them, new.
pub fn all() -> Vec<Box<dyn Invariant>> {
    vec![
        Box::new(timestamps::Timestamps::default()),
        Box::new(commit_above_start::CommitAboveStart),
        Box::new(one_lock::OneLock),
        Box::new(one_outcome::OneOutcome::default()),
        Box::new(one_fate::OneFate::default()),
        Box::new(one_owner::OneOwner::default()),
        Box::new(one_leader::OneLeader::default()),
        Box::new(durable_masters::DurableMasters),
        Box::new(successors::Successors::default()),
        Box::new(points_go_forward::PointsGoForward::default()),
        Box::new(retention_holds::RetentionHolds::default()),
        Box::new(granted_leases::GrantedLeases::default()),
        Box::new(renewals_hold::RenewalsHold::default()),
        Box::new(collected_rightly::CollectedRightly),
        Box::new(stays_dropped::StaysDropped::default()),
        Box::new(resolved::Resolved),
        Box::new(bounded_memory::BoundedMemory),
        Box::new(durable_answers::DurableAnswers),
        Box::new(atomicity::Atomicity),
        Box::new(exact_reads::ExactReads),
        Box::new(first_committer::FirstCommitter),
        Box::new(nothing_overlooked::NothingOverlooked),
        Box::new(recency::Recency),
        Box::new(isolation::Isolation),
    ]
}
