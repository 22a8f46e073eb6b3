//! Notifications of changes on observed columns. The batches of commits write and remove them, by the rules of
//! `protocol::actions` (`notify`).

use bytes::Bytes;
use percolator_engine::{Column, Direction};
use percolator_protocol::actions::{
    self, NotNotified, Prewrite, acknowledges, change, changed_at, may_acknowledge,
};
use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::{
    Cell, Chain, Effect, Lock, LockKind, Mutation, Notification, OBSERVED_COLUMN_BYTES_MAX, Tablet,
    Timestamp, WriteKind, ack_column, acknowledged_column, escape, key,
};
use percolator_wire::v1;
use percolator_wire::v1::response::Body;

use crate::decision::{Decision, TabletChange};
use crate::leaving::KeyRange;
use crate::places::Place;
use crate::state::State;
use crate::store;
use crate::work::{invalid, timestamp};
use crate::{Error, Refusal, observed};

/// The most entries that one request reads.
pub(crate) const ENTRIES_READ_MAX: usize = 4096;
/// The most locked rows in one response.
const LOCKED_MAX: usize = 16;
/// The most notifications that one request removes.
const REMOVED_MAX: usize = 1024;
/// The most entries that one request counts.
const COUNTED_MAX: usize = 65_536;
/// The most notifications that metrics count.
const SHOWN_MAX: usize = 4096;

/// The changes that a decision means to observers, once it is durable.
#[derive(Debug, Default)]
pub(crate) struct Notified {
    /// The keys of cells that have changed.
    pub(crate) changed: Vec<Bytes>,
    /// The keys of cells whose changes were acknowledged. A later change may wait.
    pub(crate) acknowledged: Vec<Bytes>,
    /// Those of them with a later change that waits.
    pub(crate) left: Vec<Bytes>,
    /// For a mutant: the notifications that are written behind the batch.
    pub(crate) later: Vec<(Bytes, Notification)>,
}

impl Notified {
    /// Whether the decision concerns no observer.
    pub(crate) fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.acknowledged.is_empty() && self.later.is_empty()
    }
}

fn waiting(state: &State, cell_key: &[u8]) -> Result<Option<Notification>, Error> {
    let stored = state.engine.get(Column::Notify, cell_key)?;
    Ok(stored.map(Notification::decode).transpose()?)
}

/// The observed cell whose changes this one acknowledges, if its column is for acknowledgements.
fn acknowledged_cell(cell: &Cell) -> Option<Cell> {
    let column = acknowledged_column(&cell.column)?;
    Some(Cell {
        column: Bytes::copy_from_slice(column),
        ..cell.clone()
    })
}

/// The transaction of a commit, as far as notifications need it.
pub(crate) struct Committing<'a> {
    start_ts: Timestamp,
    /// The cell's lock before the commit; `None`: it is committed in one phase.
    lock: Option<&'a Lock>,
    chain: Option<&'a Chain>,
}

impl<'a> Committing<'a> {
    /// A commit in one phase.
    pub(crate) fn in_one_phase(txn: &'a Prewrite) -> Self {
        Self {
            start_ts: txn.start_ts,
            lock: None,
            chain: txn.chain.as_deref(),
        }
    }

    /// The commit of a cell that has this lock, unless it was committed before.
    pub(crate) fn locked(start_ts: Timestamp, lock: Option<&'a Lock>) -> Self {
        Self {
            start_ts,
            lock,
            chain: lock.and_then(|lock| lock.chain.as_deref()),
        }
    }
}

/// Adds to the decision the notifications of a commit with these effects on the cell.
pub(crate) fn note(
    state: &State,
    decision: &mut Decision,
    cell_key: &[u8],
    commit: &Committing<'_>,
    effects: &[Effect],
) -> Result<(), Error> {
    if !state.observed.may_observe(cell_key) {
        return Ok(());
    }
    let cell = key::decode_cell(cell_key)?;
    if let Some(acknowledged) = acknowledged_cell(&cell) {
        if acknowledges(effects) {
            acknowledge(state, decision, &acknowledged, commit.start_ts)?;
        }
        return Ok(());
    }
    let Some(changed_at) = changed_at(effects) else {
        return Ok(());
    };
    if state.observed.place_of(&state.tablets, cell_key)?.is_none() {
        return Ok(());
    }
    let is_secondary = commit.lock.is_some_and(|lock| lock.primary != cell);
    if is_secondary && mutants::on(Mutant::SecondariesNotNotified) {
        return Ok(());
    }
    put(state, decision, cell_key, change(changed_at, commit.chain))
}

