//! Which incarnation of a server is the cluster's: at most one at a time may answer.
//!
//! The master accepts another incarnation of a server when the one before is surely dead (the new one has its folder, on
//! the same start of the same machine), has given its lease back, or when its lease is over. A tablet server's lease is a
//! timestamp, so that no clock decides (`protocol::lease`); an oracle's is a time, because it is the one that makes
//! timestamps: it counts from before it asked, and the master from when it answered.

use std::time::Duration;

use percolator_protocol::mutants::{self, Mutant};
use percolator_protocol::safe_point::Points;
use percolator_protocol::types::Timestamp;

use crate::core::{Directory, HEARTBEAT_TIMEOUT};
use crate::events::Heartbeat;
use crate::refusal::Refusal;
use crate::state::{DirectoryState, Role};

/// How long a lease lasts, unless it is set. In timestamps, for tablet servers.
pub const LEASE: Duration = Duration::from_secs(10);

/// Leases are written down for so much more at a time, so that not each of them is.
const AHEAD: Duration = Duration::from_secs(5);

/// How far an oracle's time may have jumped since its last heartbeat (`protocol::oracle`).
pub(crate) const JUMP_MAX: Duration = Duration::from_secs(10);

/// Above the oracle's time by more than this, a tablet server's timestamps are not believed.
pub(crate) const AHEAD_MAX: Duration = Duration::from_secs(24 * 3600);

/// What a server may do until the next reply to its heartbeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leased {
    /// A tablet server answers nothing that depends on a timestamp above this; zero: nothing.
    pub until: Timestamp,
    /// A tablet server commits no primary at or below this.
    pub commits_above: Timestamp,
    /// An oracle hands out nothing at or below this.
    pub timestamps_above: Timestamp,
    /// How long all of this counts, from when the server sent its heartbeat.
    pub lasts: Duration,
}

/// What is known of a server's accepted incarnation before this heartbeat.
enum Before {
    /// It is the one that beats.
    Itself,
    /// There is none, or it can't answer any more.
    Over,
    /// Its lease may not be over.
    MayAnswer,
}

pub(crate) fn later(ts: Timestamp, by: Duration) -> Timestamp {
    let by_ms = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
    Timestamp::from_millis(ts.physical_ms().saturating_add(by_ms))
}

impl Directory {
    /// Takes the incarnation for the server's one, or refuses it. What is refused has changed nothing.
    ///
    /// # Errors
    /// [`Refusal::Replaced`], [`Refusal::Duplicate`] and [`Refusal::OlderFolder`], after which the server has to end;
    /// [`Refusal::StillLeased`], after which it asks again.
    pub(crate) fn accept(&mut self, now: Duration, beat: &Heartbeat) -> Result<(), Refusal> {
        self.note_rival(now, beat);
        match self.before(now, beat)? {
            Before::Itself => return Ok(()),
            Before::Over => {}
            Before::MayAnswer => {
                if !mutants::on(Mutant::LeaseNotAwaited) {
                    return Err(self.still_leased(now, beat));
                }
            }
        }
        self.check_folder(beat)?;
        let lease_of_before = self.leased_to(&beat.server);
        let proven = self.is_proven(beat);
        let Some(state) = &mut self.state else {
            return Err(Refusal::NoState);
        };
        let Some(server) = state.servers.get_mut(&beat.server) else {
            return Ok(());
        };
        if server.incarnation == beat.incarnation {
            return Ok(());
        }
        if !proven && server.incarnation != 0 {
            match beat.role {
                // What it has answered up to there has to stay true.
                Role::Tablet => {
                    server.commits_above = server.commits_above.max(lease_of_before.as_u64());
                }
                // Its register has the limit of all that was granted.
                Role::Oracle if beat.oracle_register != 0 => {}
                // The one before may have given more than it had reported, by a clock that may jump.
                Role::Oracle => {
                    let seen = Timestamp::from_u64(state.highest_seen.max(server.high_ts));
                    let kept = Duration::from_millis(state.oracle_lease_ms);
                    let lease = kept.max(self.settings.lease);
                    let given = match (beat.high_ts < seen, self.collection.now) {
                        (true, _) => later(seen, lease + JUMP_MAX),
                        // The folder may be a copy of before the last limits all the same.
                        (false, Timestamp::ZERO) => later(seen, lease),
                        // A clock that is right has passed this by now.
                        (false, time) => later(time, lease),
                    };
                    state.highest_seen = state.highest_seen.max(given.as_u64());
                    // Its timestamps may still be on their way to a commit.
                    let first = state.highest_seen.max(beat.high_ts.as_u64());
                    state.oracle_above = state.oracle_above.max(first);
                }
            }
        }
        if let Some(server) = state.servers.get_mut(&beat.server) {
            if beat.role == Role::Oracle {
                state.highest_seen = state.highest_seen.max(server.high_ts);
            }
            // It is not the first time that it comes to this cluster.
            server.emptied |=
                beat.role == Role::Tablet && beat.cluster_id.is_none() && server.groups > 0;
            server.incarnation = beat.incarnation;
            server.high_ts = beat.high_ts.as_u64();
            server.groups = beat.groups;
        }
        self.dirty = true;
        Ok(())
    }

