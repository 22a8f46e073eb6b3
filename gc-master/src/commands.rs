//! The commands to tablet servers to make, freeze and drop tablets, and their outcomes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use percolator_protocol::types::{TableId, Tablet, TabletState};

use crate::core::Directory;
use crate::events::{Action, Command, Done, Note};
use crate::state::{DirectoryState, TableRecord, TableState};

/// What was asked, and what became of it.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    /// Tables with tablets that have to be made, frozen or dropped. None: to be found out, as the state has changed.
    unsettled: Option<BTreeSet<u32>>,
    /// Commands that were given and have not finished: server and tablet.
    in_flight: BTreeSet<(String, u64)>,
    /// Why a command was not carried out, where it was not the last time: tablet that is known, and server.
    failures: BTreeMap<(u64, String), String>,
}

impl Commands {
    /// The state has changed: other tables may have tablets that have to be made, frozen or dropped.
    pub(crate) fn state_has_changed(&mut self) {
        self.unsettled = None;
    }

    /// Whether the server has a command for this tablet that has not finished.
    pub(crate) fn is_in_flight(&self, server: &str, tablet: u64) -> bool {
        self.in_flight.contains(&(server.to_owned(), tablet))
    }

    /// How many commands have not finished.
    pub(crate) fn in_flight_len(&self) -> usize {
        self.in_flight.len()
    }

    /// Why the server didn't carry out its last command for this tablet, if it didn't.
    pub(crate) fn failure(&self, tablet: u64, server: &str) -> Option<&String> {
        self.failures.get(&(tablet, server.to_owned()))
    }

    /// How many such causes are held.
    pub(crate) fn failures_len(&self) -> usize {
        self.failures.len()
    }

    /// It is asked again: what became of it before counts no more.
    pub(crate) fn forget_failure(&mut self, tablet: u64, server: &str) {
        self.failures.remove(&(tablet, server.to_owned()));
    }

    /// Nobody asks any more what became of this tablet's commands.
    pub(crate) fn forget_failures_of_tablet(&mut self, tablet: u64) {
        let failed = self.failures.range((tablet, String::new())..);
        let failed = failed.take_while(|((id, _), _)| *id == tablet);
        for failed in failed.map(|(failed, _)| failed.clone()).collect::<Vec<_>>() {
            self.failures.remove(&failed);
        }
    }

    /// Another process has the server's name.
    pub(crate) fn forget_failures_of_server(&mut self, name: &str) {
        self.failures.retain(|(_, server), _| server != name);
    }
}

impl Directory {
    /// The outcome of a command: how many groups its server had when it was done, or why it was not. What was not done is asked again
    /// with the server's next heartbeat.
    pub fn finished(&mut self, now: Duration, command: &Command, outcome: Result<Done, String>) {
        let tablet_id = command.action.tablet();
        self.effects.wakes |= command.action.is_awaited();
        let asked = (tablet_id, command.server.clone());
        for id in command.action.tablets() {
            self.commands
                .in_flight
                .remove(&(command.server.clone(), id));
        }
        let done = outcome.is_ok();
        let mut changed = Vec::new();
        match outcome {
            Ok(done) => {
                self.commands.failures.remove(&asked);
                self.learn_groups(&command.server, command.incarnation, done.groups);
                changed = done.tablets;
            }
            Err(cause) if self.commands.failures.get(&asked) != Some(&cause) => {
                self.effects.notes.push(Note::Failed {
                    server: command.server.clone(),
                    tablet: tablet_id,
                    cause: cause.clone(),
                });
                if self.tablets.contains(tablet_id) {
                    self.commands.failures.insert(asked, cause);
                }
            }
            Err(_) => {}
        }
        let Some(tablet) = self.tablets.get(tablet_id) else {
            return;
        };
        if !done || tablet.owner != command.server {
            return;
        }
        let table = tablet.table;
        let is_same_start = self.incarnation(&command.server) == command.incarnation;
        match &command.action {
            Action::Create { tablet: asked, .. } => {
                let mut now = tablet.state;
                if asked.epoch == tablet.epoch {
                    now = now.max(asked.state);
                }
                self.tablets.update(tablet_id, true, now);
                // The locks in its list include those of this one, which was made to refuse what is below the barrier.
                if is_same_start && self.reported(&command.server).is_some() {
                    self.tablets.set_listed(tablet_id, true);
                }
            }
            Action::Drop { .. } => self.forget_tablet(tablet_id),
            // The heartbeats of another incarnation report it.
            Action::Split { .. } | Action::Merge { .. } if is_same_start => {
                self.take_in(&command.server, changed);
            }
            // The server that gets a tablet reports it when it has it.
            Action::Split { .. } | Action::Merge { .. } | Action::Import { .. } => {}
        }
        self.settle(table);
        self.command(now, &command.server);
    }

