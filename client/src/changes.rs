//! The changes of a table as a stream: every committed version, in order of commit_ts, each once (`docs/design/changes.md`).
//!
//! Each step reads, at one snapshot, what was committed since the last one. Two transactions hold collection back: that of the
//! step's snapshot, and that of the snapshot up to which the stream has come.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, Stream};
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::{TableId, Timestamp};
use percolator_wire::v1;
use percolator_wire::v1::request::Body as Ask;
use percolator_wire::v1::response::Body;

use crate::location_cache::TabletTarget;
use crate::resolver::unexpected;
use crate::{Client, Error, Txn};

/// Versions asked for at a time.
const PAGE_VERSIONS: u32 = 1024;
/// What a version takes in memory beside its bytes.
const VERSION_BYTES: usize = 128;

/// Which changes, and how they are followed.
#[derive(Clone, Debug)]
pub struct ChangesOptions {
    /// Those committed above this timestamp; `None`: from now on.
    pub from: Option<Timestamp>,
    /// The stream ends when everything up to this was given; `None`: never.
    pub until: Option<Timestamp>,
    /// Only cells of these columns; none: of all.
    pub columns: Vec<Bytes>,
    /// The time between two reads once the present is reached (500 ms).
    pub interval: Duration,
    /// About the most bytes of versions that are in memory at a time (64 MiB). If there are more to be put in order, the table
    /// is read several times.
    pub buffer_bytes: usize,
}

impl Default for ChangesOptions {
    fn default() -> Self {
        Self {
            from: None,
            until: None,
            columns: Vec::new(),
            interval: Duration::from_millis(500),
            buffer_bytes: 64 << 20,
        }
    }
}

/// A committed version of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The row.
    pub row: Bytes,
    /// The column.
    pub column: Bytes,
    /// The value; `None`: the cell was deleted.
    pub value: Option<Bytes>,
    /// When its transaction committed. All versions of a transaction have the same.
    pub commit_ts: Timestamp,
}

impl Version {
    fn place(&self) -> VersionPlace {
        VersionPlace {
            commit_ts: self.commit_ts,
            row: self.row.clone(),
            column: self.column.clone(),
        }
    }

    fn bytes(&self) -> usize {
        let value = self.value.as_ref().map_or(0, Bytes::len);
        VERSION_BYTES + self.row.len() + self.column.len() + value
    }
}

/// Where in the stream a version stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct VersionPlace {
    commit_ts: Timestamp,
    row: Bytes,
    column: Bytes,
}

/// Where a step ends that has no room for more.
#[derive(Clone, Debug)]
enum Cut {
    /// Behind all transactions up to this timestamp.
    Behind(Timestamp),
    /// Behind this version of a transaction that there is no room for.
    Within(VersionPlace),
}

impl Cut {
    fn commit_ts(&self) -> Timestamp {
        match self {
            Self::Behind(ts) => *ts,
            Self::Within(place) => place.commit_ts,
        }
    }

    fn leaves_out(&self, place: &VersionPlace) -> bool {
        match self {
            Self::Behind(ts) => place.commit_ts > *ts,
            Self::Within(last) => place > last,
        }
    }
}

/// What a stream of changes gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeEvent {
    /// A cell has changed.
    Version(Version),
    /// Everything committed up to this was given, and nothing else commits there. A stream `from` it goes on.
    Resolved(Timestamp),
}

/// A stream of changes; see [`Client::changes`].
pub struct Changes {
    client: Client,
    options: ChangesOptions,
    table: TableId,
    /// Everything up to this was given.
    resolved: Timestamp,
    /// Keeps what was committed above `resolved`.
    hold: Option<Txn>,
    /// The snapshot that is being read, if more than one step is needed for that.
    snapshot: Option<Txn>,
    /// Of what is above `resolved`, versions up to this one were given.
    given: Option<VersionPlace>,
    ready: VecDeque<Version>,
    /// To be given behind `ready`.
    next: Option<Timestamp>,
    /// The present was reached: wait before the next scan.
    is_waiting: bool,
}

impl Client {
    /// The changes of a table, in order of commit_ts, each once: puts and deletes.
    ///
    /// # Errors
    /// [`Error::UnknownTable`], [`Error::Timeout`]; [`Error::NoSnapshot`]: `from` lies in the future.
    pub async fn changes(&self, table: &str, options: ChangesOptions) -> Result<Changes, Error> {
        let hold = match options.from {
            Some(from) => self.begin_at(from).await?,
            None => self.begin().await?,
        };
        let resolved = hold.start_ts();
        let request_timeout = self.options().request_timeout;
        Ok(Changes {
            table: self.router.table(table, request_timeout).await?,
            client: self.clone(),
            resolved,
            next: options.from.is_none().then_some(resolved),
            options,
            hold: Some(hold),
            snapshot: None,
            given: None,
            ready: VecDeque::new(),
            is_waiting: false,
        })
    }
}