fn put(
    state: &State,
    decision: &mut Decision,
    cell_key: &[u8],
    change: Notification,
) -> Result<(), Error> {
    let notification = actions::notify(waiting(state, cell_key)?, change);
    let cell_key = Bytes::copy_from_slice(cell_key);
    if mutants::on(Mutant::NotifiedLater) {
        decision.notified.later.push((cell_key, notification));
        return Ok(());
    }
    let record = notification.encode();
    decision.batch.put(Column::Notify, cell_key.clone(), record);
    decision.notified.changed.push(cell_key);
    Ok(())
}

fn acknowledge(
    state: &State,
    decision: &mut Decision,
    acknowledged: &Cell,
    start_ts: Timestamp,
) -> Result<(), Error> {
    let cell_key = Bytes::from(store::cell_key(acknowledged));
    // The same transaction may have changed the cell, above its own snapshot.
    let changes_again = decision.notified.changed.contains(&cell_key);
    if let Some(waiting) = waiting(state, &cell_key)?
        && (!changes_again || mutants::on(Mutant::AckHidesLaterChange))
    {
        let batch = &mut decision.batch;
        match actions::left(waiting, start_ts) {
            Some(left) => {
                batch.put(Column::Notify, cell_key.clone(), left.encode());
                decision.notified.left.push(cell_key.clone());
            }
            None => batch.delete(Column::Notify, cell_key.clone()),
        }
    }
    decision.notified.acknowledged.push(cell_key);
    Ok(())
}

/// Checks a mutation of a column for acknowledgements: it needs a notification.
///
/// # Errors
/// The cell is for acknowledgements alone. Inside: no notification waits.
pub(crate) fn admit(
    state: &State,
    mutation: &Mutation,
    start_ts: Timestamp,
) -> Result<Result<(), NotNotified>, Refusal> {
    let Some(acknowledged) = acknowledged_cell(&mutation.cell) else {
        return Ok(Ok(()));
    };
    if mutation.kind != LockKind::Lock {
        return Err(invalid(format!(
            "column {} is for acknowledgements of observers: it can't be written",
            escape(&mutation.cell.column)
        )));
    }
    let waiting = waiting(state, &store::cell_key(&acknowledged))?;
    Ok(may_acknowledge(waiting.as_ref(), start_ts))
}

fn one_tablet<'a>(state: &'a State, refs: &[v1::TabletRef]) -> Result<&'a Tablet, Refusal> {
    let [asked] = refs else {
        return Err(invalid("a column is observed in one tablet at a time"));
    };
    Ok(state.tablets.serving(asked.id, asked.epoch)?)
}

/// Decides to observe a column of a tablet.
pub(crate) fn observe(
    state: &State,
    refs: &[v1::TabletRef],
    column: Bytes,
) -> Result<Decision, Refusal> {
    let tablet = one_tablet(state, refs)?;
    if column.len() > OBSERVED_COLUMN_BYTES_MAX {
        return Err(invalid(format!(
            "the column is {} bytes long, the limit of an observed one is {OBSERVED_COLUMN_BYTES_MAX}",
            column.len()
        )));
    }
    if acknowledged_column(&column).is_some() {
        return Err(invalid(
            "a column for acknowledgements of observers can't be observed",
        ));
    }
    let mut decision = Decision::answered(Body::Observe(v1::ObserveResponse {}));
    if !state.observed.has(tablet.id, &column) {
        let (id, table) = (tablet.id, tablet.table.0);
        let mut columns = state.observed.columns(id);
        columns.push(column.clone());
        observed::put_record(&mut decision.batch, id, table, columns);
        decision.tablet_change = Some(TabletChange::Observe { id, table, column });
    }
    Ok(decision)
}

/// Decides to observe a column of a tablet no more. Removes some notifications from a cell on. The client repeats the request
/// while the response says that there may be more.
pub(crate) fn unobserve(
    state: &State,
    refs: &[v1::TabletRef],
    column: Bytes,
    from: Option<Cell>,
) -> Result<Decision, Refusal> {
    let tablet = one_tablet(state, refs)?;
    let was_observed = state.observed.has(tablet.id, &column);
    let mut decision = Decision::new();
    let rows = KeyRange::of(tablet);
    let from = from.map(|cell| store::cell_key(&cell));
    let start = rows.start.clone().max(from.unwrap_or_default());
    let pairs = state
        .engine
        .scan(Column::Notify, &start, &rows.end, Direction::Forward);
    let mut resume = None;
    for (entries_read, pair) in pairs.map_err(Error::from)?.enumerate() {
        let (cell_key, _) = pair.map_err(Error::from)?;
        let cell = key::decode_cell(&cell_key).map_err(Error::from)?;
        // The tablet may have many notifications of other columns.
        if entries_read >= ENTRIES_READ_MAX || decision.notified.acknowledged.len() >= REMOVED_MAX {
            resume = Some(v1::CellName::from(&cell));
            break;
        }
        if cell.column == column {
            decision.batch.delete(Column::Notify, cell_key.clone());
            decision.notified.acknowledged.push(cell_key);
        }
    }
    let (id, table) = (tablet.id, tablet.table.0);
    let mut columns = state.observed.columns(id);
    columns.retain(|known| *known != column);
    // The record is written without a change, too: the response then comes when all earlier decisions are durable.
    observed::put_record(&mut decision.batch, id, table, columns);
    if was_observed {
        decision.tablet_change = Some(TabletChange::Unobserve { id, table, column });
    }
    // Commits that are decided before this is durable still leave notifications, which the next request finds.
    decision.answer = Some(Body::Unobserve(v1::UnobserveResponse {
        was_observed,
        more: was_observed || !decision.notified.acknowledged.is_empty(),
        resume,
    }));
    Ok(decision)
}

