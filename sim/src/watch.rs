//! What the invariants are told: timestamps, groups that became durable, what a server holds when it
//! starts again, and everything at the end ([`End`]).

use std::collections::BTreeMap;

use bytes::Bytes;
use percolator_engine::{Batch, Column, Engine};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::{Cell, DecodeError, Lock, Timestamp, Write, WriteKind, key};

use crate::end::{End, Store};
use crate::history::Record;
use crate::invariants::{self, Invariant, durable};
use crate::owned::Owned;
use crate::seen::Seen;

/// A change of a server's durable state.
#[derive(Clone, Debug)]
pub enum Change {
    /// A lock is put.
    PutLock {
        /// The cell's key.
        cell: Bytes,
        /// The lock.
        lock: Lock,
        /// The lock that it takes the place of.
        old: Option<Lock>,
    },
    /// A lock goes.
    DeleteLock {
        /// The cell's key.
        cell: Bytes,
        /// The lock, if there was one.
        old: Option<Lock>,
    },
    /// A write record is put.
    PutWrite {
        /// The cell's key.
        cell: Bytes,
        /// Where it stands.
        ts: Timestamp,
        /// The record.
        write: Write,
        /// The record that it takes the place of.
        old: Option<Write>,
    },
    /// A write record of a table in use goes, or its fate takes its place.
    DeleteWrite {
        /// The cell's key.
        cell: Bytes,
        /// Where it stood.
        ts: Timestamp,
        /// The record.
        write: Write,
        /// Its fate stays.
        leaves_fate: bool,
        /// The points that its server had made durable before this group.
        points: Points,
        /// The records that the cell still has, newest first.
        left: Vec<(Timestamp, WriteKind)>,
    },
}

/// What a broken invariant says: its name, and what was seen.
pub type Broken = (&'static str, String);

/// What a server holds.
pub(crate) type Content = BTreeMap<(Column, Bytes), Bytes>;

/// The keys and values of a column, in order.
pub(crate) fn pairs(content: &Content, column: Column) -> impl Iterator<Item = (&Bytes, &Bytes)> {
    let pairs = content.range((column, Bytes::new())..);
    pairs
        .take_while(move |((of, _), _)| *of == column)
        .map(|((_, key), value)| (key, value))
}

/// What a tablet server has made durable.
pub(crate) struct Holding<'a> {
    /// Its name.
    pub(crate) server: &'a str,
    /// All of its columns.
    pub(crate) content: &'a Content,
    /// Its tablets.
    pub(crate) owned: &'a Owned,
    /// Its points.
    pub(crate) points: Points,
}

/// The invariants, and what every server should hold.
pub struct Watch {
    invariants: Vec<Box<dyn Invariant>>,
    contents: BTreeMap<String, Content>,
    /// What was collected, by whichever server: records, and their values. What goes with a tablet isn't.
    collected: Content,
    /// The tablets that each server has.
    owned: BTreeMap<String, Owned>,
    /// What a server owns that has not said it.
    nothing: Owned,
    /// The points that each server has made durable.
    points: BTreeMap<String, Points>,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            invariants: invariants::all(),
            contents: BTreeMap::new(),
            collected: Content::new(),
            owned: BTreeMap::new(),
            nothing: Owned::default(),
            points: BTreeMap::new(),
        }
    }
}

impl Watch {
    /// With this invariant alone, or with all of them.
    pub fn new(only: Option<&str>) -> Self {
        let mut watch = Self::default();
        watch
            .invariants
            .retain(|invariant| only.is_none_or(|only| invariant.name() == only));
        watch
    }

