//! Scans for changes: they read every version that was committed in a tablet between two timestamps. The rules are a reader's at
//! the upper one: a lock whose transaction could commit at or below it blocks the scan, and later prewrites commit above it. So
//! no version is added to such a response later (`docs/design/changes.md`).

use percolator_engine::{Column, Direction};
use percolator_protocol::actions::Snapshot;
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::{Cell, Lock, Tablet, Timestamp, Write, WriteKind, key};
use percolator_wire::v1;
use percolator_wire::v1::response::Body;

use crate::reads::has_read;
use crate::scan_part::{CellRange, locks_in, met_from};
use crate::state::State;
use crate::work::invalid;
use crate::{Error, Refusal, store};

/// Records of one cell that are passed one by one if none of them is requested.
const PASSED_MAX: usize = 8;

/// The requested changes.
struct ChangeFilter<'a> {
    above: Timestamp,
    until: Timestamp,
    columns: &'a [bytes::Bytes],
    limit: usize,
}

/// Scans the tablet that the request names `asked`.
pub(crate) fn scan(
    state: &State,
    asked: &v1::TabletRef,
    snapshot: Snapshot<'_>,
    changed: &v1::ChangedBetween,
    request: &v1::ScanRequest,
) -> Result<Body, Refusal> {
    let tablet = state.tablets.serving(asked.id, asked.epoch)?;
    let until = Timestamp::from_u64(changed.until);
    let above = Timestamp::from_u64(changed.above);
    if request.reverse || request.own || until > snapshot.ts || above > until {
        return Err(invalid(
            "a scan for changes goes forward, from one timestamp to a later one that is not above its snapshot",
        ));
    }
    // Versions that were hidden below the barrier may be gone.
    state.points.now().admit_read(above)?;
    let limit = match request.limit as usize {
        0 => state.limits.scan_cells,
        limit => limit.min(state.limits.scan_cells),
    };
    let wanted = ChangeFilter {
        above,
        until,
        columns: &changed.columns,
        limit,
    };
    state.readers.borrow_mut().scan(tablet.id, snapshot.ts);
    state.recent.borrow_mut().follow(tablet, snapshot.ts);
    let (range, start) = range_of(tablet, changed, request);
    // Locks first, as in `reads`.
    let mut obstacle = ScanObstacle::find(state, snapshot, &range)?;
    if let Some(obstacle) = &mut obstacle
        && obstacle.end < start
    {
        // The lock is on the cell at which the scan continues, and is newer than the versions that were sent.
        obstacle.resume_ts = changed.after_ts;
        obstacle.end.clone_from(&start);
    }
    let end = obstacle.as_ref().map_or(&range.end, |it| &it.end);
    let mut page = Page::default();
    read(state, tablet, &wanted, (&start, end), &mut page)?;
    has_read(state, Some(asked), page.bytes);
    let mut response = v1::ScanResponse {
        cells: page.versions,
        ..Default::default()
    };
    match (page.resume, obstacle) {
        (Some((cell_key, ts)), _) => {
            response.resume = Some((&key::decode_cell(&cell_key).map_err(Error::from)?).into());
            response.resume_ts = ts.as_u64();
        }
        (None, Some(obstacle)) => {
            response.resume = Some((&obstacle.cell).into());
            response.resume_ts = obstacle.resume_ts;
            response.locked = obstacle.met;
        }
        (None, None) => response.done = true,
    }
    Ok(Body::Scan(response))
}

/// The range in which locks are searched, and the key from which versions are read.
fn range_of(
    tablet: &Tablet,
    changed: &v1::ChangedBetween,
    request: &v1::ScanRequest,
) -> (CellRange, Vec<u8>) {
    let rows = tablet.rows.within(&request.start_row, &request.end_row);
    let first_row = key::row_bound(tablet.table, &rows.start);
    let (locks_start, start) = match &request.after {
        None => (first_row.clone(), first_row),
        Some(after) => {
            let cell_key = store::cell_key(&Cell::from(after.clone()));
            let (locks_start, start) = match changed.after_ts {
                0 => {
                    let behind = key::behind_cell(cell_key);
                    (behind.clone(), behind)
                }
                ts => {
                    let version = key::version(cell_key.clone(), Timestamp::from_u64(ts));
                    (cell_key, version)
                }
            };
            (locks_start.max(first_row.clone()), start.max(first_row))
        }
    };
    let range = CellRange {
        start: locks_start,
        end: key::rows_end(tablet.table, &rows.end),
        reverse: false,
    };
    (range, start)
}

/// A lock, or the limit of locks, that ends a page before the end of the range.
struct ScanObstacle {
    end: Vec<u8>,
    cell: Cell,
    resume_ts: u64,
    met: Vec<v1::MetLock>,
}

impl ScanObstacle {
    fn find(
        state: &State,
        snapshot: Snapshot<'_>,
        range: &CellRange,
    ) -> Result<Option<Self>, Error> {
        let most = state.limits.scan_locks;
        let locks = locks_in(&*state.engine, range, Direction::Forward, most)?;
        let last = (locks.len() == most).then(|| locks[most - 1].0.clone());
        let blocks = |(_, lock): &(Vec<u8>, Lock)| {
            snapshot.blocked_by(lock) && !mutants::on(Mutant::ChangesPassLocks)
        };
        let blocking: Vec<_> = locks.into_iter().filter(blocks).collect();
        if let Some((cell_key, _)) = blocking.first() {
            return Ok(Some(Self {
                cell: key::decode_cell(cell_key)?,
                // Once the lock is cleared, the cell is read from its newest version on.
                resume_ts: u64::MAX,
                met: met_from(cell_key, &blocking, snapshot)?,
                end: cell_key.clone(),
            }));
        }
        last.map(|cell_key| {
            Ok(Self {
                cell: key::decode_cell(&cell_key)?,
                resume_ts: 0,
                met: Vec::new(),
                end: key::behind_cell(cell_key),
            })
        })
        .transpose()
    }
}

