//! What decisions are made from.

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

/// What is stored, and what memory knows of it. Decisions only read it; it changes by what they decided.
pub(crate) struct State {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) limits: Limits,
    /// This server.
    pub(crate) me: ServerIncarnation,
    pub(crate) tablets: Tablets,
    /// Those that are on their way to other servers, and those that come from others.
    pub(crate) leaving: Leaving,
    pub(crate) arriving: Arriving,
    /// This server is to have no tablets, as the master has said: it gets none from others.
    pub(crate) draining: bool,
    /// Which columns are observed.
    pub(crate) observed: Observed,
    /// Which cells may be locked.
    pub(crate) filter: LockFilter,
    /// The newest write record of each cell, or one above it.
    pub(crate) records: Marks,
    /// The newest versions.
    pub(crate) cache: RefCell<CellCache>,
    /// The highest timestamps that cells were read at.
    pub(crate) readers: RefCell<Readers>,
    /// What has changed of late in tables that somebody follows.
    pub(crate) recent: RefCell<Recent>,
    /// How much each tablet is used.
    pub(crate) rates: RefCell<Rates>,
    /// The barrier and the safe point.
    pub(crate) points: ServerPoints,
    /// How far the server may answer.
    pub(crate) lease: Lease,
    /// Who is told of the work.
    pub(crate) probe: Box<dyn Probe>,
}

impl State {
    /// Reads what is stored, of which `reached` was read before.
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

    /// Whether the master has accepted this start of the server, with its folder, and was heard lately. Before that the server
    /// doesn't know what readers at an earlier one were promised, and its folder may be an older one.
    pub(crate) fn check_leased(&self) -> Result<(), NotLeased> {
        self.lease.admit(Timestamp::ZERO.next())
    }

    /// No snapshot above this one has been read here without a lock that can be read, by this incarnation or an earlier
    /// one that may go on.
    pub(crate) fn read_ts(&self) -> Timestamp {
        let highest = self.readers.borrow().highest();
        // The master's wait for the lease of an earlier one covers this too: only without both is something wrong.
        if mutants::on(Mutant::LeaseNotAwaited) {
            return highest;
        }
        highest.max(self.lease.commits_above)
    }

    /// The cell's state as far as the transaction `start_ts` is concerned, of which something may have been
    /// collected: where nothing is found of it, that isn't known, and no answer.
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

    /// The same, where the cell's lock may be known.
    pub(crate) fn view_knowing(
        &self,
        lock: Option<Lock>,
        key: &[u8],
        start_ts: Timestamp,
        commit_ts: Option<Timestamp>,
    ) -> Result<CellView, Error> {
        self.probe.loading();
        // Asked all the same in tests, so that every one of them sees that nothing comes in between.
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