    /// Tells everyone.
    ///
    /// # Errors
    /// The first invariant that is broken.
    #[expect(clippy::too_many_lines, reason = "one line a kind of event")]
    pub fn see(&mut self, seen: &Seen<'_>) -> Result<(), Broken> {
        match seen {
            Seen::Granted(granted) => self.tell(|invariant| invariant.granted(*granted)),
            Seen::Led { role, server, term } => {
                self.tell(|invariant| invariant.led(role, server, *term))
            }
            Seen::ServedState { term, stored_term } => {
                self.tell(|invariant| invariant.served_state(*term, *stored_term))
            }
            Seen::ShownEarly { server, missing } => {
                self.tell(|invariant| invariant.shown_early(server, missing))
            }
            Seen::ShownState(term, shown) => {
                self.tell(|invariant| invariant.shown_state(*term, *shown))
            }
            Seen::DurableState(number) => self.tell(|invariant| invariant.durable_state(*number)),
            Seen::OpenedState {
                term,
                number,
                state,
            } => self.tell(|invariant| invariant.opened_state(*term, *number, *state)),
            Seen::Bounded(above) => self.tell(|invariant| invariant.bounded(*above)),
            Seen::Received { ts, after } => self.tell(|invariant| invariant.received(*ts, *after)),
            Seen::Durable { server, group } => self.durable(server, group),
            Seen::Reopened {
                server,
                engine,
                maybe,
            } => self.reopened(server, *engine, maybe),
            Seen::Removed { server } => self.server_removed(server),
            Seen::Owns { server, tablets } => {
                self.owned.insert((*server).to_owned(), Owned::of(tablets));
                self.tell(|invariant| invariant.owns(server, tablets))
            }
            Seen::Points {
                server,
                points,
                time,
            } => self.tell(|invariant| invariant.points(server, *points, *time)),
            Seen::RetentionAsked(retention) => {
                self.tell(|invariant| invariant.retention_asked(*retention))
            }
            Seen::RetentionSet => self.tell(|invariant| invariant.retention_set()),
            Seen::TooOld(start_ts) => self.tell(|invariant| invariant.too_old(*start_ts)),
            Seen::KeptAlive {
                start_ts,
                tablet,
                by,
                ttl_ms,
            } => self.tell(|invariant| invariant.kept_alive(*start_ts, (*tablet, *by), *ttl_ms)),
            Seen::EndAsked {
                start_ts,
                by,
                forced,
            } => self.tell(|invariant| invariant.end_asked(*start_ts, *by, *forced)),
            Seen::DeletionAsked(table) => self.tell(|invariant| invariant.deletion_asked(*table)),
            Seen::FoundRolledBack(start_ts) => {
                self.tell(|invariant| invariant.found_rolled_back(*start_ts))
            }
            Seen::LeaseAsked { session, floor } => {
                self.tell(|invariant| invariant.lease_asked(*session, *floor))
            }
            Seen::LeaseGranted {
                session,
                floor,
                barrier,
                until,
            } => self.tell(|invariant| invariant.lease_granted(*session, *floor, *barrier, *until)),
            Seen::Holds { held, limits } => self.tell(|invariant| invariant.holds(held, limits)),
            Seen::MasterHolds(held) => self.tell(|invariant| invariant.master_holds(held)),
            Seen::Locks { counted, stored } => {
                self.tell(|invariant| invariant.locks(*counted, *stored))
            }
            Seen::Answered { response, limits } => {
                self.tell(|invariant| invariant.answered(response, limits))
            }
            Seen::Resolved { start_ts, left } => {
                self.tell(|invariant| invariant.resolved(*start_ts, left))
            }
        }
    }

    /// The run is over.
    ///
    /// # Errors
    /// The first invariant that is broken.
    pub fn end(
        &mut self,
        history: &[Record],
        tables: &BTreeMap<String, u32>,
    ) -> Result<(), Broken> {
        let mut all = self.collected.clone();
        for (place, value) in self.owned_contents() {
            // A fate tells less than what it has replaced, on whichever server.
            match all.get(place) {
                Some(old) if is_fate_of(place, value, old) => {}
                _ => {
                    all.insert(place.clone(), value.clone());
                }
            }
        }
        let store = Store::read(&all).map_err(|why| ("readable", why))?;
        let end = End {
            history,
            tables,
            store: &store,
            contents: &self.contents,
            owned: &self.owned,
        };
        for invariant in &mut self.invariants {
            let at_end = invariant.at_end(&end);
            at_end.map_err(|why| (invariant.name(), why))?;
        }
        Ok(())
    }