impl Changes {
    /// Everything committed up to this was given.
    pub fn resolved(&self) -> Timestamp {
        self.resolved
    }

    /// The next event; `None` at the end. It may be dropped before it is there, and called again after an error: nothing is
    /// lost or given twice by that.
    ///
    /// # Errors
    /// [`Error::Timeout`]: a server is away. [`Error::TooOld`]: versions above [`Self::resolved`] may have been collected; a new
    /// stream needs the whole table first. [`Error::UnknownTable`]: the table was deleted.
    pub async fn next(&mut self) -> Result<Option<ChangeEvent>, Error> {
        loop {
            if let Some(version) = self.ready.pop_front() {
                if self.ready.is_empty() && self.next.is_none() {
                    // The step has ended within a transaction.
                    self.given = Some(version.place());
                }
                return Ok(Some(ChangeEvent::Version(version)));
            }
            if let Some(resolved) = self.next.take() {
                self.resolved = resolved;
                return Ok(Some(ChangeEvent::Resolved(resolved)));
            }
            if self
                .options
                .until
                .is_some_and(|until| self.resolved >= until)
            {
                return Ok(None);
            }
            if std::mem::take(&mut self.is_waiting) {
                let transport = self.client.router.world.transport.clone();
                transport.sleep(self.options.interval).await;
            }
            self.step().await?;
        }
    }

    /// The events as a stream, which ends behind an error.
    pub fn into_stream(self) -> impl Stream<Item = Result<ChangeEvent, Error>> + Send {
        stream::try_unfold(self, |mut changes| async move {
            let event = changes.next().await?;
            Ok(event.map(|event| (event, changes)))
        })
    }

    /// Reads the next versions: all up to a snapshot, or as many as there is room for.
    async fn step(&mut self) -> Result<(), Error> {
        // After an error it begins at a snapshot of its own.
        let snapshot = match self.snapshot.take() {
            Some(snapshot) => snapshot,
            None => self.client.begin().await?,
        };
        let now = snapshot.start_ts();
        let until = self.options.until.map_or(now, |until| until.min(now));
        let mut sorter = Sorter {
            given: self.given.clone(),
            until,
            cut: None,
            bytes_max: self.options.buffer_bytes,
            bytes: 0,
            versions: Vec::new(),
        };
        self.read(&snapshot, &mut sorter).await?;
        let cut = sorter.cut.take();
        self.ready = sorter.sorted().into();
        match cut {
            None => {
                (self.next, self.given) = (Some(until), None);
                self.is_waiting = true;
                if self.hold.is_none() || !mutants::on(Mutant::FollowedSinceTheBeginning) {
                    self.hold = Some(snapshot);
                }
            }
            Some(cut) => {
                if let Cut::Behind(ts) = cut {
                    (self.next, self.given) = (Some(ts), None);
                }
                self.snapshot = Some(snapshot);
            }
        }
        Ok(())
    }

    /// Reads all tablets.
    async fn read(&self, snapshot: &Txn, sorter: &mut Sorter) -> Result<(), Error> {
        let router = &self.client.router;
        let inner = &snapshot.inner;
        // A transaction may have been given in part.
        let given = self
            .given
            .as_ref()
            .map(|given| given.commit_ts.as_u64() - 1);
        let above = given.unwrap_or_default().max(self.resolved.as_u64());
        let mut at = Bytes::new();
        let mut after: Option<(v1::CellName, u64)> = None;
        loop {
            let (start_ts, bypass) = inner.snapshot();
            let ask = |_: &TabletTarget| {
                let after = after.clone();
                Ask::Scan(v1::ScanRequest {
                    start_ts,
                    bypass: bypass.clone(),
                    start_row: at.clone(),
                    limit: PAGE_VERSIONS,
                    changed: Some(Box::new(v1::ChangedBetween {
                        above,
                        until: sorter.until.as_u64(),
                        after_ts: after.as_ref().map_or(0, |(_, ts)| *ts),
                        columns: self.options.columns.clone(),
                    })),
                    after: after.map(|(cell, _)| cell),
                    ..v1::ScanRequest::default()
                })
            };
            let row = after
                .as_ref()
                .map_or_else(|| at.clone(), |(cell, _)| cell.row.clone());
            let deadline = router.deadline(self.client.options().request_timeout);
            let failed = |error| {
                deadline.error(
                    &*router.world.transport,
                    "reading the changes of a table",
                    error,
                )
            };
            let asked = router.ask_tablet(self.table, &row, &ask, deadline).await;
            let (tablet, body) = asked.map_err(failed)?;
            let Body::Scan(response) = body else {
                return Err(failed(unexpected()));
            };
            sorter.add(response.cells);
            if !response.locked.is_empty() {
                inner.get_past(response.locked, deadline).await?;
            }
            if !response.done {
                let cell = response.resume.ok_or_else(|| failed(unexpected()))?;
                after = Some((cell, response.resume_ts));
            } else if tablet.end_row.is_empty() {
                return Ok(());
            } else {
                (at, after) = (tablet.end_row, None);
            }
        }
    }
}