    /// Finds out which tables have tablets that have to be made, frozen or dropped.
    fn find_unsettled(&mut self) {
        let has_work = |state: &DirectoryState, id: u32, table: &TableRecord| match table.state {
            TableState::Ready => false,
            TableState::Creating => true,
            // Else it waits for the safe point.
            TableState::Deleting => table.drop_at.is_none() || state.may_drop(id),
        };
        if self.dirty || self.commands.unsettled.is_none() {
            self.commands.unsettled = self.state.as_ref().map(|state| {
                let tables = state.tables.iter();
                let unsettled = tables.filter(|(id, table)| has_work(state, **id, table));
                unsettled.map(|(id, _)| *id).collect()
            });
        }
    }

    /// Commands the server, if it is up, to do what is due and was not commanded yet.
    pub(crate) fn command(&mut self, now: Duration, server: &str) {
        self.find_unsettled();
        let (Some(state), Some(unsettled)) = (&self.state, &self.commands.unsettled) else {
            return;
        };
        if unsettled.is_empty() || !self.is_alive(server, now) {
            return;
        }
        let mut actions = Vec::new();
        for (id, tablet) in self.tablets.of_owner_in(server, unsettled) {
            let Some(table) = state.tables.get(&tablet.table) else {
                continue;
            };
            let asked = |state| Tablet {
                id,
                table: TableId(tablet.table),
                table_name: table.name.clone(),
                rows: tablet.rows.clone(),
                // One that stands for what was lost has none.
                epoch: tablet.epoch.max(1),
                state,
            };
            let next = match table.state {
                TableState::Creating if !tablet.made => TabletState::Serving,
                // Also where the owner never had it: a command to make it that is late finds it frozen.
                TableState::Deleting if tablet.state < TabletState::Frozen => TabletState::Frozen,
                TableState::Deleting if state.may_drop(tablet.table) => {
                    actions.push(Action::Drop {
                        tablet: id,
                        table: tablet.table,
                    });
                    continue;
                }
                TableState::Creating | TableState::Ready | TableState::Deleting => continue,
            };
            actions.push(Action::Create {
                tablet: asked(next),
                made: tablet.made,
                barrier: state.gc.points().barrier,
            });
        }
        for action in actions {
            self.ask(server, action);
        }
    }

    /// One command for a tablet at a time: a drop must not overtake a create.
    /// Whether it is asked now.
    pub(crate) fn ask(&mut self, server: &str, action: Action) -> bool {
        let Some(state) = &self.state else {
            return false;
        };
        let Some(known) = state.servers.get(server) else {
            return false;
        };
        let asked = action.tablets().map(|id| (server.to_owned(), id));
        let asked: Vec<_> = asked.collect();
        let in_flight = &mut self.commands.in_flight;
        let is_new = !asked.iter().any(|it| in_flight.contains(it));
        if is_new {
            in_flight.extend(asked);
            self.effects.commands.push(Command {
                cluster_id: state.cluster_id.clone(),
                server: server.to_owned(),
                incarnation: self.live.get(server).map_or(0, |live| live.incarnation),
                address: known.address.clone(),
                action,
            });
        }
        is_new
    }
}