/// Decides to leave weak notifications.
pub(crate) fn weak(
    state: &State,
    refs: &[v1::TabletRef],
    at: Timestamp,
    places: &[Place],
) -> Result<Decision, Refusal> {
    let mut decision = Decision::answered(Body::Notify(v1::NotifyResponse {}));
    for place in places {
        let cell = state.cell(refs, place)?;
        let cell_key = store::cell_key(&cell);
        if state
            .observed
            .place_of(&state.tablets, &cell_key)?
            .is_none()
        {
            return Err(not_observed(&cell.column));
        }
        if has_been_seen(state, &cell, at)? {
            continue;
        }
        put(state, &mut decision, &cell_key, change(at, None))?;
    }
    Ok(decision)
}

/// Whether a run that began at or behind `at` has acknowledged changes of the cell: the request is then a copy of one that was
/// carried out before.
fn has_been_seen(state: &State, cell: &Cell, at: Timestamp) -> Result<bool, Error> {
    let acknowledgements = Cell {
        column: ack_column(&cell.column),
        ..cell.clone()
    };
    let cell_key = store::cell_key(&acknowledgements);
    let newest = key::version(cell_key.clone(), Timestamp::MAX);
    let mut behind = key::version(cell_key, at);
    behind.push(0);
    let records = state
        .engine
        .scan(Column::Write, &newest, &behind, Direction::Forward)?;
    for pair in records {
        let (_, write) = store::version_record(pair?)?;
        if write.kind == WriteKind::Lock && write.start_ts >= at {
            return Ok(true);
        }
    }
    Ok(false)
}

fn not_observed(column: &[u8]) -> Refusal {
    invalid(format!(
        "column {:?} is not observed: `percolator table observe` makes it so",
        escape(column)
    ))
}

/// The notifications of one search.
#[derive(Debug, Default)]
pub(crate) struct FoundNotifications {
    /// The keys of their cells.
    pub(crate) keys: Vec<Bytes>,
    /// Where the next search continues, if this one has reached a limit.
    pub(crate) resume: Option<Bytes>,
    pub(crate) notifications: Vec<v1::NotificationInfo>,
}

/// The tablet, if this column of it is observed.
pub(crate) fn observed_tablet<'a>(
    state: &'a State,
    asked: &v1::TabletRef,
    column: &[u8],
) -> Result<&'a Tablet, Refusal> {
    let tablet = state.tablets.serving(asked.id, asked.epoch)?;
    if state.observed.has(tablet.id, column) {
        Ok(tablet)
    } else {
        Err(not_observed(column))
    }
}

/// The notification of a cell, if one waits.
pub(crate) fn find_one(
    state: &State,
    cell_key: &[u8],
) -> Result<Option<v1::NotificationInfo>, Error> {
    let Some(found) = waiting(state, cell_key)? else {
        return Ok(None);
    };
    let cell = key::decode_cell(cell_key)?;
    Ok(Some(info(cell.row, &found)))
}

fn info(row: Bytes, notification: &Notification) -> v1::NotificationInfo {
    v1::NotificationInfo {
        row,
        changed_at: notification.changed_at.as_u64(),
        first_at: notification.first_at.as_u64(),
        chain: (notification.chain != Chain::default()).then(|| (&notification.chain).into()),
    }
}

