//! Requests that wait for notifications, and the leases of notifications that were sent. Leases are advisory and in memory, so
//! that workers don't run the same change at a time. No decision depends on them.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use bytes::Bytes;
use percolator_protocol::types::{Cell, Tablet, key};
use percolator_wire::v1;
use percolator_wire::v1::response::Body;

use super::unleased::{TabletColumn, Unleased};
use super::{Asker, Core, Reply};
use crate::decision::Decision;
use crate::notify::{self, FoundNotifications};
use crate::probe::Note;
use crate::state::State;
use crate::work::invalid;
use crate::{Error, Refusal};

/// The most notifications in one response.
const NOTIFICATIONS_MAX: u32 = 256;
/// The longest lease.
const LEASE_MAX: Duration = Duration::from_secs(60);
/// The longest wait of a request.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// The most leases. More notifications are sent without one.
const LEASES_MAX: usize = 65_536;
/// The most requests that wait. More are answered at once.
const WAITING_MAX: usize = 4096;

/// The state of observers' requests.
#[derive(Debug, Default)]
pub(super) struct Observing {
    /// The time since the server started.
    now: Duration,
    /// The leases, by the keys of their cells.
    leases: HashMap<Bytes, Lease>,
    ends: BTreeSet<(Duration, Bytes)>,
    unleased: Unleased,
    /// The key behind the last response, by tablet and column: the next search begins there.
    cursors: HashMap<(u64, Bytes), Bytes>,
    /// The key at which the next scan of a tablet's locks begins, by tablet and column.
    lock_cursors: HashMap<(u64, Bytes), Bytes>,
    waiting: Vec<WaitingRequest>,
    /// Columns of tablets whose cells have changed, or whose leases have ended, since waiting requests were checked.
    touched: BTreeSet<(u64, Bytes)>,
    /// Columns of tablets with more entries than one search reads: the next tick continues there.
    unfinished: BTreeSet<(u64, Bytes)>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    end: Duration,
    /// The number of the worker that has it.
    worker: u64,
}

#[derive(Debug)]
struct WaitingRequest {
    to: Asker,
    id: u64,
    note: Note,
    asked: v1::TabletRef,
    request: v1::NotificationsRequest,
    until: Duration,
}

/// The tablet and the column for which a request waits.
fn place(waiting: &WaitingRequest) -> TabletColumn {
    (waiting.asked.id, waiting.request.column.clone())
}

impl Observing {
    /// Whether no part of it depends on time.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.leases.is_empty() && self.unleased.is_empty()
    }

    fn lease(&mut self, cell_key: Bytes, duration: Duration, worker: u64) {
        self.release(&cell_key);
        if self.leases.len() < LEASES_MAX && !duration.is_zero() {
            let end = self.now + duration.min(LEASE_MAX);
            self.ends.insert((end, cell_key.clone()));
            self.leases.insert(cell_key, Lease { end, worker });
        }
    }

    fn release(&mut self, cell_key: &Bytes) {
        if let Some(lease) = self.leases.remove(cell_key) {
            self.ends.remove(&(lease.end, cell_key.clone()));
        }
    }

    /// Whether another worker has the lease, so that this one's request comes too late.
    fn is_anothers(&self, cell_key: &Bytes, worker: u64) -> bool {
        let lease = self.leases.get(cell_key);
        lease.is_some_and(|lease| lease.worker != worker)
    }

    /// Leases and returns notifications of a column that no worker has leased.
    fn find(
        &mut self,
        state: &State,
        tablet: &Tablet,
        place: TabletColumn,
        limit: usize,
        (lease, worker): (Duration, u64),
    ) -> Result<Vec<v1::NotificationInfo>, Error> {
        let after = self.cursors.get(&place).cloned().unwrap_or_default();
        let found = match self.find_known(state, tablet, &place, limit, &after)? {
            Some(found) => found,
            None => {
                let is_leased = |cell_key: &[u8]| self.leases.contains_key(cell_key);
                let found = notify::find(state, tablet, &place.1, limit, &after, is_leased)?;
                if found.resume.is_none() {
                    self.unleased.none(place.clone(), tablet, self.now);
                }
                found
            }
        };
        if found.resume.is_some() && found.keys.is_empty() {
            self.unfinished.insert(place.clone());
        }
        let behind = |last: &Bytes| Bytes::from([&last[..], b"\0"].concat());
        // The cursor moves even if nothing was found. Otherwise leased entries would hide those behind them for ever.
        if let Some(next) = found.resume.or_else(|| found.keys.last().map(behind)) {
            self.cursors.insert(place.clone(), next);
        }
        for cell_key in found.keys {
            self.lease(cell_key.clone(), lease, worker);
            if !self.leases.contains_key(&cell_key) {
                self.unleased.add(&place, cell_key);
            }
        }
        Ok(found.notifications)
    }

    /// The same from memory. `None`: the engine's entries have to be read.
    fn find_known(
        &mut self,
        state: &State,
        tablet: &Tablet,
        place: &TabletColumn,
        limit: usize,
        after: &[u8],
    ) -> Result<Option<FoundNotifications>, Error> {
        let mut found = FoundNotifications::default();
        let (mut after, mut entries_read) = (Bytes::copy_from_slice(after), 0);
        while found.keys.len() < limit {
            let missing = limit - found.keys.len();
            let taken = self.unleased.take(place, tablet, self.now, &after, missing);
            let Some(taken) = taken else {
                return Ok(None);
            };
            let Some(last) = taken.last() else {
                break;
            };
            after = last.clone();
            entries_read += taken.len();
            for cell_key in taken {
                if !self.leases.contains_key(&cell_key)
                    && let Some(notification) = notify::find_one(state, &cell_key)?
                {
                    found.notifications.push(notification);
                    found.keys.push(cell_key);
                }
            }
            if entries_read >= notify::ENTRIES_READ_MAX && found.keys.len() < limit {
                found.resume = Some(after);
                break;
            }
        }
        Ok(Some(found))
    }

    /// Ends the leases whose time is over. Returns the keys of their cells.
    fn expired(&mut self) -> Vec<Bytes> {
        let mut expired = Vec::new();
        while let Some((end, _)) = self.ends.first()
            && *end <= self.now
        {
            if let Some((_, cell_key)) = self.ends.pop_first() {
                self.leases.remove(&cell_key);
                expired.push(cell_key);
            }
        }
        expired
    }
}