    /// What each tablet server has made durable.
    pub(crate) fn holdings(&self) -> impl Iterator<Item = Holding<'_>> {
        self.contents.iter().map(|(server, content)| Holding {
            server,
            content,
            owned: self.owned.get(server).unwrap_or(&self.nothing),
            points: self.points.get(server).copied().unwrap_or_default(),
        })
    }

    /// The cells that are locked.
    pub fn locked(&self) -> Vec<(Cell, Lock)> {
        let locks = self
            .owned_contents()
            .filter(|((column, _), _)| *column == Column::Lock);
        locks
            .filter_map(|((_, key), value)| {
                Some((
                    key::decode_cell(key).ok()?,
                    Lock::decode(value.clone()).ok()?,
                ))
            })
            .collect()
    }

    /// What servers hold, without copies that others made of it, or that were left behind.
    fn owned_contents(&self) -> impl Iterator<Item = (&(Column, Bytes), &Bytes)> {
        let of_servers = self.contents.iter();
        of_servers.flat_map(|(server, content)| {
            content
                .iter()
                .filter(|((column, key), _)| self.counts(server, *column, key))
        })
    }

    /// Whether what the server has at this key is what the cluster has: it is the owner, or there is none any more.
    fn counts(&self, server: &str, column: Column, key: &[u8]) -> bool {
        let of_rows = [Column::Lock, Column::Write, Column::Data].contains(&column);
        let owns = |owned: &Owned| owned.at(key).is_some();
        !of_rows || self.owned.get(server).is_some_and(owns) || !self.owned.values().any(owns)
    }

    /// Whether the server has the tablet that this key lies in, and the tablet is in use, if so.
    fn owns(&self, server: &str, key: &[u8]) -> Option<bool> {
        let tablet = self.owned.get(server)?.at(key)?;
        Some(tablet.is_in_use)
    }

    fn tell(
        &mut self,
        mut tell: impl FnMut(&mut dyn Invariant) -> Result<(), String>,
    ) -> Result<(), Broken> {
        for invariant in &mut self.invariants {
            tell(&mut **invariant).map_err(|why| (invariant.name(), why))?;
        }
        Ok(())
    }

    fn server_removed(&mut self, server: &str) -> Result<(), Broken> {
        self.contents.remove(server);
        self.points.remove(server);
        self.tell(|invariant| invariant.removed(server))
    }

    fn durable(&mut self, server: &str, group: &[Batch]) -> Result<(), Broken> {
        let points = self.points.get(server).copied().unwrap_or_default();
        if !self.contents.contains_key(server) {
            self.contents.insert(server.to_owned(), Content::new());
        }
        for (column, key, value) in group.iter().flat_map(Batch::ops) {
            if let (Column::Meta, b"points", Some(stored)) = (column, &key[..], value) {
                let reached = self.reached(server, stored);
                reached.map_err(|why| ("points go forward", why))?;
            }
            let content = self.contents.get_mut(server).expect("made above");
            let place = (column, key.clone());
            let old = match value {
                Some(value) => content.insert(place.clone(), value.clone()),
                None => content.remove(&place),
            };
            let leaves_fate = match (value, &old) {
                (Some(value), Some(old)) => is_fate_of(&place, value, old),
                _ => false,
            };
            // A copy that another server makes, or that is removed when it isn't needed any more, changes nothing.
            if [Column::Lock, Column::Write, Column::Data].contains(&column)
                && !self.counts(server, column, key)
            {
                continue;
            }
            if value.is_none() || leaves_fate {
                self.keep(server, place, old.as_ref());
            }
            let change = match (column, value, old) {
                (Column::Write, None, Some(old)) => self.removed(server, points, key, old, false),
                (Column::Write, Some(_), Some(old)) if leaves_fate => {
                    self.removed(server, points, key, old, true)
                }
                (_, _, old) => change(column, key, value, old),
            };
            let change = change.map_err(|why| ("readable", why))?;
            if let Some(change) = change {
                self.tell(|invariant| invariant.changed(&change))?;
            }
        }
        Ok(())
    }

    /// Remembers the points that a server has made durable: they go forward there too.
    fn reached(&mut self, server: &str, stored: &Bytes) -> Result<(), String> {
        let wrong = || format!("points of {} bytes", stored.len());
        let (&[barrier, safe_point, resolved], []) = stored.as_chunks::<8>() else {
            return Err(wrong());
        };
        let point = |bytes| Timestamp::from_u64(u64::from_be_bytes(bytes));
        let points = Points {
            barrier: point(barrier),
            safe_point: point(safe_point),
            resolved: point(resolved),
        };
        let reached = self.points.entry(server.to_owned()).or_default();
        if points.safe_point < reached.safe_point || points.resolved < reached.resolved {
            return Err(format!("{server} keeps {points:?} after {reached:?}"));
        }
        *reached = points;
        Ok(())
    }

    /// A write record that is gone: none where its table is not in use, because then it goes as a whole.
    fn removed(
        &self,
        server: &str,
        points: Points,
        place: &Bytes,
        old: Bytes,
        leaves_fate: bool,
    ) -> Result<Option<Change>, String> {
        let (cell_key, ts) = key::split_version(place).map_err(unreadable)?;
        if self.owns(server, place) != Some(true) {
            return Ok(None);
        }
        let mut left = Vec::new();
        if let Some(content) = self.contents.get(server) {
            let from = key::version(cell_key.to_vec(), Timestamp::MAX);
            let to = key::behind_cell(cell_key.to_vec());
            let records = (Column::Write, Bytes::from(from))..(Column::Write, Bytes::from(to));
            for ((_, key), value) in content.range(records) {
                let (_, ts) = key::split_version(key).map_err(unreadable)?;
                left.push((
                    ts,
                    Write::decode(ts, value.clone()).map_err(unreadable)?.kind,
                ));
            }
        }
        Ok(Some(Change::DeleteWrite {
            cell: place.slice_ref(cell_key),
            ts,
            write: Write::decode(ts, old).map_err(unreadable)?,
            leaves_fate,
            points,
            left,
        }))
    }

    /// Keeps what is removed from a tablet that the server owns: snapshots have seen it.
    fn keep(&mut self, server: &str, place: (Column, Bytes), old: Option<&Bytes>) {
        let (Column::Write | Column::Data, Some(old)) = (place.0, old) else {
            return;
        };
        if self.owns(server, &place.1).is_some() {
            let known = self.collected.get(&place);
            if !known.is_some_and(|known| is_fate_of(&place, old, known)) {
                self.collected.insert(place, old.clone());
            }
        }
    }

    fn reopened(
        &mut self,
        server: &str,
        engine: &dyn Engine,
        maybe: &[Batch],
    ) -> Result<(), Broken> {
        let content = self.contents.entry(server.to_owned()).or_default();
        let has_last_group = durable::check(server, engine, content, maybe)
            .map_err(|why| (invariants::DURABLE, why))?;
        if has_last_group {
            self.durable(server, maybe)?;
        }
        Ok(())
    }
}

