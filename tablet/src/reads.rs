//! Requests that only read. They take no latch: the lock is read before the records, and a later prewrite commits above the
//! reader's snapshot, which is older.

use bytes::Bytes;
use percolator_engine::Column;
use percolator_protocol::actions::{Read, Snapshot};
use percolator_protocol::types::{Cell, TableId, Timestamp, key};
use percolator_wire::v1::get_result::Result as Got;
use percolator_wire::v1::response::Body;
use percolator_wire::{met_lock, v1};

use crate::asked::raw_key;
use crate::load::Load;
use crate::places::{Place, check_count};
use crate::scan_part::{CellRange, Part, PartEnd, PartMax, scan_part};
use crate::state::State;
use crate::store;
use crate::work::{invalid, timestamp};
use crate::{Error, Refusal, changes, latches, locks, verify};

/// Answers a request that only reads.
pub(crate) fn answer(
    state: &State,
    refs: &[v1::TabletRef],
    body: v1::request::Body,
) -> Result<Body, Refusal> {
    use v1::request::Body as B;
    match body {
        B::GetOne(request) => get_one(state, request).map(Body::GetOne),
        B::Get(request) if request.whole_rows => get_rows(state, refs, request).map(Body::Get),
        B::Get(request) => get(state, refs, request).map(Body::Get),
        B::Scan(request) => scan(state, refs, request),
        B::LocksBelow(request) => locks::list(state, request).map(Body::LocksBelow),
        B::Verify(request) => verify::verify(state, request).map(Body::Verify),
        B::RawGet(request) => {
            let stored = state.engine.get(Column::Meta, &raw_key(&request.key));
            let value = stored.map_err(Error::from)?;
            Ok(Body::RawGet(v1::RawGetResponse { value }))
        }
        B::Prewrite(_)
        | B::Commit(_)
        | B::Rollback(_)
        | B::CheckStatus(_)
        | B::KeepAlive(_)
        | B::RawPut(_)
        | B::Resolve(_)
        | B::WaitForCell(_)
        | B::PullTablet(_)
        | B::Observe(_)
        | B::Unobserve(_)
        | B::Notifications(_)
        | B::Notify(_)
        | B::TakeTablet(_) => unreachable!("a request that writes is no read"),
    }
}

/// Whether a request reads a cell whose commit is decided and can't be read yet.
pub(crate) fn has_to_wait(state: &State, request: &v1::Request) -> bool {
    use v1::request::Body as B;
    let readers = state.readers.borrow();
    let waits_for = |asked: &v1::TabletRef, row: &[u8], column: &[u8], snapshot: u64| {
        state
            .tablets
            .serving(asked.id, asked.epoch)
            .is_ok_and(|tablet| {
                let cell_key = key::cell(tablet.table, row, column);
                readers.waits_for(latches::hash(&[&cell_key]), Timestamp::from_u64(snapshot))
            })
    };
    match &request.body {
        Some(B::GetOne(get)) => {
            let asked = v1::TabletRef {
                id: get.tablet_id,
                epoch: get.epoch,
            };
            waits_for(&asked, &get.row, &get.column, get.start_ts)
        }
        Some(B::Get(get)) if !get.whole_rows => get.cells.iter().any(|cell| {
            let asked = request.tablets.get(cell.tablet as usize);
            asked.is_some_and(|asked| waits_for(asked, &cell.row, &cell.column, get.start_ts))
        }),
        Some(B::Get(get)) => readers.waits_for_any(Timestamp::from_u64(get.start_ts)),
        Some(B::Scan(scan)) => readers.waits_for_any(Timestamp::from_u64(scan.start_ts)),
        _ => false,
    }
}

fn get(
    state: &State,
    refs: &[v1::TabletRef],
    request: v1::GetRequest,
) -> Result<v1::GetResponse, Refusal> {
    check_count(request.cells.len())?;
    let (ts, bypass) = snapshot(state, request.start_ts, &request.bypass)?;
    let snapshot = Snapshot {
        ts,
        bypass: &bypass,
        own: request.own,
    };
    let owners = Owners::view(state, request.own)?;
    let mut results = Vec::with_capacity(request.cells.len());
    let mut bytes = 0;
    for cell in request.cells {
        if bytes >= state.limits.get_bytes {
            break;
        }
        let tablet = refs.get(cell.tablet as usize);
        let cell = state.cell(refs, &Place::from(cell))?;
        let seen = match &owners.0 {
            Some(_) => read_own(state, &owners, &cell, snapshot)?,
            None => read_cell(state, &cell, snapshot)?,
        };
        let got = match seen {
            ReadValue::Value(value) => Got::Found(v1::Found { value, cell: None }),
            ReadValue::Absent => Got::Absent(v1::Absent {}),
            ReadValue::Locked(locked) => Got::Locked(locked),
            ReadValue::RolledBack => Got::RolledBack(v1::RolledBack {}),
        };
        if let Got::Found(found) = &got {
            bytes += found.value.len();
            has_read(state, tablet, bytes_of(&cell, &found.value));
        }
        results.push(v1::GetResult { result: Some(got) });
    }
    Ok(v1::GetResponse {
        results,
        truncated: false,
    })
}

