//! Rules that each request of a client keeps, whatever becomes of it. A request is checked when it is sent, against what
//! the client received before and against the state of the servers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use percolator_client::{Cell, TableId, Timestamp};
use percolator_protocol::actions::Status;
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::response::Body;

use crate::cluster::Cluster;
use crate::network::{Answer, Question};

/// The order of what a client sends and receives.
type Moment = u64;

/// See the module's head.
pub(crate) struct Monitor {
    cluster: Arc<Cluster>,
    notes: Mutex<Notes>,
}

#[derive(Default)]
struct Notes {
    last: Moment,
    /// When the client asked for each timestamp that it has been given.
    timestamps: BTreeMap<u64, Moment>,
    /// When it asked for the first and the last time for each of them, in milliseconds of the test.
    asked_ms: BTreeMap<u64, (u64, u64)>,
    /// When it asked for those that it has not been given.
    asking_ms: BTreeMap<Moment, u64>,
    /// Transactions that this client writes.
    own: BTreeMap<u64, OwnTxn>,
    /// Locks of others that it has met: the primary, and when it met the first one.
    met: BTreeMap<u64, (Cell, Moment)>,
    /// Snapshots at which it reads.
    snapshots: BTreeSet<u64>,
    /// Which transactions commit above which timestamp, by the answers of their primaries.
    pushed: BTreeMap<u64, u64>,
    /// When it received the number of each start of a server.
    incarnations: BTreeMap<(String, u64), Moment>,
}

#[derive(Default)]
struct OwnTxn {
    primary: Option<Cell>,
    /// What each flush writes to each cell; without flushes, the flush is number 0.
    writes: BTreeMap<(Cell, u32), (i32, bytes::Bytes)>,
    /// When it received that these are in place.
    in_place: BTreeMap<(Cell, u32), Moment>,
    one_phase_sent: bool,
    commit_ts: Option<u64>,
    /// The last answer to the commit of the primary was a rejection.
    is_rejected: bool,
}

impl Monitor {
    pub(crate) fn new(cluster: Arc<Cluster>) -> Self {
        Self {
            cluster,
            notes: Mutex::default(),
        }
    }

    /// Which transactions of this client have sent a commit, in one phase or two, of their primaries.
    pub(crate) fn has_sent_commit(&self, start_ts: Timestamp) -> bool {
        let notes = self.notes.lock();
        let own = notes.own.get(&start_ts.as_u64());
        own.is_some_and(|own| own.one_phase_sent || own.commit_ts.is_some())
    }

    /// A tablet server lists a lock of its own, whose transaction it resolves or pushes past `below`.
    pub(crate) fn lists(&self, met: &v1::MetLock, below: Timestamp) {
        let mut notes = self.notes.lock();
        notes.last += 1;
        notes.meets(met);
        notes.snapshots.insert(below.as_u64());
    }

    /// The client sends this.
    pub(crate) fn asks(&self, question: &Question) -> Moment {
        let mut notes = self.notes.lock();
        notes.last += 1;
        if let Question::Timestamp = question {
            let moment = notes.last;
            notes.asking_ms.insert(moment, self.cluster.now_ms());
        }
        if let Question::Tablet(address, request) = question {
            let cells = Cells {
                cluster: &self.cluster,
                tablets: &request.tablets,
            };
            let body = request.body.as_ref().expect("a body");
            match body {
                Ask::Prewrite(prewrite) => notes.prewrites(address, prewrite, &cells),
                Ask::Commit(commit) => notes.commits(commit, &cells),
                Ask::Rollback(rollback) => notes.rolls_back(rollback, &cells),
                Ask::Resolve(resolve) => notes.resolves(resolve, &cells),
                Ask::CheckStatus(check) => notes.checks_status(check),
                Ask::KeepAlive(kept) => {
                    let asked_ms = notes.asked_ms.get(&kept.start_ts);
                    cells.expect_ttl(kept.ttl_ms, *asked_ms.expect("it is the client's"));
                }
                Ask::Get(get) => notes.reads(get.start_ts, &get.bypass),
                Ask::GetOne(get) => notes.reads(get.start_ts, &get.bypass),
                Ask::Scan(scan) => notes.reads(scan.start_ts, &scan.bypass),
                _ => {}
            }
        }
        notes.last
    }

