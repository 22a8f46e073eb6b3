//! Servers that are drained, and servers that stop: which of them get no tablets, and when they have none. [`crate::balancer`]
//! moves the tablets.

use std::time::Duration;

use percolator_protocol::mutants::{self, Mutant};

use crate::core::Directory;
use crate::members::Live;
use crate::refusal::Refusal;
use crate::reports::Arrival;
use crate::state::{Drain, Placement, Role, TableState};

impl Directory {
    /// Sets durably whether tablet servers are drained: all of these, or none.
    ///
    /// # Errors
    /// [`Refusal::NoSuchServer`], [`Refusal::NowhereToDrain`], [`Refusal::NoRoomToDrain`], [`Refusal::Settling`],
    /// [`Refusal::NoState`].
    pub fn drain_servers(
        &mut self,
        now: Duration,
        servers: &[String],
        drain: bool,
    ) -> Result<(), Refusal> {
        for server in servers {
            self.check_tablet_server(server)?;
        }
        let state = self.state()?;
        let goes = |name: &str| servers.iter().any(|it| it == name);
        let takes = |name: &&str| !goes(name) && !state.is_draining(name);
        if drain && !state.tablet_servers().iter().any(takes) {
            return Err(Refusal::NowhereToDrain {
                servers: servers.join(", "),
            });
        }
        if drain && servers.iter().any(|server| !state.is_draining(server)) {
            self.check_settled(now)?;
            self.check_room(now, servers)?;
        }
        for server in servers {
            if self.state()?.is_draining(server) != drain {
                self.set_drain(server, if drain { Drain::Draining } else { Drain::Off });
            }
        }
        self.balancer.plan_now(now);
        Ok(())
    }

    /// Whether the others have room for the tablets of these servers, and for those of others that are drained, as far as they
    /// say how much they have. One that is down has none.
    fn check_room(&self, now: Duration, servers: &[String]) -> Result<(), Refusal> {
        let state = self.state()?;
        let goes = |name: &&str| servers.iter().any(|it| it == name) || state.is_draining(name);
        let (go, stay): (Vec<&str>, Vec<&str>) = state.tablet_servers().into_iter().partition(goes);
        let bytes = go.into_iter().map(|name| self.bytes_of(name)).sum();
        let up = stay.into_iter().filter(|name| self.is_alive(name, now));
        let rooms = up.filter_map(|name| self.live.get(name));
        let room = rooms.map(Live::room).sum::<Option<u64>>();
        match room.filter(|room| bytes > *room) {
            Some(room) => Err(Refusal::NoRoomToDrain {
                servers: servers.join(", "),
                bytes,
                room,
            }),
            None => Ok(()),
        }
    }

    fn set_drain(&mut self, server: &str, drain: Drain) {
        if let Some(state) = &mut self.state
            && let Some(known) = state.servers.get_mut(server)
        {
            self.dirty |= known.drain != drain;
            known.drain = drain;
        }
    }

    /// After a heartbeat: whether a server that is being drained has no tablets left. Durable, as it may be gone when a later master is
    /// asked. `knows_drain`: the server has confirmed that it gets none any more. An earlier list may omit a tablet that it
    /// has got since.
    pub(crate) fn note_drained(&mut self, server: &str, knows_drain: bool) {
        let drains = self.state.as_ref().map(|state| state.is_draining(server));
        let (Some(live), Some(true)) = (self.live.get(server), drains) else {
            return;
        };
        let has_rows = live.listed_rows > 0 && !mutants::on(Mutant::DrainedWithRows);
        if has_rows || !live.gets_none() || self.tablets.count_of_owner(server) > 0 {
            self.set_drain(server, Drain::Draining);
        } else if knows_drain {
            self.set_drain(server, Drain::Drained);
        }
    }

    /// What keeps a drained server from being empty though it owns no tablet, for as long as another server is down: a
    /// complete copy of a tablet. It may be the tablet itself, and only the earlier owner knows.
    pub(crate) fn drain_waits_for(&self, now: Duration, server: &str) -> Option<String> {
        let state = self.state.as_ref()?;
        let live = self.live.get(server)?;
        // A server that has not reported yet may be up.
        let is_early = now < self.settled_at();
        if is_early || !state.is_draining(server) || self.tablets_at(server) > 0 {
            return None;
        }
        let mut arriving = live.arriving.iter();
        let waits =
            |it: &&Arrival| it.is_complete && it.failure.is_none() && !self.is_alive(&it.from, now);
        let Arrival { tablet, from, .. } = arriving.find(waits)?;
        Some(format!(
            "tablet {tablet}, on its way there from {from}, which is down"
        ))
    }