/// Finds at most `limit` notifications in one tablet, from the key `after` on and then from the tablet's first row, without
/// those that `is_leased`.
pub(crate) fn find(
    state: &State,
    tablet: &Tablet,
    column: &[u8],
    limit: usize,
    after: &[u8],
    is_leased: impl Fn(&[u8]) -> bool,
) -> Result<FoundNotifications, Error> {
    let mut found = FoundNotifications::default();
    let rows = KeyRange::of(tablet);
    let middle = after.max(&rows.start[..]);
    let mut entries_read = 0;
    for (start, end) in [(middle, &rows.end[..]), (&rows.start[..], middle)] {
        // An empty end would be the end of the column.
        if end.is_empty() && start != middle || start == end {
            continue;
        }
        let pairs = state
            .engine
            .scan(Column::Notify, start, end, Direction::Forward);
        for pair in pairs? {
            let (cell_key, record) = pair?;
            if found.keys.len() >= limit || entries_read >= ENTRIES_READ_MAX {
                found.resume = Some(cell_key);
                return Ok(found);
            }
            entries_read += 1;
            let cell = key::decode_cell(&cell_key)?;
            if cell.column != column || is_leased(&cell_key) {
                continue;
            }
            let notification = Notification::decode(record)?;
            found.notifications.push(info(cell.row, &notification));
            found.keys.push(cell_key);
        }
    }
    Ok(found)
}

/// Some rows of a tablet in which a cell of the observed column is locked, from the key `after` on, and the key from which the
/// next ones follow; empty: from the tablet's first row.
pub(crate) fn locked(
    state: &State,
    tablet: &Tablet,
    column: &[u8],
    after: &[u8],
) -> Result<(Vec<Bytes>, Bytes), Error> {
    locked_within(state, tablet, column, after, (ENTRIES_READ_MAX, LOCKED_MAX))
}

/// The same, with limits on the locks that are read, and on those that are returned.
fn locked_within(
    state: &State,
    tablet: &Tablet,
    column: &[u8],
    after: &[u8],
    (entries_max, found_max): (usize, usize),
) -> Result<(Vec<Bytes>, Bytes), Error> {
    let mut found = Vec::new();
    if state.filter.len() == 0 {
        return Ok((found, Bytes::new()));
    }
    let rows = KeyRange::of(tablet);
    let start = after.max(&rows.start[..]);
    let pairs = state
        .engine
        .scan(Column::Lock, start, &rows.end, Direction::Forward);
    for (entries_read, pair) in pairs?.enumerate() {
        let (cell_key, _) = pair?;
        if entries_read >= entries_max || found.len() >= found_max {
            return Ok((found, cell_key));
        }
        let cell = key::decode_cell(&cell_key)?;
        if cell.column == column {
            found.push(cell.row);
        }
    }
    Ok((found, Bytes::new()))
}

/// Counts notifications, leased or not, from a cell on. With the tablet's first cells it counts the locks, too.
pub(crate) fn count(
    state: &State,
    tablet: &Tablet,
    column: &[u8],
    from: Option<&Cell>,
    response: &mut v1::NotificationsResponse,
) -> Result<(), Error> {
    let rows = KeyRange::of(tablet);
    let start = match from {
        None => {
            let most = (COUNTED_MAX, COUNTED_MAX);
            let (locked, next) = locked_within(state, tablet, column, &[], most)?;
            // If the limit ends the search, more locks may be of the column.
            response.locked = locked.len().max(usize::from(!next.is_empty())) as u64;
            rows.start.clone()
        }
        Some(cell) => rows.start.clone().max(store::cell_key(cell)),
    };
    let pairs = state
        .engine
        .scan(Column::Notify, &start, &rows.end, Direction::Forward)?;
    for (entries_read, pair) in pairs.enumerate() {
        let (cell_key, record) = pair?;
        let cell = key::decode_cell(&cell_key)?;
        if entries_read >= COUNTED_MAX {
            response.resume = Some((&cell).into());
            break;
        }
        if cell.column == column {
            let first_at = Notification::decode(record)?.first_at.as_u64();
            response.waiting += 1;
            response.oldest = match response.oldest {
                0 => first_at,
                oldest => oldest.min(first_at),
            };
        }
    }
    Ok(())
}

/// The number of notifications of this server, up to [`SHOWN_MAX`], and the time of the first change among them, zero if there
/// is none. For metrics.
pub(crate) fn waiting_about(state: &State) -> (u64, Timestamp) {
    let mut about = (0, Timestamp::ZERO);
    if state.observed.is_empty() {
        return about;
    }
    let pairs = state
        .engine
        .scan(Column::Notify, &[], &[], Direction::Forward);
    // Other reads notice an engine that can't be read.
    let pairs = pairs.into_iter().flatten().take(SHOWN_MAX).flatten();
    for (_, record) in pairs {
        let (waiting, oldest) = &mut about;
        *waiting += 1;
        if let Ok(Notification { first_at, .. }) = Notification::decode(record)
            && (*oldest == Timestamp::ZERO || first_at < *oldest)
        {
            *oldest = first_at;
        }
    }
    about
}

/// Reads a request for weak notifications.
pub(crate) fn weak_at(request: &v1::NotifyRequest) -> Result<Timestamp, Refusal> {
    timestamp(request.at, "at")
}