    /// The client receives this answer to what it sent at that moment.
    pub(crate) fn answered(&self, asked: Moment, question: &Question, answer: &Answer) {
        let mut notes = self.notes.lock();
        notes.last += 1;
        let now = notes.last;
        match (question, answer) {
            (_, Answer::Timestamp(timestamp)) => {
                notes.timestamps.insert(timestamp.as_u64(), asked);
                // An attempt that got no answer may have been for this one.
                let first_ms = notes.asking_ms.first_key_value().map(|(_, ms)| *ms);
                let last_ms = notes.asking_ms.remove(&asked).expect("a question");
                let asked_ms = (first_ms.unwrap_or(last_ms), last_ms);
                notes.asked_ms.insert(timestamp.as_u64(), asked_ms);
            }
            (_, Answer::Locate(located)) => {
                for server in &located.tablets {
                    let incarnation = (server.address.clone(), server.incarnation);
                    notes.incarnations.entry(incarnation).or_insert(now);
                }
            }
            (Question::Tablet(address, request), Answer::Tablet(response)) => {
                let cells = Cells {
                    cluster: &self.cluster,
                    tablets: &request.tablets,
                };
                if let (Some(ask), Some(body)) = (&request.body, &response.body) {
                    notes.received(address, ask, body, &cells);
                }
            }
            _ => {}
        }
    }
}

/// The cells that a request names, and what is true of them.
struct Cells<'a> {
    cluster: &'a Cluster,
    tablets: &'a [v1::TabletRef],
}

impl Cells<'_> {
    fn cell(&self, cell: &v1::CellRef) -> Cell {
        // Tablet 4 is the other table's.
        let tablet = self.tablets[cell.tablet as usize];
        let table = TableId(if tablet.id == 4 { 2 } else { 1 });
        Cell::new(table, cell.row.clone(), cell.column.clone())
    }

    fn status(&self, start_ts: u64, primary: &Cell) -> Status {
        let start_ts = Timestamp::from_u64(start_ts);
        self.cluster.status(start_ts, primary)
    }

    /// A ttl counts from start_ts on, and has to last for 3 s from now on.
    fn expect_ttl(&self, ttl_ms: u64, (first_ms, last_ms): (u64, u64)) {
        let left_ms = |asked_ms| ttl_ms.saturating_sub(self.cluster.now_ms() - asked_ms);
        // The timestamp is no older than the question that was answered.
        assert!(
            left_ms(last_ms) >= 2_990 && left_ms(first_ms) <= 3_010,
            "a lock is to last {} to {} ms from now on, not 3 s",
            left_ms(first_ms),
            left_ms(last_ms)
        );
    }
}

impl Notes {
    fn prewrites(&mut self, address: &str, prewrite: &v1::PrewriteRequest, cells: &Cells<'_>) {
        let start_ts = prewrite.start_ts;
        let asked_ms = self.asked_ms.get(&start_ts);
        let asked_ms = *asked_ms.expect("start_ts is a timestamp of this client");
        cells.expect_ttl(prewrite.ttl_ms, asked_ms);
        let of_others = self.own.iter().filter(|(other, _)| **other != start_ts);
        for (other, own) in of_others {
            assert_ne!(own.commit_ts, Some(start_ts), "{other} commits there");
        }
        let own = self.own.entry(start_ts).or_default();
        let primary = Cell::from(prewrite.primary.clone().expect("a primary"));
        let first = own.primary.get_or_insert_with(|| primary.clone());
        assert_eq!(*first, primary, "{start_ts} has two primaries");
        for mutation in &prewrite.mutations {
            let cell = cells.cell(mutation.cell.as_ref().expect("a cell"));
            let write = (mutation.kind, mutation.value.clone());
            let first = own
                .writes
                .entry((cell.clone(), prewrite.generation))
                .or_insert_with(|| write.clone());
            assert_eq!(
                *first, write,
                "flush {} of {start_ts} writes {cell} twice",
                prewrite.generation
            );
        }
        let Some(one_phase) = &prewrite.one_phase else {
            return;
        };
        assert!(!own.one_phase_sent, "{start_ts} asks for one phase twice");
        own.one_phase_sent = true;
        let asked = self.timestamps.get(&one_phase.commit_ts);
        let asked = *asked.expect("the commit_ts is the client's");
        let incarnation = (address.to_owned(), one_phase.incarnation);
        let known = *self
            .incarnations
            .get(&incarnation)
            .expect("the server has sent it");
        assert!(
            known < asked,
            "the commit_ts was taken before the incarnation was known"
        );
        self.takes_commit_ts(start_ts, one_phase.commit_ts);
    }

