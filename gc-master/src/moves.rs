//! Handing tablets over from server to server: the new owner gets the address of the old one, and does the rest. The
//! owners' reports count: a tablet is where it is reported at its highest epoch, or where its owner reports that it has gone.

use std::collections::BTreeMap;
use std::time::Duration;

use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::types::{TableId, Tablet, TabletState};

use crate::core::Directory;
use crate::events::{Action, Departed};
use crate::pending::{Pending, WAIT_MAX};
use crate::refusal::Refusal;
use crate::reports::{Arrival, Whereabouts};
use crate::state::{Placement, TableState};

/// A tablet that is handed over, for a person or for the master itself. The servers go on with it when no request waits any more.
#[derive(Debug)]
pub struct Moving {
    tablet: u64,
    /// The server that gets it.
    to: String,
    /// What the server that gets it was asked. It is asked again when something of that has changed.
    attempt: Option<Attempt>,
    /// When the server responded to the command: later reports of the tablet are about this attempt.
    since: Option<Duration>,
    until: Option<Duration>,
    /// The server may get the tablet: that was checked, or the master itself decided it.
    is_checked: bool,
}

/// What the command to get a tablet depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Attempt {
    epoch: u64,
    owner_incarnation: u64,
    /// Another start of the server that gets the tablet may know nothing of it.
    target_incarnation: u64,
}

impl Moving {
    /// Of this tablet, to this server.
    pub fn new(tablet: u64, to: impl Into<String>) -> Self {
        Self {
            tablet,
            to: to.into(),
            attempt: None,
            since: None,
            until: None,
            is_checked: false,
        }
    }

    /// The same for a request that waits until then at the most.
    pub(crate) fn within(tablet: u64, to: &str, until: Duration) -> Self {
        Self {
            until: Some(until),
            ..Self::new(tablet, to)
        }
    }

    /// Whether it is this tablet that goes to this server.
    pub(crate) fn is_of(&self, tablet: u64, server: &str) -> bool {
        self.tablet == tablet && self.to == server
    }

    /// A move that the master itself decided: it goes on until it is done or refused.
    pub(crate) fn of_master(tablet: u64, to: &str) -> Self {
        Self {
            until: Some(Duration::MAX),
            is_checked: true,
            ..Self::new(tablet, to)
        }
    }

    /// Begins it, or checks how far it is.
    ///
    /// # Errors
    /// [`Refusal::NoSuchTablet`], [`Refusal::NoSuchServer`], [`Refusal::NotReady`], [`Refusal::OwnerAway`],
    /// [`Refusal::ServerAway`], [`Refusal::Draining`], [`Refusal::Stopping`], [`Refusal::NoRoom`], [`Refusal::NotMoved`], and
    /// [`Refusal::Pending`] when it takes long.
    pub fn go_on(
        &mut self,
        directory: &mut Directory,
        now: Duration,
    ) -> Result<Pending<()>, Refusal> {
        let (id, to) = (self.tablet, &self.to);
        directory.check_tablet_server(to)?;
        let tablet = directory.tablets.get(id).cloned();
        let tablet = tablet.ok_or(Refusal::NoSuchTablet { tablet: id })?;
        if !std::mem::replace(&mut self.is_checked, true) {
            directory.check_may_get(to, id, &tablet)?;
            directory.leave_to_person(now, id);
        }
        if tablet.owner == *to && tablet.listed {
            return Ok(Pending::Done(()));
        }
        let until = *self.until.get_or_insert(now + WAIT_MAX);
        let in_flight = directory.commands.is_in_flight(to, id);
        if tablet.owner != *to && !in_flight {
            let attempt = Attempt {
                epoch: tablet.epoch,
                owner_incarnation: directory.incarnation(&tablet.owner),
                target_incarnation: directory.incarnation(to),
            };
            if self.attempt == Some(attempt) {
                let since = *self.since.get_or_insert(now);
                directory.check_arrival(to, id, tablet.epoch, since)?;
            } else {
                let action = directory.import(now, id, &tablet, to)?;
                directory.commands.forget_failure(id, to);
                if directory.ask(to, action) {
                    self.attempt = Some(attempt);
                    self.since = None;
                }
            }
        }
        if now < until {
            return Ok(Pending::Wait { until });
        }
        Err(Refusal::Pending {
            what: format!("tablet {id} is on its way from {} to {to}", tablet.owner),
            waits_for: directory.progress_of(to, id),
        })
    }
}

