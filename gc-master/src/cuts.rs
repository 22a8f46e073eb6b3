//! Cutting tablets at rows, and making one of two neighbours: asked of their owner, whose word counts. Neighbours at two servers
//! are moved together first. A request is done when the directory shows what it asks for. It ends when its time is over, or when
//! the owner refuses: nothing but a move goes on by itself.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use percolator_protocol::types::TabletState;

use crate::core::Directory;
use crate::events::Action;
use crate::moves::Moving;
use crate::names::{check_cuts, check_table_name};
use crate::pending::{Pending, WAIT_MAX};
use crate::refusal::Refusal;
use crate::state::{Placement, TableState};

/// A request to split tablets.
#[derive(Debug)]
pub struct Splitting {
    table: String,
    rows: Vec<Vec<u8>>,
    asked: Asked,
}

/// A request to merge two tablets.
#[derive(Debug)]
pub struct Merging {
    table: String,
    row: Bytes,
    /// One of the two goes to the other's server.
    moving: Option<Moving>,
    asked: Asked,
}

/// What was asked of owners.
#[derive(Debug, Default)]
struct Asked {
    /// By tablet: its epoch then. At another one it is asked again.
    at: BTreeMap<u64, u64>,
    /// When the request is refused as pending.
    until: Option<Duration>,
}

impl Asked {
    /// Asks the owner, unless it was asked and nothing has changed since.
    fn ask(
        &mut self,
        directory: &mut Directory,
        now: Duration,
        (id, tablet): (u64, &Placement),
        action: impl FnOnce(&mut Directory) -> Result<Action, Refusal>,
    ) -> Result<(), Refusal> {
        let owner = || tablet.owner.clone();
        let is_asked = self.at.get(&id) == Some(&tablet.epoch);
        // Another request may split it now: this one goes on after that.
        if is_asked || directory.commands.is_in_flight(&tablet.owner, id) {
            return Ok(());
        }
        if !directory.is_alive(&tablet.owner, now) {
            let server = owner();
            return Err(Refusal::OwnerAway { tablet: id, server });
        }
        // Of the time before.
        directory.commands.forget_failure(id, &tablet.owner);
        let action = action(directory)?;
        if directory.ask(&tablet.owner, action) {
            self.at.insert(id, tablet.epoch);
        }
        Ok(())
    }

    /// What hinders this tablet's owner, or that there is still time.
    fn wait<R>(
        &mut self,
        directory: &Directory,
        now: Duration,
        (id, tablet): (u64, &Placement),
        what: &str,
    ) -> Result<Pending<R>, Refusal> {
        let until = *self.until.get_or_insert(now + WAIT_MAX);
        let asked = self.at.get(&id) == Some(&tablet.epoch);
        let failed = directory.commands.failure(id, &tablet.owner);
        if let Some(cause) = failed.filter(|_| asked) {
            return Err(Refusal::NotCut {
                tablet: id,
                server: tablet.owner.clone(),
                cause: cause.clone(),
            });
        }
        if now < until {
            return Ok(Pending::Wait { until });
        }
        Err(Refusal::Pending {
            what: format!("tablet {id} is to be {what}"),
            waits_for: tablet.owner.clone(),
        })
    }
}

impl Splitting {
    /// Of the table of this name, at these rows.
    pub fn new(table: String, rows: Vec<Vec<u8>>) -> Self {
        Self {
            table,
            rows,
            asked: Asked::default(),
        }
    }

    /// Begins the split, or checks how far it is. Returns the table when it is done.
    ///
    /// # Errors
    /// [`Refusal::NoSuchTable`], [`Refusal::NotReady`], [`Refusal::Cut`], [`Refusal::Unplaced`], [`Refusal::OwnerAway`],
    /// [`Refusal::NotCut`], and [`Refusal::Pending`] when it takes long.
    pub fn go_on(
        &mut self,
        directory: &mut Directory,
        now: Duration,
    ) -> Result<Pending<u32>, Refusal> {
        check_cuts(&self.rows)?;
        let table = directory.ready_table(&self.table)?;
        let mut waits_for = None;
        for row in &self.rows {
            let (id, tablet) = directory.placed(table, row)?;
            if tablet.rows.start == *row {
                continue;
            }
            let action = |directory: &mut Directory| {
                Ok(Action::Split {
                    tablet: id,
                    epoch: tablet.epoch,
                    row: Bytes::copy_from_slice(row),
                    sibling: directory.next_tablet_id(now)?,
                })
            };
            self.asked.ask(directory, now, (id, &tablet), action)?;
            waits_for.get_or_insert((id, tablet));
        }
        match waits_for {
            Some((id, tablet)) => self.asked.wait(directory, now, (id, &tablet), "split"),
            None => Ok(Pending::Done(table)),
        }
    }
}