/// Puts versions in order, the first ones if there is no room for all.
struct Sorter {
    /// Only those behind it.
    given: Option<VersionPlace>,
    /// Later ones need not be read.
    until: Timestamp,
    /// Later ones were left out.
    cut: Option<Cut>,
    bytes_max: usize,
    bytes: usize,
    versions: Vec<Version>,
}

impl Sorter {
    fn add(&mut self, cells: Vec<v1::ScannedCell>) {
        for cell in cells {
            let version = Version {
                row: cell.row,
                column: cell.column,
                value: (!cell.deleted).then_some(cell.value),
                commit_ts: Timestamp::from_u64(cell.commit_ts),
            };
            let place = version.place();
            let is_given = self.given.as_ref().is_some_and(|given| place <= *given);
            let is_late = self.cut.as_ref().is_some_and(|cut| cut.leaves_out(&place));
            if is_given || is_late || version.commit_ts > self.until {
                continue;
            }
            self.bytes += version.bytes();
            self.versions.push(version);
        }
        if self.bytes > self.bytes_max && self.versions.len() > 1 {
            self.make_room();
        }
    }

    /// Keeps the first half, by its bytes: whole transactions, or a part of the first one.
    fn make_room(&mut self) {
        self.versions.sort_unstable_by_key(Version::place);
        let (mut bytes, mut kept) = (0, 0);
        for version in &self.versions {
            if kept > 0 && bytes + version.bytes() > self.bytes_max / 2 {
                break;
            }
            bytes += version.bytes();
            kept += 1;
        }
        let Some(next) = self.versions.get(kept) else {
            return;
        };
        let whole = &self.versions[..kept];
        let whole = whole.partition_point(|version| version.commit_ts < next.commit_ts);
        let cut = if whole > 0 {
            Cut::Behind(self.versions[whole - 1].commit_ts)
        } else {
            Cut::Within(self.versions[kept - 1].place())
        };
        self.versions.truncate(if whole > 0 { whole } else { kept });
        self.bytes = self.versions.iter().map(Version::bytes).sum();
        self.until = cut.commit_ts();
        self.cut = Some(cut);
    }

    fn sorted(mut self) -> Vec<Version> {
        self.versions.sort_unstable_by_key(Version::place);
        self.versions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(row: &str, commit_ts: u64) -> v1::ScannedCell {
        v1::ScannedCell {
            row: row.to_owned().into(),
            column: "c".into(),
            value: vec![0; 100].into(),
            commit_ts,
            deleted: false,
        }
    }

    /// What steps give of these cells, each of them read by each step.
    fn steps(cells: &[v1::ScannedCell], bytes_max: usize) -> Vec<Vec<(u64, Bytes)>> {
        let mut steps = Vec::new();
        let (mut given, mut above) = (None, 0);
        loop {
            let mut sorter = Sorter {
                given: given.take(),
                until: Timestamp::from_u64(100),
                cut: None,
                bytes_max,
                bytes: 0,
                versions: Vec::new(),
            };
            for cell in cells.iter().filter(|cell| cell.commit_ts > above) {
                sorter.add(vec![cell.clone()]);
                let held: usize = sorter.versions.iter().map(Version::bytes).sum();
                assert!(held == sorter.bytes && (held <= bytes_max || sorter.versions.len() == 1));
            }
            let cut = sorter.cut.take();
            let versions = sorter.sorted();
            let places = versions
                .into_iter()
                .map(|it| (it.commit_ts.as_u64(), it.row));
            steps.push(places.collect());
            match cut {
                None => return steps,
                Some(Cut::Behind(ts)) => above = ts.as_u64(),
                Some(Cut::Within(place)) => given = Some(place),
            }
        }
    }

    #[test]
    fn what_there_is_no_room_for_comes_in_later_steps_in_order_and_once() {
        let mut cells: Vec<_> = (0..50_u64)
            .map(|number| cell(&format!("r{number}"), 1 + number * 37 % 50))
            .collect();
        // A transaction that has no room at a time.
        cells.extend((0..20).map(|number| cell(&format!("s{number}"), 7)));
        cells.push(cell("later", 101));
        let mut expected: Vec<_> = cells[..70]
            .iter()
            .map(|cell| (cell.commit_ts, cell.row.clone()))
            .collect();
        expected.sort();
        for bytes_max in [1, 500, 2_000, 5_000, 1 << 20] {
            let steps = steps(&cells, bytes_max);
            assert_eq!(steps.len() == 1, bytes_max == 1 << 20);
            assert_eq!(steps.concat(), expected, "{bytes_max}");
        }
    }
}