    fn takes_commit_ts(&self, start_ts: u64, commit_ts: u64) {
        assert!(commit_ts > start_ts, "{start_ts} commits at {commit_ts}");
        assert!(
            !self.own.contains_key(&commit_ts),
            "{start_ts} commits at {commit_ts}, where another one began"
        );
        for (other, own) in &self.own {
            let is_taken = *other != start_ts && own.commit_ts == Some(commit_ts);
            assert!(!is_taken, "{other} commits at {commit_ts} too");
        }
    }

    fn commits(&mut self, commit: &v1::CommitRequest, cells: &Cells<'_>) {
        let start_ts = commit.start_ts;
        for cell in &commit.cells {
            let cell = cells.cell(cell);
            let own_primary = self.own.get(&start_ts).and_then(|own| own.primary.clone());
            if own_primary.as_ref() == Some(&cell) {
                self.commits_primary(start_ts, commit.commit_ts);
                continue;
            }
            let met = self.met.get(&start_ts).map(|(primary, _)| primary.clone());
            let primary = own_primary.or(met).expect("a transaction that it knows");
            let committed = Status::Committed(Timestamp::from_u64(commit.commit_ts));
            let status = cells.status(start_ts, &primary);
            assert_eq!(status, committed, "{cell} is committed for {start_ts}");
        }
    }

    fn commits_primary(&mut self, start_ts: u64, commit_ts: u64) {
        self.takes_commit_ts(start_ts, commit_ts);
        let own = self.own.get_mut(&start_ts).expect("it is the client's");
        if own.commit_ts == Some(commit_ts) {
            return;
        }
        assert!(
            own.commit_ts.is_none() || own.is_rejected,
            "{start_ts} commits at {commit_ts}, and may have at {:?}",
            own.commit_ts
        );
        own.commit_ts = Some(commit_ts);
        own.is_rejected = false;
        let asked = self.timestamps.get(&commit_ts);
        let asked = *asked.expect("the commit_ts is the client's");
        for write in own.writes.keys() {
            let in_place = own.in_place.get(write);
            assert!(
                in_place.is_some_and(|at| *at < asked),
                "{start_ts} took its commit_ts before {} was in place",
                write.0
            );
        }
    }

    fn rolls_back(&mut self, rollback: &v1::RollbackRequest, cells: &Cells<'_>) {
        let start_ts = rollback.start_ts;
        if let Some(own) = self.own.get(&start_ts) {
            // After an unknown outcome its locks are met as those of others.
            let is_over = |primary| cells.status(start_ts, primary) == Status::RolledBack;
            assert!(
                own.commit_ts.is_none()
                    || own.is_rejected
                    || own.primary.as_ref().is_some_and(is_over),
                "{start_ts} is rolled back, and may have committed"
            );
            return;
        }
        // Its own, of which no prewrite was sent.
        if self.timestamps.contains_key(&start_ts) {
            return;
        }
        let (primary, _) = self.met.get(&start_ts).expect("a transaction that it met");
        for cell in &rollback.cells {
            let status = cells.status(start_ts, primary);
            let cell = cells.cell(cell);
            assert_eq!(
                status,
                Status::RolledBack,
                "{cell} of {start_ts} is rolled back"
            );
        }
    }