impl Merging {
    /// Of the table of this name: the tablet that begins at this row, and the one before it.
    pub fn new(table: String, row: Bytes) -> Self {
        Self {
            table,
            row,
            moving: None,
            asked: Asked::default(),
        }
    }

    /// Begins the merge, or checks how far it is. Returns the table when it is done.
    ///
    /// # Errors
    /// As [`Splitting::go_on`] and [`Moving::go_on`].
    pub fn go_on(
        &mut self,
        directory: &mut Directory,
        now: Duration,
    ) -> Result<Pending<u32>, Refusal> {
        // The move before it has no time of its own.
        let until = *self.asked.until.get_or_insert(now + WAIT_MAX);
        let table = directory.ready_table(&self.table)?;
        check_cuts(&[self.row.to_vec()])?;
        let (second, right) = directory.placed(table, &self.row)?;
        if right.rows.start != self.row {
            return Ok(Pending::Done(table));
        }
        let before = directory.tablets.before_row(table, &self.row).next();
        let before = before.map(|(id, tablet)| (id, tablet.clone()));
        let neighbour = before.filter(|(_, tablet)| tablet.rows.end == self.row);
        let Some((first, left)) = neighbour else {
            return Err(Refusal::Unplaced {
                table: self.table.clone(),
            });
        };
        if left.owner != right.owner || !left.listed || !right.listed {
            return self.move_together(directory, (now, until), (first, &left), (second, &right));
        }
        for id in [first, second] {
            directory.leave_to_person(now, id);
        }
        let action = |_: &mut Directory| {
            Ok(Action::Merge {
                first: (first, left.epoch),
                second: (second, right.epoch),
            })
        };
        self.asked.ask(directory, now, (first, &left), action)?;
        self.asked.wait(directory, now, (first, &left), "merged")
    }

    /// Moves the second one to the server of the first, or the other way if that one may not get it. It takes until then at the
    /// most.
    fn move_together(
        &mut self,
        directory: &mut Directory,
        (now, until): (Duration, Duration),
        (first, left): (u64, &Placement),
        (second, right): (u64, &Placement),
    ) -> Result<Pending<u32>, Refusal> {
        let may_get = |to: &str, id, tablet| directory.check_may_get(to, id, tablet).is_ok();
        let is_under_way = |id, to: &str| self.moving.as_ref().is_some_and(|it| it.is_of(id, to));
        // Not both at a time.
        let goes_back = is_under_way(first, &right.owner)
            || (!is_under_way(second, &left.owner)
                && !may_get(&left.owner, second, right)
                && may_get(&right.owner, first, left));
        let (goes, stays, server) = if goes_back {
            (first, second, &right.owner)
        } else {
            (second, first, &left.owner)
        };
        directory.leave_to_person(now, stays);
        if left.owner == right.owner {
            // They are reported soon.
            return self.asked.wait(directory, now, (first, left), "merged");
        }
        let moving = self
            .moving
            .take()
            .filter(|it| it.is_of(goes, server))
            .unwrap_or_else(|| Moving::within(goes, server, until));
        let moving = self.moving.insert(moving);
        match moving.go_on(directory, now)? {
            Pending::Wait { until } => Ok(Pending::Wait { until }),
            // The other one isn't reported yet.
            Pending::Done(_) => self.asked.wait(directory, now, (first, left), "merged"),
        }
    }
}

impl Directory {
    /// The table of this name, if it can be used.
    fn ready_table(&self, name: &str) -> Result<u32, Refusal> {
        check_table_name(name)?;
        let state = self.state()?;
        let missing = || Refusal::NoSuchTable { name: name.into() };
        let id = state.table_named(name).ok_or_else(missing)?;
        match self.table(id).map(|table| table.state) {
            Some(TableState::Ready) => Ok(id),
            _ => Err(Refusal::NotReady { name: name.into() }),
        }
    }

    /// The tablet that has this row of a table.
    fn placed(&self, table: u32, row: &[u8]) -> Result<(u64, Placement), Refusal> {
        let found = self.tablets.of_row(table, row);
        let found = found.filter(|(_, tablet)| tablet.made && tablet.state == TabletState::Serving);
        let unplaced = || Refusal::Unplaced {
            table: self
                .table(table)
                .map_or_else(String::new, |it| it.name.clone()),
        };
        let (id, tablet) = found.ok_or_else(unplaced)?;
        Ok((id, tablet.clone()))
    }

    /// An id that no tablet has had. It is durable before a server gets it.
    pub(crate) fn next_tablet_id(&mut self, now: Duration) -> Result<u64, Refusal> {
        self.check_newest(now)?;
        let state = self.state.as_mut().ok_or(Refusal::NoState)?;
        let id = state.next_tablet_id;
        state.next_tablet_id += 1;
        self.dirty = true;
        Ok(id)
    }
}