    /// A server stops, and answers nothing any more.
    pub(crate) fn leave(&mut self, beat: &Heartbeat) {
        let Some(state) = &mut self.state else { return };
        if let Some(server) = state.servers.get_mut(&beat.server)
            && server.incarnation == beat.incarnation
        {
            server.incarnation = 0;
            self.dirty = true;
        }
    }

    /// Takes in how far timestamps are, as this server has seen it.
    pub(crate) fn learn_time(&mut self, beat: &Heartbeat) {
        self.collection.now = self.collection.now.max(beat.time);
        let Some(state) = &mut self.state else { return };
        // No server takes a timestamp above its lease. One that has some all the same must not make the oracle follow.
        let believed = later(self.collection.now, AHEAD_MAX);
        let is_believed = beat.high_ts <= believed || self.collection.now == Timestamp::ZERO;
        if beat.role == Role::Tablet && is_believed {
            state.highest_seen = state.highest_seen.max(beat.high_ts.as_u64());
        }
        if let Some(server) = state.servers.get_mut(&beat.server) {
            // Kept with the next change: each heartbeat's would be too many writes.
            server.high_ts = server.high_ts.max(beat.high_ts.as_u64());
            server.groups = server.groups.max(beat.groups);
        }
    }

    /// Takes in how many groups this incarnation of a server has made durable, by its response to a command.
    pub(crate) fn learn_groups(&mut self, server: &str, incarnation: u64, groups: u64) {
        let Some(state) = &mut self.state else { return };
        if let Some(server) = state.servers.get_mut(server)
            && server.incarnation == incarnation
        {
            server.groups = server.groups.max(groups);
        }
    }

    /// Takes in what the oracle has answered this master.
    pub(crate) fn learn_oracle_time(&mut self, time: Timestamp) {
        self.collection.now = self.collection.now.max(time);
        // A heartbeat is weaker: it may have been long on its way, and be older than leases that were granted since.
        if let Some(state) = &mut self.state
            && state.leases_unknown
            && time != Timestamp::ZERO
        {
            // What a master before this one has granted ends by then.
            self.leased_before = self
                .leased_before
                .max(later(time, self.settings.lease + AHEAD));
            state.leases_unknown = false;
            state.leased_to = state.leased_to.max(self.leased_before.as_u64());
            self.dirty = true;
        }
    }

    /// The lease that a heartbeat of this server is answered with. Durable before it is.
    pub(crate) fn grant(&mut self, now: Duration, server: &str, role: Role) -> Leased {
        let lasts = self.settings.lease;
        let before_is_over = now >= self.known_since + self.oracle_lease_before();
        let time = self.collection.now;
        let mut leased = Leased {
            lasts,
            ..Leased::default()
        };
        let Some(state) = &mut self.state else {
            return leased;
        };
        leased.timestamps_above = Timestamp::from_u64(state.highest_seen);
        if role == Role::Oracle {
            leased.commits_above = Timestamp::from_u64(state.oracle_above);
            let lease_ms = u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
            let known_ms = state.oracle_lease_ms;
            if known_ms < lease_ms || (known_ms > lease_ms && before_is_over) {
                state.oracle_lease_ms = lease_ms;
                self.dirty = true;
            }
            return leased;
        }
        let known = state.servers.get(server);
        let commits_above = known.map_or(0, |server| server.commits_above);
        leased.commits_above = Timestamp::from_u64(commits_above.max(state.oracle_above));
        if time == Timestamp::ZERO {
            return leased;
        }
        leased.until = later(time, lasts);
        // While it isn't known what a master before has granted, the next start has to find that out as well, and then
        // waits for this lease, too.
        if leased.until.as_u64() > state.leased_to && !state.leases_unknown {
            state.leased_to = later(leased.until, AHEAD).as_u64();
            self.dirty = true;
        }
        if let Some(live) = self.live.get_mut(server) {
            live.leased_to = live.leased_to.max(leased.until);
        }
        leased
    }

    fn before(&self, now: Duration, beat: &Heartbeat) -> Result<Before, Refusal> {
        let state = self.state()?;
        let Some(known) = state.servers.get(&beat.server) else {
            return Ok(Before::Over);
        };
        if known.incarnation == beat.incarnation {
            return Ok(Before::Itself);
        }
        if known.incarnation == 0 {
            return Ok(Before::Over);
        }
        if beat.accepted {
            return Err(Refusal::Replaced {
                server: beat.server.clone(),
            });
        }
        if self.is_proven(beat) {
            return Ok(Before::Over);
        }
        if self.is_alive_beside(beat) {
            return Err(Refusal::Duplicate {
                server: beat.server.clone(),
                first: known.address.clone(),
                second: beat.address.clone(),
            });
        }
        Ok(if self.is_over(now, beat) {
            Before::Over
        } else {
            Before::MayAnswer
        })
    }