    fn resolves(&mut self, resolve: &v1::ResolveRequest, cells: &Cells<'_>) {
        let own = self.own.get(&resolve.start_ts);
        let own_primary = own.and_then(|own| own.primary.clone());
        let is_own = own_primary.is_some();
        let met = self.met.get(&resolve.start_ts);
        let met = met.map(|(primary, _)| primary.clone());
        let primary = own_primary.or(met).expect("a transaction that it knows");
        let status = cells.status(resolve.start_ts, &primary);
        if resolve.commit_ts != 0 {
            let commit_ts = Timestamp::from_u64(resolve.commit_ts);
            assert_eq!(status, Status::Committed(commit_ts));
        } else if is_own {
            assert!(!matches!(status, Status::Committed(_)), "{status:?}");
        } else {
            assert_eq!(status, Status::RolledBack);
        }
    }

    fn checks_status(&self, check: &v1::CheckStatusRequest) {
        let asked = self.timestamps.get(&check.now);
        let asked = *asked.expect("the time is a timestamp of this client");
        if let Some((_, met)) = self.met.get(&check.start_ts) {
            assert!(*met < asked, "the time is from before the lock was met");
        }
        if check.push_past != 0 {
            let is_read = self.snapshots.contains(&check.push_past);
            assert!(is_read, "nobody reads at {}", check.push_past);
        }
        let is_younger = self.own.keys().any(|own| *own < check.start_ts);
        assert!(!check.force || is_younger, "an older one is wounded");
    }

    fn reads(&mut self, start_ts: u64, bypass: &[u64]) {
        self.snapshots.insert(start_ts);
        for other in bypass {
            let pushed = self.pushed.get(other).copied().unwrap_or_default();
            assert!(
                pushed > start_ts,
                "a reader at {start_ts} looks through {other}, which commits above {pushed}"
            );
        }
    }

    fn meets(&mut self, met: &v1::MetLock) {
        let primary = Cell::from(met.primary.clone().expect("a primary"));
        self.met.entry(met.start_ts).or_insert((primary, self.last));
    }

    fn received(&mut self, address: &str, ask: &Ask, body: &Body, cells: &Cells<'_>) {
        match (ask, body) {
            (_, Body::Get(got)) => {
                for result in &got.results {
                    if let Some(v1::get_result::Result::Locked(met)) = &result.result {
                        self.meets(met);
                    }
                }
            }
            (_, Body::GetOne(got)) => got.locked.iter().for_each(|met| self.meets(met)),
            (_, Body::Scan(scan)) => scan.locked.iter().for_each(|met| self.meets(met)),
            (Ask::Prewrite(prewrite), Body::Prewrite(received)) => {
                for rejection in &received.rejections {
                    if let Some(v1::prewrite_rejection::Reason::Locked(met)) = &rejection.reason {
                        self.meets(met);
                    }
                }
                self.prewritten(address, prewrite, received, cells);
            }
            (Ask::Commit(commit), Body::Commit(received)) => {
                let is_done = matches!(received.result, Some(v1::commit_response::Result::Done(_)));
                if let Some(own) = self.own.get_mut(&commit.start_ts)
                    && own.commit_ts == Some(commit.commit_ts)
                {
                    own.is_rejected = !is_done;
                }
            }
            (Ask::CheckStatus(check), Body::CheckStatus(received)) => {
                if let Some(v1::check_status_response::Status::Alive(alive)) = &received.status {
                    self.pushed.insert(check.start_ts, alive.min_commit_ts);
                }
            }
            _ => {}
        }
    }

    fn prewritten(
        &mut self,
        address: &str,
        prewrite: &v1::PrewriteRequest,
        received: &v1::PrewriteResponse,
        cells: &Cells<'_>,
    ) {
        let now = self.last;
        let incarnation = (address.to_owned(), received.incarnation);
        self.incarnations.entry(incarnation).or_insert(now);
        if !received.rejections.is_empty() {
            return;
        }
        let own = self.own.entry(prewrite.start_ts).or_default();
        for mutation in &prewrite.mutations {
            let cell = cells.cell(mutation.cell.as_ref().expect("a cell"));
            own.in_place
                .entry((cell, prewrite.generation))
                .or_insert(now);
        }
    }
}