impl Core {
    /// Takes a worker's request for notifications.
    pub(super) fn notifications(
        &mut self,
        to: Asker,
        id: u64,
        mut note: Note,
        refs: &[v1::TabletRef],
        request: v1::NotificationsRequest,
        out: &mut Vec<Reply>,
    ) {
        let [asked] = refs else {
            let refusal = invalid("notifications are asked for in one tablet at a time");
            return self.answer(Some(to), id, note, Err(refusal), out);
        };
        // The time that it waits is no time of work.
        note.timed = false;
        if let Err(refusal) = self.release(asked, &request, out) {
            return self.answer(Some(to), id, note, Err(refusal), out);
        }
        let wait = Duration::from_millis(request.wait_ms.into()).min(WAIT_MAX);
        let waiting = WaitingRequest {
            to,
            id,
            note,
            asked: *asked,
            request,
            until: self.observing.now + wait,
        };
        if let Some(waiting) = self.serve_notifications(waiting, out) {
            if self.observing.waiting.len() < WAITING_MAX {
                self.observing.waiting.push(waiting);
            } else {
                self.answer_none(&waiting, out);
            }
        }
    }

    /// Renews the leases that the worker still has, and ends those that it returns. If the worker stops, its waiting requests
    /// are answered: notifications sent to it later would be lost until their leases end.
    fn release(
        &mut self,
        asked: &v1::TabletRef,
        request: &v1::NotificationsRequest,
        out: &mut Vec<Reply>,
    ) -> Result<(), Refusal> {
        if !request.returned.is_empty() || !request.renewed.is_empty() {
            let table = self.state.tablets.serving(asked.id, asked.epoch)?.table;
            let cell_key = |row: &Bytes| Bytes::from(key::cell(table, row, &request.column));
            let (lease, worker) = (
                Duration::from_millis(request.lease_ms.into()),
                request.worker,
            );
            for cell_key in request.renewed.iter().map(cell_key) {
                if !self.observing.is_anothers(&cell_key, worker) {
                    self.observing.lease(cell_key.clone(), lease, worker);
                    self.may_be_sent(&cell_key);
                }
            }
            for cell_key in request.returned.iter().map(cell_key) {
                if !self.observing.is_anothers(&cell_key, worker) {
                    self.observing.release(&cell_key);
                    self.may_be_sent(&cell_key);
                }
            }
            self.wake_observers(out);
        }
        if request.stops && request.worker != 0 {
            let is_its = |it: &mut WaitingRequest| {
                it.asked.id == asked.id && it.request.worker == request.worker
            };
            let stopped: Vec<_> = self.observing.waiting.extract_if(.., is_its).collect();
            for waiting in stopped {
                self.answer_none(&waiting, out);
            }
        }
        Ok(())
    }

    /// Answers a request if there is something to send. Otherwise returns it.
    fn serve_notifications(
        &mut self,
        waiting: WaitingRequest,
        out: &mut Vec<Reply>,
    ) -> Option<WaitingRequest> {
        let result = self.find_notifications(&waiting.asked, &waiting.request);
        if let Err(refusal) = &result {
            self.note_fatal(refusal);
        }
        let nothing = |found: &v1::NotificationsResponse| {
            found.notifications.is_empty() && found.locked_rows.is_empty()
        };
        let wants = waiting.request.limit > 0 && waiting.until > self.observing.now;
        if wants && result.as_ref().is_ok_and(nothing) {
            // Locks are scanned only once.
            let request = v1::NotificationsRequest {
                locked: false,
                ..waiting.request
            };
            return Some(WaitingRequest { request, ..waiting });
        }
        let result = result.map(|found| Some(Body::Notifications(found)));
        self.answer(Some(waiting.to), waiting.id, waiting.note, result, out);
        None
    }