impl Directory {
    /// The command to the server that gets a tablet.
    fn import(
        &self,
        now: Duration,
        id: u64,
        tablet: &Placement,
        to: &str,
    ) -> Result<Action, Refusal> {
        let state = self.state()?;
        let owner = tablet.owner.clone();
        if !self.is_alive(&owner, now) {
            return Err(Refusal::OwnerAway {
                tablet: id,
                server: owner,
            });
        }
        if !self.is_alive(to, now) {
            return Err(Refusal::ServerAway { server: to.into() });
        }
        let table = state.tables.get(&tablet.table);
        let ready = table.filter(|table| table.state == TableState::Ready);
        let name = table.map_or_else(String::new, |table| table.name.clone());
        let serves = tablet.made && tablet.state == TabletState::Serving;
        if ready.is_none() || !serves {
            return Err(Refusal::NotReady { name });
        }
        Ok(Action::Import {
            tablet: Tablet {
                id,
                table: TableId(tablet.table),
                table_name: name,
                rows: tablet.rows.clone(),
                epoch: tablet.epoch,
                state: tablet.state,
            },
            from: self.whereabouts(&owner),
            address: self.whereabouts(to).address,
        })
    }

    /// Where a server is, and which start of it.
    pub(crate) fn whereabouts(&self, server: &str) -> Whereabouts {
        let state = self.state.as_ref();
        let known = state.and_then(|state| state.servers.get(server));
        Whereabouts {
            server: server.to_owned(),
            incarnation: self.incarnation(server),
            address: known.map_or_else(String::new, |known| known.address.clone()),
        }
    }

    /// Whether the server that gets the tablet has given it up since then.
    fn check_arrival(&self, to: &str, id: u64, epoch: u64, since: Duration) -> Result<(), Refusal> {
        let refused = self.commands.failure(id, to).cloned();
        let live = self.live.get(to);
        let reported = live.filter(|live| live.last_heartbeat > since);
        let arrival = reported.and_then(|live| live.arrival(id));
        let arrival = arrival.filter(|it| it.epoch == epoch);
        // It remembers some failures only. That it serves the tablet it would report together with the end of the arrival.
        let forgotten = live
            .filter(|live| {
                arrival.is_none() && live.last_heartbeat > since + self.heartbeat_timeout()
            })
            .map(|_| "it doesn't know of it any more".to_owned());
        let failed = arrival.and_then(|it| it.failure.clone());
        match refused.or(failed).or(forgotten) {
            Some(cause) => Err(Refusal::NotMoved {
                tablet: id,
                server: to.to_owned(),
                cause,
            }),
            None => Ok(()),
        }
    }

    /// How far a server is with a tablet that it gets, in words.
    fn progress_of(&self, to: &str, id: u64) -> String {
        let arrival = self.live.get(to).and_then(|live| live.arrival(id));
        match arrival {
            Some(arrival) if arrival.failure.is_none() => {
                format!("{to}, which has {} bytes of it", arrival.bytes)
            }
            _ => to.to_owned(),
        }
    }

    /// Takes in an owner's report of tablets that it has handed over: they are at the named server until that server reports
    /// them itself.
    pub(crate) fn take_departed(&mut self, server: &str, departed: Vec<Departed>) {
        for Departed { tablet, to } in &departed {
            let Some(state) = &self.state else { return };
            let is_known =
                state.tables.contains_key(&tablet.table.0) && state.servers.contains_key(to);
            // It was dropped where it went, and this is from before that.
            let is_dropped =
                self.tablets.get(tablet.id).is_none() && state.has_dropped(tablet.table.0);
            let newer = |known: &Placement| known.epoch >= tablet.epoch;
            let is_newer = {
                let same = self.tablets.get(tablet.id);
                let mut others = self.tablets.overlapping(tablet.table.0, &tablet.rows);
                same.is_some_and(newer) || others.any(|(_, known)| newer(known))
            };
            if !is_known || is_newer || is_dropped {
                continue;
            }
            let gone = self.tablets.place(
                tablet.id,
                Placement {
                    table: tablet.table.0,
                    rows: tablet.rows.clone(),
                    epoch: tablet.epoch,
                    owner: to.clone(),
                    made: true,
                    state: TabletState::Serving,
                    listed: false,
                },
            );
            for id in gone {
                self.forget_about(id);
            }
            self.forget_unreported(tablet.id);
        }
        if let Some(live) = self.live.get_mut(server) {
            live.departed = departed;
        }
    }