    /// Whether there is such a tablet server.
    pub(crate) fn check_tablet_server(&self, server: &str) -> Result<(), Refusal> {
        let state = self.state()?;
        let known = state.servers.get(server);
        if known.is_some_and(|known| known.role == Role::Tablet) {
            return Ok(());
        }
        let known = state.tablet_servers().into_iter();
        Err(Refusal::NoSuchServer {
            server: server.to_owned(),
            known: known.collect::<Vec<_>>().join(", "),
        })
    }

    /// Whether the server is to have no tablets: it is being drained, or about to end.
    pub(crate) fn drains(&self, server: &str) -> bool {
        let state = self.state.as_ref();
        state.is_some_and(|state| state.is_draining(server)) || self.empties(server)
    }

    /// Whether others get the tablets of this server because it is about to end. Without balance it would get none back later.
    pub(crate) fn empties(&self, server: &str) -> bool {
        let live = self.live.get(server);
        live.is_some_and(|live| live.stopping) && self.balances()
    }

    /// Whether nothing keeps a stopping server: others have its tablets and have reported them, or what it has left
    /// stays where it is. `knows_drain`: as of [`Self::note_drained`]; a command to get a tablet may be on its way to one that
    /// doesn't know it.
    pub(crate) fn may_stop(&self, now: Duration, server: &str, knows_drain: bool) -> bool {
        let live = self.live.get(server).filter(|live| live.stopping);
        let (Some(live), Some(state)) = (live, &self.state) else {
            return false;
        };
        if !self.balances() && !state.is_draining(server) {
            return true;
        }
        // A master that has just begun doesn't know yet who is there.
        if self.check_settled(now).is_err() {
            return false;
        }
        let servers = state.tablet_servers().into_iter();
        let takes = |name: &&str| self.is_alive(name, now) && !self.drains(name);
        let takers: Vec<&str> = servers.filter(takes).collect();
        if takers.is_empty() {
            return true;
        }
        let mut tablets = self.tablets.of_owner(server);
        knows_drain
            && live.gets_none()
            && self.settled_moves(server).len() == live.departed.len()
            && !tablets.any(|(id, tablet)| self.may_leave(live, id, tablet, &takers))
    }

    /// Whether one of these servers may get this tablet of a server. The rows of a table that is being deleted stay until they may
    /// go, and rows that are lost are nowhere.
    fn may_leave(&self, live: &Live, id: u64, tablet: &Placement, takers: &[&str]) -> bool {
        let table = self.table(tablet.table).map(|table| table.state);
        let is_lost = live.missing.get(&id).is_some_and(|(_, is_noted)| *is_noted);
        table != Some(TableState::Deleting)
            && !is_lost
            && takers.iter().any(|to| self.has_room(to, id, tablet))
    }

    /// Whether the server may get a tablet by hand.
    pub(crate) fn check_may_get(
        &self,
        to: &str,
        id: u64,
        tablet: &Placement,
    ) -> Result<(), Refusal> {
        let server = || to.to_owned();
        if self.state()?.is_draining(to) {
            return Err(Refusal::Draining { server: server() });
        }
        if self.empties(to) {
            return Err(Refusal::Stopping { server: server() });
        }
        if tablet.owner != to && !self.has_room(to, id, tablet) {
            let room = self.live.get(to).and_then(Live::room);
            return Err(Refusal::NoRoom {
                tablet: id,
                server: server(),
                bytes: self.tablet_bytes(&tablet.owner, id),
                room: room.unwrap_or_default(),
            });
        }
        Ok(())
    }

    /// Whether the server has room for a tablet of another one by its last report: also for one that is on its way there, with all
    /// that has come of it.
    pub(crate) fn has_room(&self, to: &str, id: u64, tablet: &Placement) -> bool {
        let Some(live) = self.live.get(to) else {
            return true;
        };
        let arrives = live.arrival(id).is_some_and(|it| it.failure.is_none());
        let bytes = self.tablet_bytes(&tablet.owner, id);
        arrives || live.room().is_none_or(|room| bytes <= room)
    }
}