fn get_one(state: &State, request: v1::GetOneRequest) -> Result<v1::GetOneResponse, Refusal> {
    let asked = v1::TabletRef {
        id: request.tablet_id,
        epoch: request.epoch,
    };
    let cell = state.cell_in(&asked, request.row, request.column)?;
    let (ts, bypass) = snapshot(state, request.start_ts, &request.bypass)?;
    let snapshot = Snapshot {
        ts,
        bypass: &bypass,
        own: false,
    };
    let mut response = v1::GetOneResponse::default();
    match read_cell(state, &cell, snapshot)? {
        ReadValue::Value(value) => {
            has_read(state, Some(&asked), bytes_of(&cell, &value));
            response.value = Some(value);
        }
        ReadValue::Absent | ReadValue::RolledBack => {}
        ReadValue::Locked(locked) => response.locked = Some(Box::new(locked)),
    }
    Ok(response)
}

/// Counts bytes of a tablet that a response has.
pub(crate) fn has_read(state: &State, tablet: Option<&v1::TabletRef>, bytes: usize) {
    if let Some(tablet) = tablet {
        state.probe.asked(tablet.id, true, Load::of_bytes(bytes));
    }
}

/// Counts the cells of a part.
fn has_scanned(state: &State, tablet: Option<&v1::TabletRef>, part: &Part) {
    has_read(state, tablet, part.bytes());
    if let (Some(tablet), Some((first, _))) = (tablet, part.cells.first()) {
        let mut rates = state.rates.borrow_mut();
        rates.used(tablet.id, part.cells.len() as u64, &first.row);
    }
}

pub(crate) fn bytes_of(cell: &Cell, value: &[u8]) -> usize {
    cell.row.len() + cell.column.len() + value.len()
}

/// The value of a cell in a snapshot, with long values.
enum ReadValue {
    Value(Bytes),
    Absent,
    Locked(v1::MetLock),
    RolledBack,
}

/// A snapshot of the engine for a transaction that reads its own flushes: nothing may change between its lock and its value or
/// record. Other readers use the engine directly, which costs less.
struct Owners(Option<Box<dyn percolator_engine::Snapshot>>);

impl Owners {
    fn view(state: &State, own: bool) -> Result<Self, Error> {
        let snapshot = own.then(|| state.engine.snapshot()).transpose()?;
        Ok(Self(snapshot))
    }

    fn reader<'a>(&'a self, state: &'a State) -> &'a dyn percolator_engine::Read {
        match &self.0 {
            Some(snapshot) => &**snapshot,
            None => &*state.engine,
        }
    }
}

fn read_own(
    state: &State,
    owners: &Owners,
    cell: &Cell,
    snapshot: Snapshot<'_>,
) -> Result<ReadValue, Refusal> {
    let cell_key = store::cell_key(cell);
    let hash = latches::hash(&[&cell_key]);
    state.readers.borrow_mut().read(hash, snapshot.ts);
    let reader = owners.reader(state);
    let read = store::read_own(reader, &cell_key, snapshot)?;
    seen(reader, cell, &cell_key, read)
}

fn read_cell(state: &State, cell: &Cell, snapshot: Snapshot<'_>) -> Result<ReadValue, Refusal> {
    let cell_key = store::cell_key(cell);
    let hash = latches::hash(&[&cell_key]);
    state.readers.borrow_mut().read(hash, snapshot.ts);
    let read = store::read(
        &*state.engine,
        &state.filter,
        &state.cache,
        &cell_key,
        hash,
        snapshot,
    )?;
    seen(&*state.engine, cell, &cell_key, read)
}

fn seen(
    reader: &(impl percolator_engine::Read + ?Sized),
    cell: &Cell,
    cell_key: &[u8],
    read: Read,
) -> Result<ReadValue, Refusal> {
    Ok(match read {
        Read::Value(value) => ReadValue::Value(value),
        Read::Long(start_ts) => ReadValue::Value(store::long_value(reader, cell_key, start_ts)?),
        Read::Absent => ReadValue::Absent,
        Read::Locked(lock) => ReadValue::Locked(met_lock(cell, &lock)),
        Read::RolledBack => ReadValue::RolledBack,
    })
}

