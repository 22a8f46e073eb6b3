//! The state from which decisions are made.

use std::cell::RefCell;
use std::sync::Arc;

use percolator_engine::Engine;
use percolator_protocol::actions::CellView;
use percolator_protocol::lease::{Lease, NotLeased};
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::{Lock, Timestamp};

use crate::arriving::Arriving;
use crate::cache::CellCache;
use crate::leaving::Leaving;
use crate::limits::Limits;
use crate::marks::Marks;
use crate::observed::Observed;
use crate::peers::ServerIncarnation;
use crate::points::ServerPoints;
use crate::probe::{Probe, Silent};
use crate::rates::Rates;
use crate::readers::Readers;
use crate::recent::Recent;
use crate::store::{self, FolderProgress, LockFilter};
use crate::tablets::Tablets;
use crate::{Error, Refusal};

/// The stored state, and the memory beside it. Decisions only read it. Their effects change it.
pub(crate) struct State {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) limits: Limits,
    /// This server.
    pub(crate) me: ServerIncarnation,
    pub(crate) tablets: Tablets,
    /// The tablets that leave for other servers, and those that arrive.
    pub(crate) leaving: Leaving,
    pub(crate) arriving: Arriving,
    /// The master drains this server: it gets no tablets.
    pub(crate) draining: bool,
    /// The observed columns.
    pub(crate) observed: Observed,
    /// The cells that may be locked.
    pub(crate) filter: LockFilter,
    /// The newest write record of each cell, or one above it.
    pub(crate) records: Marks,
    /// The newest versions of cells.
    pub(crate) cache: RefCell<CellCache>,
    /// The highest timestamps at which cells were read.
    pub(crate) readers: RefCell<Readers>,
    /// The cells that have changed lately in followed tables.
    pub(crate) recent: RefCell<Recent>,
    /// The load of each tablet.
    pub(crate) rates: RefCell<Rates>,
    /// The points of collection.
    pub(crate) points: ServerPoints,
    /// The lease: up to here the server may answer.
    pub(crate) lease: Lease,
    /// The receiver of reports about the work.
    pub(crate) probe: Box<dyn Probe>,
}

impl State {
    /// Reads the stored state. `reached` was read before.
    pub(crate) fn load(
        engine: Arc<dyn Engine>,
        limits: Limits,
        me: ServerIncarnation,
        reached: FolderProgress,
    ) -> Result<Self, Error> {
        let arriving = Arriving::load(&*engine)?;
        let mut tablets = Tablets::load(&*engine)?;
        for tablet in arriving.tablets() {
            tablets.arrives(tablet.id, tablet.epoch + 1);
        }
        Ok(Self {
            tablets,
            leaving: Leaving::default(),
            draining: false,
            arriving,
            observed: Observed::load(&*engine)?,
            filter: LockFilter::load(&*engine)?,
            records: Marks::at(reached.high_ts, limits.marks),
            cache: RefCell::new(CellCache::new(limits.cache_bytes)),
            readers: RefCell::new(Readers::new(reached.read_ts, limits.marks)),
            recent: RefCell::new(Recent::new(reached.high_ts, limits.followed_ms)),
            rates: RefCell::default(),
            points: ServerPoints::load(&*engine)?,
            lease: Lease::default(),
            probe: Box::new(Silent),
            engine,
            limits,
            me,
        })
    }

    /// Checks that a request is addressed to this incarnation of this server.
    pub(crate) fn check_addressee(&self, to: Option<ServerIncarnation>) -> Result<(), Refusal> {
        match to {
            Some(to) if to == self.me => Ok(()),
            meant => Err(Refusal::OtherServer {
                meant,
                this: self.me.clone(),
            }),
        }
    }

    /// Checks that the master has accepted this incarnation, with its folder, and has answered lately. Before that the server
    /// doesn't know what an earlier incarnation has promised to readers, and its folder may be an older one.
    pub(crate) fn check_leased(&self) -> Result<(), NotLeased> {
        self.lease.admit(Timestamp::ZERO.next())
    }

    /// No snapshot above this one has read anything here without a lock, in this incarnation or an earlier one that may still
    /// answer.
    pub(crate) fn read_ts(&self) -> Timestamp {
        let highest = self.readers.borrow().highest();
        // The master's wait for the lease of an earlier incarnation covers this, too: only without both is a result wrong.
        if mutants::on(Mutant::LeaseNotAwaited) {
            return highest;
        }
        highest.max(self.lease.commits_above)
    }

    /// The state of the cell, as far as the transaction `start_ts` is concerned. Records may be collected: if none is found
    /// below resolved, the outcome is not known, and the request is refused.
    pub(crate) fn recalled(
        &self,
        key: &[u8],
        start_ts: Timestamp,
        commit_ts: Option<Timestamp>,
    ) -> Result<CellView, Refusal> {
        let view = self.view(key, start_ts, commit_ts)?;
        self.points.now().recall(&view, start_ts)?;
        Ok(view)
    }

    pub(crate) fn view(
        &self,
        key: &[u8],
        start_ts: Timestamp,
        commit_ts: Option<Timestamp>,
    ) -> Result<CellView, Error> {
        self.view_knowing(None, key, start_ts, commit_ts)
    }

    /// The same, with the cell's lock if it was read before.
    pub(crate) fn view_knowing(
        &self,
        lock: Option<Lock>,
        key: &[u8],
        start_ts: Timestamp,
        commit_ts: Option<Timestamp>,
    ) -> Result<CellView, Error> {
        self.probe.loading();
        // Tests read the lock anyway, so that each of them checks that it has not changed.
        debug_assert!(
            lock.is_none()
                || mutants::on(Mutant::NoLatches)
                || store::stored_lock(&*self.engine, key)? == lock,
            "a lock that has changed since it was found"
        );
        let view = store::view(
            &*self.engine,
            &self.filter,
            &self.records,
            lock,
            key,
            start_ts,
            commit_ts,
        );
        self.probe.loaded();
        view
    }
}