/// Whether a record takes the place of one of the same transaction that had a value: its fate.
fn is_fate_of((column, key): &(Column, Bytes), value: &Bytes, old: &Bytes) -> bool {
    let decoded = |bytes: &Bytes| {
        let (_, ts) = key::split_version(key).ok()?;
        Write::decode(ts, bytes.clone()).ok()
    };
    if *column != Column::Write {
        return false;
    }
    let (Some(new), Some(old)) = (decoded(value), decoded(old)) else {
        return false;
    };
    new.kind == WriteKind::Lock
        && matches!(old.kind, WriteKind::Put | WriteKind::Delete)
        && new.start_ts == old.start_ts
}

fn unreadable(error: DecodeError) -> String {
    error.to_string()
}

fn change(
    column: Column,
    key: &Bytes,
    value: Option<&Bytes>,
    old: Option<Bytes>,
) -> Result<Option<Change>, String> {
    match (column, value) {
        (Column::Lock, value) => {
            let old = old.map(Lock::decode).transpose().map_err(unreadable)?;
            let cell = key.clone();
            Ok(Some(match value {
                Some(value) => Change::PutLock {
                    cell,
                    lock: Lock::decode(value.clone()).map_err(unreadable)?,
                    old,
                },
                None => Change::DeleteLock { cell, old },
            }))
        }
        (Column::Write, Some(value)) => {
            let (cell, ts) = key::split_version(key).map_err(unreadable)?;
            Ok(Some(Change::PutWrite {
                cell: key.slice_ref(cell),
                ts,
                write: Write::decode(ts, value.clone()).map_err(unreadable)?,
                old: old
                    .map(|old| Write::decode(ts, old))
                    .transpose()
                    .map_err(unreadable)?,
            }))
        }
        _ => Ok(None),
    }
}