fn get_rows(
    state: &State,
    refs: &[v1::TabletRef],
    request: v1::GetRequest,
) -> Result<v1::GetResponse, Refusal> {
    check_count(request.cells.len())?;
    let (ts, bypass) = snapshot(state, request.start_ts, &request.bypass)?;
    let snapshot = Snapshot {
        ts,
        bypass: &bypass,
        own: false,
    };
    let engine = &*state.engine;
    let mut results = Vec::new();
    let mut left = state.limits.get_bytes;
    for cell in request.cells {
        let tablet = cell.tablet;
        let row = state.cell(refs, &Place::from(cell))?;
        let bound = key::row_bound(row.table, &row.row);
        let hash = latches::hash(&[&bound]);
        state.readers.borrow_mut().read(hash, ts);
        let mut range = row_range(&row, bound);
        loop {
            let max = PartMax {
                cells: state.limits.scan_cells,
                bytes: left,
            };
            let part = scan_part(state, engine, snapshot, &range, max)?;
            let bytes: usize = part.cells.iter().map(|(_, value)| value.len()).sum();
            left = left.saturating_sub(bytes.max(1));
            has_scanned(state, refs.get(tablet as usize), &part);
            results.extend(part.cells.into_iter().map(|(cell, value)| v1::GetResult {
                result: Some(Got::Found(v1::Found {
                    value,
                    cell: Some(v1::CellRef {
                        tablet,
                        row: cell.row,
                        column: cell.column,
                    }),
                })),
            }));
            match part.end {
                PartEnd::Done | PartEnd::RolledBack(_) => break,
                PartEnd::Resume(_) if left == 0 || results.len() >= state.limits.scan_cells => {
                    return Ok(v1::GetResponse {
                        results,
                        truncated: true,
                    });
                }
                PartEnd::Resume(last) => range.start = key::behind_cell(last),
                PartEnd::Locked(locked) => {
                    results.extend(locked.into_iter().map(|locked| v1::GetResult {
                        result: Some(Got::Locked(locked)),
                    }));
                    break;
                }
            }
        }
    }
    Ok(v1::GetResponse {
        results,
        truncated: false,
    })
}

/// The keys of a row, which lie at and behind its bound.
fn row_range(row: &Cell, mut end: Vec<u8>) -> CellRange {
    end.extend_from_slice(&[0, 2]);
    CellRange {
        start: key::cell(row.table, &row.row, b""),
        end,
        reverse: false,
    }
}

fn scan(state: &State, refs: &[v1::TabletRef], request: v1::ScanRequest) -> Result<Body, Refusal> {
    let [asked] = refs else {
        return Err(invalid("a scan goes to one tablet"));
    };
    let tablet = state.tablets.serving(asked.id, asked.epoch)?;
    let (ts, bypass) = snapshot(state, request.start_ts, &request.bypass)?;
    let snapshot = Snapshot {
        ts,
        bypass: &bypass,
        own: request.own,
    };
    if let Some(changed) = &request.changed {
        return changes::scan(state, asked, snapshot, changed, &request);
    }
    let rows = tablet.rows.within(&request.start_row, &request.end_row);
    let mut range = CellRange {
        start: key::row_bound(tablet.table, &rows.start),
        end: key::rows_end(tablet.table, &rows.end),
        reverse: request.reverse,
    };
    if let Some(after) = request.after {
        let after = store::cell_key(&Cell::from(after));
        if request.reverse {
            range.end = after;
        } else {
            range.start = range.start.max(key::behind_cell(after));
        }
    }
    state.readers.borrow_mut().scan(tablet.id, ts);
    let limit = match request.limit as usize {
        0 => state.limits.scan_cells,
        limit => limit.min(state.limits.scan_cells),
    };
    let owners = Owners::view(state, request.own)?;
    let engine = owners.reader(state);
    let max = PartMax {
        cells: limit,
        bytes: state.limits.scan_bytes,
    };
    let part = scan_part(state, engine, snapshot, &range, max)?;
    has_scanned(state, Some(asked), &part);
    let last = part.cells.last().map(|(cell, _)| cell.into());
    let mut response = v1::ScanResponse {
        cells: part
            .cells
            .into_iter()
            .map(|(cell, value)| v1::ScannedCell {
                row: cell.row,
                column: cell.column,
                value,
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    };
    match part.end {
        PartEnd::Done => response.done = true,
        PartEnd::Locked(locked) => {
            response.resume = last;
            response.locked = locked;
        }
        PartEnd::Resume(key) => response.resume = Some((&resume_cell(tablet.table, &key)?).into()),
        PartEnd::RolledBack(key) => {
            response.rolled_back = Some((&resume_cell(tablet.table, &key)?).into());
        }
    }
    Ok(Body::Scan(response))
}

fn resume_cell(table: TableId, key: &[u8]) -> Result<Cell, Error> {
    let cell = key::decode_cell(key)?;
    debug_assert_eq!(cell.table, table);
    Ok(cell)
}

fn snapshot(
    state: &State,
    start_ts: u64,
    bypass: &[u64],
) -> Result<(Timestamp, Vec<Timestamp>), Refusal> {
    let start_ts = timestamp(start_ts, "start_ts")?;
    state.points.now().admit_read(start_ts)?;
    state.lease.admit(start_ts)?;
    Ok((
        start_ts,
        bypass.iter().map(|ts| Timestamp::from_u64(*ts)).collect(),
    ))
}
