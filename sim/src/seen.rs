//! Something that was seen, as everybody says it who takes part in a run: to the invariants.

use std::time::Duration;

use percolator_engine::{Batch, Engine};
use percolator_protocol::election::StateNumber;
use percolator_protocol::oracle::Granted;
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{Cell, Timestamp};
use percolator_tablet::{Limits, Usage};
use percolator_wire::v1;

use crate::world::NodeId;

/// How far a state of the master is: what only grows in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShownState {
    /// The barrier, or zero.
    pub barrier: u64,
    /// The safe point, or zero.
    pub safe_point: u64,
    /// Tables up to and without this one were made.
    pub next_table: u32,
}

/// Something that was seen.
pub enum Seen<'a> {
    /// The oracle hands these out.
    Granted(Granted),
    /// The only oracle was told that nobody may commit at or below this.
    Bounded(Timestamp),
    /// One of several oracles or masters has answered as the leader.
    Led {
        /// Of the oracles or the masters.
        role: &'static str,
        /// Which.
        server: &'a str,
        /// In which term.
        term: u64,
    },
    /// One of several masters serves a directory in this term, and the register has the state of that one.
    ServedState {
        /// The term of the directory.
        term: u64,
        /// The term of the durable state's writer.
        stored_term: u64,
    },
    /// One of several masters shows what its durable state doesn't have.
    ShownEarly {
        /// Which.
        server: &'a str,
        /// What it shows.
        missing: &'static str,
    },
    /// One of several masters has shown this, or a later state, in this term.
    ShownState(u64, ShownState),
    /// A state of a master that leads is durable, in the register or in the folders of all that could take over.
    DurableState(StateNumber),
    /// A new leader goes on from this state.
    OpenedState {
        /// Its term.
        term: u64,
        /// Which state it is.
        number: StateNumber,
        /// How far it is.
        state: ShownState,
    },
    /// A client got a timestamp.
    Received {
        /// The timestamp.
        ts: Timestamp,
        /// The highest that anybody had when this one was asked for.
        after: Timestamp,
    },
    /// A server's group is durable, and will be answered.
    Durable {
        /// Whose.
        server: &'a str,
        /// The group.
        group: &'a [Batch],
    },
    /// A server has started again.
    Reopened {
        /// Which.
        server: &'a str,
        /// What it holds.
        engine: &'a dyn Engine,
        /// A group that was on its way when it died; empty: none.
        maybe: &'a [Batch],
    },
    /// A tablet server that was drained is gone with its folder.
    Removed {
        /// Which.
        server: &'a str,
    },
    /// A server says which tablets it owns.
    Owns {
        /// Which.
        server: &'a str,
        /// Its tablets.
        tablets: &'a [v1::TabletInfo],
    },
    /// A tablet server has durably reached these points.
    Points {
        /// Which.
        server: &'a str,
        /// How far it is.
        points: Points,
        /// When, in the world's time; none: some clock went fast or slow, so that no length of time is promised.
        time: Option<Duration>,
    },
    /// Versions may be kept for so long from now on, and no longer: the cluster begins with that, or somebody asks for it.
    RetentionAsked(Duration),
    /// Somebody who asked for a retention was answered: that of the beginning is in force no more.
    RetentionSet,
    /// A client got the answer that its transaction, which began at this timestamp, is too old.
    TooOld(Timestamp),
    /// A client asks for a lease at this floor, or gives its lease back where it is 0.
    LeaseAsked {
        /// Its session.
        session: u64,
        /// From where on nothing is to be refused.
        floor: Timestamp,
    },
    /// A client was answered that the lock on its transaction's primary lives for so long.
    KeptAlive {
        /// The transaction.
        start_ts: Timestamp,
        /// The tablet of its primary.
        tablet: u64,
        /// The client's process.
        by: NodeId,
        /// Milliseconds after start_ts.
        ttl_ms: u64,
    },
    /// Somebody asks that a transaction be rolled back.
    EndAsked {
        /// The transaction.
        start_ts: Timestamp,
        /// The process that asks.
        by: NodeId,
        /// Whatever its age.
        forced: bool,
    },
    /// Somebody asks that this table be deleted.
    DeletionAsked(u32),
    /// Somebody who has only asked what became of this transaction is answered that it is rolled back.
    FoundRolledBack(Timestamp),
    /// A client was answered.
    LeaseGranted {
        /// Its session.
        session: u64,
        /// What it asked for.
        floor: Timestamp,
        /// What may be refused already.
        barrier: Timestamp,
        /// When the lease ends, in the world's time, counted from when it was asked for.
        until: Duration,
    },
    /// What a tablet server holds in memory.
    Holds {
        /// As it counts now.
        held: Usage,
        /// What it may hold.
        limits: &'a Limits,
    },
    /// What the master holds in memory besides its state.
    MasterHolds(percolator_gc_master::DirectoryStats),
    /// A tablet server with nothing under way has so many locks in memory, and so many on its disk.
    Locks {
        /// As its memory counts.
        counted: usize,
        /// What is stored.
        stored: usize,
    },
    /// A tablet server answers.
    Answered {
        /// The answer.
        response: &'a v1::Response,
        /// What it may say at a time.
        limits: &'a Limits,
    },
    /// A tablet server says that it has resolved locks of a transaction that committed.
    Resolved {
        /// The transaction.
        start_ts: Timestamp,
        /// Those of them that it has.
        left: Vec<Cell>,
    },
}