    fn find_notifications(
        &mut self,
        asked: &v1::TabletRef,
        request: &v1::NotificationsRequest,
    ) -> Result<v1::NotificationsResponse, Refusal> {
        let mut response = v1::NotificationsResponse::default();
        if request.columns {
            let tablet = self.state.tablets.serving(asked.id, asked.epoch)?;
            response.observed_columns = self.state.observed.columns(tablet.id);
            return Ok(response);
        }
        let column = &request.column;
        let tablet = notify::observed_tablet(&self.state, asked, column)?;
        if request.count {
            let from = request.from.clone().map(Cell::from);
            notify::count(&self.state, tablet, column, from.as_ref(), &mut response)?;
        }
        let limit = request.limit.min(NOTIFICATIONS_MAX) as usize;
        if limit > 0 {
            let lease = Duration::from_millis(request.lease_ms.into());
            let (place, lease) = ((asked.id, column.clone()), (lease, request.worker));
            response.notifications =
                self.observing
                    .find(&self.state, tablet, place, limit, lease)?;
        }
        if request.locked {
            let place = (asked.id, column.clone());
            let cursor = self.observing.lock_cursors.entry(place).or_default();
            let (rows, next) = notify::locked(&self.state, tablet, column, cursor)?;
            response.locked_rows = rows;
            *cursor = next;
        }
        Ok(response)
    }

    fn answer_none(&self, waiting: &WaitingRequest, out: &mut Vec<Reply>) {
        let none = Body::Notifications(v1::NotificationsResponse::default());
        self.answer(
            Some(waiting.to),
            waiting.id,
            waiting.note,
            Ok(Some(none)),
            out,
        );
    }

    /// Applies a durable decision.
    pub(super) fn observed(&mut self, decision: &Decision) {
        let notified = &decision.notified;
        if notified.is_empty() {
            return;
        }
        for cell_key in &notified.acknowledged {
            self.observing.release(cell_key);
        }
        for cell_key in notified.left.iter().chain(&notified.changed) {
            self.may_be_sent(cell_key);
        }
        if !notified.later.is_empty() {
            let mut later = Decision::new();
            for (cell_key, notification) in &notified.later {
                let column = percolator_engine::Column::Notify;
                let record = notification.encode();
                later.batch.put(column, cell_key.clone(), record);
                later.notified.changed.push(cell_key.clone());
            }
            self.push_unasked(later);
        }
    }

    /// Marks the requests for a cell's notification, which may be sent if it exists and isn't leased.
    fn may_be_sent(&mut self, cell_key: &Bytes) {
        let observing = &mut self.observing;
        let nobody_asks = observing.waiting.is_empty() && observing.unleased.is_empty();
        if nobody_asks || observing.leases.contains_key(cell_key) {
            return;
        }
        // A search notices a key that can't be read.
        let place = self.state.observed.place_of(&self.state.tablets, cell_key);
        if let Ok(Some(place)) = place {
            observing.unleased.add(&place, cell_key.clone());
            if !observing.waiting.is_empty() {
                observing.touched.insert(place);
            }
        }
    }

    /// Marks the requests that wait for this tablet.
    pub(super) fn touch_tablet(&mut self, tablet: u64) {
        let waiting = self.observing.waiting.iter();
        let its = waiting.filter(|it| it.asked.id == tablet).map(place);
        self.observing.touched.extend(its);
    }

    /// Checks the marked requests.
    pub(super) fn wake_observers(&mut self, out: &mut Vec<Reply>) {
        if self.observing.touched.is_empty() {
            return;
        }
        let touched = std::mem::take(&mut self.observing.touched);
        for waiting in std::mem::take(&mut self.observing.waiting) {
            let again = if touched.contains(&place(&waiting)) {
                self.serve_notifications(waiting, out)
            } else {
                Some(waiting)
            };
            self.observing.waiting.extend(again);
        }
    }

    /// Lets time pass.
    pub(super) fn tick_observers(&mut self, elapsed: Duration, out: &mut Vec<Reply>) {
        self.observing.now += elapsed;
        for cell_key in self.observing.expired() {
            self.may_be_sent(&cell_key);
        }
        let tablets = &self.state.tablets;
        let is_served = |asked: &v1::TabletRef| tablets.serving(asked.id, asked.epoch).is_ok();
        let now = self.observing.now;
        let over = |waiting: &WaitingRequest| waiting.until <= now || !is_served(&waiting.asked);
        let places: Vec<_> = self
            .observing
            .waiting
            .iter()
            .filter(|waiting| over(waiting))
            .map(place)
            .collect();
        self.observing.touched.extend(places);
        let unfinished = std::mem::take(&mut self.observing.unfinished);
        self.observing.touched.extend(unfinished);
        self.wake_observers(out);
        let state = &self.state;
        self.observing
            .unleased
            .retain(now, |tablet| state.tablets.get(tablet).is_some());
        self.observing
            .cursors
            .retain(|(tablet, _), _| state.tablets.get(*tablet).is_some());
        self.observing
            .lock_cursors
            .retain(|(tablet, _), _| state.tablets.get(*tablet).is_some());
    }
}