    /// The tablets that a server has handed over whose rows others report: it may forget them.
    pub(crate) fn settled_moves(&self, server: &str) -> Vec<u64> {
        let (Some(state), Some(live)) = (&self.state, self.live.get(server)) else {
            return Vec::new();
        };
        let is_settled = |departed: &&Departed| {
            let tablet = &departed.tablet;
            let is_dropped =
                self.tablets.get(tablet.id).is_none() && state.has_dropped(tablet.table.0);
            if state.is_gone(tablet.table.0) || is_dropped {
                return true;
            }
            let mut reached = Some(tablet.rows.start.clone());
            for (_, known) in self.tablets.overlapping(tablet.table.0, &tablet.rows) {
                let follows = reached.as_ref().is_some_and(|it| known.rows.start <= *it);
                let is_reported = known.listed || mutants::on(Mutant::MovedSettledEarly);
                if !follows || known.epoch < tablet.epoch || !is_reported {
                    return false;
                }
                reached = Some(known.rows.end.clone()).filter(|end| !end.is_empty());
            }
            match (reached, &tablet.rows.end) {
                (None, _) => true,
                (Some(reached), end) => !end.is_empty() && reached >= *end,
            }
        };
        let settled = live.departed.iter().filter(is_settled);
        settled.map(|departed| departed.tablet.id).collect()
    }

    /// Of the tablets that a server gets, those that will never be its own: another server reports their first row at a later
    /// epoch, or their table is gone. A hand-over, a split and a merge are each decided by the owner, once for an epoch, and
    /// the server that it is decided for reports it first. Rows that were given up when the state was rebuilt are decided, too: the
    /// empty tablet for them is yet to be made, at a later epoch than all copies.
    /// So the server that gets the tablet need not wait for an owner that may be gone for good.
    pub(crate) fn settled_arrivals(&self, server: &str) -> Vec<(u64, u64)> {
        let (Some(state), Some(live)) = (&self.state, self.live.get(server)) else {
            return Vec::new();
        };
        let is_settled = |it: &&Arrival| {
            let known = self.tablets.of_row(it.table.0, &it.start_row);
            let is_elsewhere = known.is_some_and(|(_, known)| {
                let is_later = known.epoch > it.epoch || mutants::on(Mutant::ArrivalSettledEarly);
                is_later && (!known.made || known.owner != server && known.listed)
            });
            it.failure.is_none() && (state.is_gone(it.table.0) || is_elsewhere)
        };
        let settled = live.arriving.iter().filter(is_settled);
        settled.map(|it| (it.tablet, it.epoch)).collect()
    }

    /// The server without which a tablet is not served: its owner; or, until the owner knows of the hand-over, the one that has handed
    /// it over. That one has the only proof of it, and the owner's copy is complete.
    pub(crate) fn holder<'a>(&'a self, id: u64, tablet: &'a Placement) -> &'a str {
        // Nearly all are: nothing is searched for them.
        if tablet.listed {
            return &tablet.owner;
        }
        let owner = self.live.get(&tablet.owner);
        let arrival = owner.and_then(|live| live.arrival(id));
        match arrival.filter(|it| it.is_complete && it.failure.is_none()) {
            Some(arrival) => &arrival.from,
            None => &tablet.owner,
        }
    }

    /// Tablets that are under way: the server that gets each, and its report of that. One that is down gets none.
    pub(crate) fn arrivals(&self, now: Duration) -> BTreeMap<u64, (&str, &Arrival)> {
        let live = self.live.iter();
        let up = live.filter(|(server, _)| self.is_alive(server, now));
        up.flat_map(|(server, live)| {
            let under_way = live.arriving.iter().filter(|it| it.failure.is_none());
            under_way.map(move |arrival| (arrival.tablet, (server.as_str(), arrival)))
        })
        .collect()
    }
}