    /// Records the first heartbeat of an incarnation other than the accepted one.
    fn note_rival(&mut self, now: Duration, beat: &Heartbeat) {
        if let Some(live) = self.live.get_mut(&beat.server)
            && live.incarnation != beat.incarnation
            && live
                .rival
                .is_none_or(|(rival, _)| rival != beat.incarnation)
        {
            live.rival = Some((beat.incarnation, now));
        }
    }

    /// Whether the accepted incarnation has sent a heartbeat since this other one began: so it is alive. Before that it may have died
    /// just now.
    fn is_alive_beside(&self, beat: &Heartbeat) -> bool {
        self.live.get(&beat.server).is_some_and(|live| {
            let since = live.rival.filter(|(rival, _)| *rival == beat.incarnation);
            since.is_some_and(|(_, since)| live.last_heartbeat > since)
        })
    }

    /// Whether the accepted incarnation is surely dead, as the one that beats has its folder.
    fn is_proven(&self, beat: &Heartbeat) -> bool {
        let accepted = self.state.as_ref().and_then(|state| {
            let server = state.servers.get(&beat.server)?;
            Some(server.incarnation)
        });
        accepted.is_some_and(|accepted| beat.replaces.contains(&accepted))
    }

    /// Whether the lease of whichever incarnation was before is over.
    fn is_over(&self, now: Duration, beat: &Heartbeat) -> bool {
        match beat.role {
            Role::Oracle => now >= self.oracle_lease_ends(&beat.server),
            Role::Tablet => {
                let unknown = self.state.as_ref().is_none_or(|state| state.leases_unknown);
                !unknown && self.collection.now > self.leased_to(&beat.server)
            }
        }
    }

    /// When an oracle's lease is over. The master before may have answered it last, just before this one started: an answer of
    /// this one, with a shorter lease, may be lost.
    pub(crate) fn oracle_lease_ends(&self, server: &str) -> Duration {
        let granted_before = self.known_since + self.oracle_lease_before();
        let granted = self.live.get(server);
        let granted = granted.map(|live| live.last_heartbeat + self.settings.lease);
        granted.map_or(granted_before, |granted| granted.max(granted_before))
    }

    /// The longest lease that masters before this one may have granted an oracle.
    fn oracle_lease_before(&self) -> Duration {
        let kept_ms = self.state.as_ref().map_or(0, |state| state.oracle_lease_ms);
        Duration::from_millis(kept_ms).max(self.settings.lease)
    }

    /// Up to where this server may answer, by what this start of the master has granted it, and those before to any.
    fn leased_to(&self, server: &str) -> Timestamp {
        let granted = self.live.get(server).map(|live| live.leased_to);
        granted.unwrap_or_default().max(self.leased_before)
    }

    fn still_leased(&self, now: Duration, beat: &Heartbeat) -> Refusal {
        let left = match beat.role {
            Role::Oracle => self.oracle_lease_ends(&beat.server).saturating_sub(now),
            Role::Tablet => {
                let to = self.leased_to(&beat.server).physical_ms();
                Duration::from_millis(to.saturating_sub(self.collection.now.physical_ms()))
            }
        };
        Refusal::StillLeased {
            server: beat.server.clone(),
            left_ms: left.as_millis(),
        }
    }

    /// Whether the folder of another incarnation has what the server has reported. Tablets that an empty folder doesn't have are
    /// missing, which is reported elsewhere.
    fn check_folder(&self, beat: &Heartbeat) -> Result<(), Refusal> {
        // Behind one that has lost tablets, any that has them is better.
        let lost = self.losers().contains_key(&*beat.server);
        if beat.role != Role::Tablet || beat.cluster_id.is_none() || lost {
            return Ok(());
        }
        let known = self
            .state
            .as_ref()
            .and_then(|state| state.servers.get(&beat.server));
        let live = self.live.get(&beat.server);
        let points = live.map_or(Points::default(), |live| live.points);
        let compared = [
            (
                "group of changes",
                known.map_or(0, |server| server.groups),
                beat.groups_found,
            ),
            (
                "timestamp",
                known.map_or(0, |server| server.high_ts),
                beat.high_ts.as_u64(),
            ),
            (
                "barrier",
                points.barrier.as_u64(),
                beat.points.barrier.as_u64(),
            ),
            (
                "safe point",
                points.safe_point.as_u64(),
                beat.points.safe_point.as_u64(),
            ),
        ];
        let behind = compared
            .into_iter()
            .find(|(_, reported, has)| has < reported);
        match behind {
            _ if mutants::on(Mutant::OlderFolderTaken) => Ok(()),
            None => Ok(()),
            Some((what, reported, has)) => Err(Refusal::OlderFolder {
                server: beat.server.clone(),
                what,
                reported,
                has,
            }),
        }
    }
}

/// Whether this incarnation of the server has reported more since it sent this heartbeat, which was long on its way. What it
/// didn't have yet would be taken for lost.
pub(crate) fn has_reported_more(state: &DirectoryState, beat: &Heartbeat) -> bool {
    let known = state.servers.get(&beat.server);
    known.is_some_and(|known| known.incarnation == beat.incarnation && beat.groups < known.groups)
}

/// A server is down before its lease has ended.
const _: () = assert!(HEARTBEAT_TIMEOUT.as_millis() < LEASE.as_millis());