/// What one answer has.
#[derive(Default)]
struct Page {
    versions: Vec<v1::ScannedCell>,
    bytes: usize,
    records_read: usize,
    /// The version to go on with.
    resume: Option<(Vec<u8>, Timestamp)>,
}

impl Page {
    /// Whether it ends before this version.
    fn ends_before(&mut self, state: &State, limit: usize, cell_key: &[u8], ts: Timestamp) -> bool {
        let limits = &state.limits;
        let is_full = self.versions.len() >= limit
            || self.records_read >= limits.scan_records
            || limits.ends_scan(self.bytes, limits.scan_bytes);
        if is_full {
            self.resume = Some((cell_key.to_vec(), ts));
        }
        self.records_read += 1;
        is_full
    }

    fn add(
        &mut self,
        state: &State,
        wanted: &ChangeFilter<'_>,
        cell_key: &[u8],
        (commit_ts, write): (Timestamp, Write),
    ) -> Result<(), Error> {
        let value = match write.kind {
            WriteKind::Put => match write.short_value {
                Some(value) => Some(value),
                None => Some(store::long_value(&*state.engine, cell_key, write.start_ts)?),
            },
            WriteKind::Delete => None,
            WriteKind::Lock | WriteKind::Rollback => return Ok(()),
        };
        let cell = key::decode_cell(cell_key)?;
        if !wanted.columns.is_empty() && !wanted.columns.contains(&cell.column) {
            return Ok(());
        }
        let value_bytes = value.as_ref().map_or(0, bytes::Bytes::len);
        self.bytes += cell.row.len() + cell.column.len() + value_bytes + 24;
        self.versions.push(v1::ScannedCell {
            row: cell.row,
            column: cell.column,
            deleted: value.is_none(),
            value: value.unwrap_or_default(),
            commit_ts: commit_ts.as_u64(),
        });
        Ok(())
    }
}

/// Reads the versions of a range: those that are known to have changed lately, or all of its records.
fn read(
    state: &State,
    tablet: &Tablet,
    wanted: &ChangeFilter<'_>,
    (start, end): (&[u8], &[u8]),
    page: &mut Page,
) -> Result<(), Error> {
    let recent = state.recent.borrow();
    let between = (wanted.above, wanted.until);
    let Some(recent) = recent.versions(tablet, between, (start, end)) else {
        return read_all(state, wanted, (start, end), page);
    };
    for version in recent {
        let (cell_key, ts) = key::split_version(&version)?;
        if page.ends_before(state, wanted.limit, cell_key, ts) {
            break;
        }
        // Not there: its batch was refused, or is still on its way, and a lock was in the way of that.
        if let Some(record) = state.engine.get(Column::Write, &version)? {
            page.add(state, wanted, cell_key, (ts, Write::decode(ts, record)?))?;
        }
    }
    // Read all the same in tests, so that every one of them checks what is known.
    debug_assert!(
        Mutant::ALL.into_iter().any(mutants::on)
            || is_all(state, wanted, (start, end), page).unwrap_or(true),
        "a change of late that is not known"
    );
    Ok(())
}

/// Whether the page has all versions of the range, as far as one answer could.
fn is_all(
    state: &State,
    wanted: &ChangeFilter<'_>,
    range: (&[u8], &[u8]),
    page: &Page,
) -> Result<bool, Error> {
    let mut all = Page::default();
    read_all(state, wanted, range, &mut all)?;
    let is_part = all.resume.is_some() || page.resume.is_some();
    Ok(is_part || all.versions == page.versions)
}

fn read_all(
    state: &State,
    wanted: &ChangeFilter<'_>,
    (start, end): (&[u8], &[u8]),
    page: &mut Page,
) -> Result<(), Error> {
    let mut start = start.to_vec();
    // Of the cell that is being read: how many of its records were passed.
    let (mut cell, mut passed) = (Vec::new(), 0);
    'from: loop {
        let pairs = state
            .engine
            .scan(Column::Write, &start, end, Direction::Forward)?;
        for pair in pairs {
            let (record_key, record) = pair?;
            let (cell_key, ts) = key::split_version(&record_key)?;
            if page.ends_before(state, wanted.limit, cell_key, ts) {
                return Ok(());
            }
            if cell != cell_key {
                (cell, passed) = (cell_key.to_vec(), 0);
            }
            if wanted.above < ts && ts <= wanted.until {
                page.add(state, wanted, cell_key, (ts, Write::decode(ts, record)?))?;
                passed = 0;
                continue;
            }
            passed += 1;
            if passed > PASSED_MAX {
                start = if ts > wanted.until {
                    key::version(cell.clone(), wanted.until)
                } else {
                    key::behind_cell(cell.clone())
                };
                passed = 0;
                continue 'from;
            }
        }
        return Ok(());
    }
}
