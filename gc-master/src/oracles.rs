//! Which oracles a cluster may have: one alone, or several of one register.
//!
//! Of several, the register says who grants (`protocol::election`). The master only knows which ones there are, so that
//! clients find them. Its lease for oracles fences the starts of each of them, and decides nothing between them.

use std::time::Duration;

use crate::core::Directory;
use crate::events::{Heartbeat, Note};
use crate::refusal::Refusal;
use crate::state::DirectoryState;

impl Heartbeat {
    /// Whether this oracle may serve the cluster beside those that are known.
    ///
    /// # Errors
    /// [`Refusal::OtherRegister`], [`Refusal::ForgetfulOracle`] and [`Refusal::SecondOracle`].
    pub(crate) fn check_oracle(&self, state: &DirectoryState) -> Result<(), Refusal> {
        let known = state.servers.get(&self.server);
        let register = known.map_or(0, |known| known.oracle_register);
        if register != 0 && register != self.oracle_register {
            return Err(Refusal::OtherRegister {
                server: self.server.clone(),
            });
        }
        // The limit of one with a register is there, and not in the folder that it lost.
        let has_limit = register != 0 || self.cluster_id.is_some();
        if !has_limit && known.is_some_and(|known| known.adopted) {
            return Err(Refusal::ForgetfulOracle {
                server: self.server.clone(),
            });
        }
        let shares = |other: u64| other != 0 && other == self.oracle_register;
        let foreign = state
            .servers
            .oracles()
            .find(|(name, server)| **name != self.server && !shares(server.oracle_register));
        match foreign {
            Some((_, server)) if server.oracle_register != 0 => Err(Refusal::OtherRegister {
                server: self.server.clone(),
            }),
            Some((first, _)) => Err(Refusal::SecondOracle {
                first: first.clone(),
                second: self.server.clone(),
            }),
            None => Ok(()),
        }
    }
}

/// A server that is not needed any more is forgotten after this.
const DEPARTED_AFTER: Duration = Duration::from_secs(60);
/// The same if the expected number of servers isn't known.
const DEPARTED_AFTER_AT_MOST: Duration = Duration::from_secs(600);

/// Whether one of several servers that has sent nothing for so long is not missed: `alive` are there of the `expected`; 0: that
/// isn't known. `has_left`: it has reported that it ends.
pub(crate) fn has_departed(silence: Duration, has_left: bool, alive: usize, expected: u32) -> bool {
    match expected as usize {
        0 if !has_left => silence >= DEPARTED_AFTER_AT_MOST,
        expected => silence >= DEPARTED_AFTER && alive >= expected,
    }
}

impl Directory {
    /// Forgets oracles that were taken away from the register, if the others of it are there as expected, and one of them leads. One
    /// that is forgotten and comes back is accepted as a new one.
    pub(crate) fn forget_gone_oracles(&mut self, now: Duration) {
        let Some(state) = &self.state else { return };
        let oracles: Vec<&String> = state.servers.oracles().map(|(name, _)| name).collect();
        if oracles.len() < 2 {
            return;
        }
        let alive = oracles.iter().filter(|name| self.is_alive(name, now));
        let alive: Vec<&&String> = alive.collect();
        if !alive.iter().any(|name| self.leads_term(name) > 0) {
            return;
        }
        let expected = self.manifest.oracles_expected();
        let is_gone = |name: &str| {
            let live = self.live.get(name);
            let last_heartbeat = live.map_or(self.known_since, |live| live.last_heartbeat);
            let silence = now.saturating_sub(last_heartbeat);
            let has_left = live.is_some_and(|live| live.has_left);
            let is_leased = now < self.oracle_lease_ends(name);
            !is_leased && has_departed(silence, has_left, alive.len(), expected)
        };
        let gone = oracles.iter().filter(|name| is_gone(name));
        let gone: Vec<String> = gone.map(|name| (*name).clone()).collect();
        for name in gone {
            self.forget_oracle(name);
        }
    }

    fn forget_oracle(&mut self, name: String) {
        let Some(state) = &mut self.state else { return };
        if let Some(server) = state.servers.remove(&name) {
            state.highest_seen = state.highest_seen.max(server.high_ts);
        }
        self.live.remove(&name);
        self.dirty = true;
        self.effects.notes.push(Note::Departed { server: name });
    }

    /// The term in which an oracle leads, by its last report; 0: it doesn't, or is alone.
    pub(crate) fn leads_term(&self, server: &str) -> u64 {
        self.live.get(server).map_or(0, |live| live.leads_term)
    }

    /// How long the last takeover of an oracle took, in milliseconds, by its last report.
    pub(crate) fn takeover_ms(&self, server: &str) -> Option<u64> {
        self.live.get(server)?.takeover_ms
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::convert;
    use crate::core::Settings;
    use crate::events::Start;
    use crate::settings::Manifest;
    use crate::state::Role;

    fn beat(server: &str, oracle_register: u64, leads_term: u64) -> Heartbeat {
        Heartbeat {
            oracle_register,
            leads_term,
            ..Heartbeat::first(Role::Oracle, server, format!("{server}:7400"))
        }
    }

    fn cluster() -> Directory {
        Directory::open(Start::NewCluster, Settings::default(), 7).unwrap()
    }

    #[test]
    fn oracles_of_one_register_are_accepted_and_say_who_leads() {
        let mut directory = cluster();
        let now = Duration::ZERO;
        for (server, term) in [("tso-0", 0), ("tso-1", 4), ("tso-2", 0)] {
            directory.heartbeat(now, beat(server, 9, term)).unwrap();
        }
        let listed = convert::directory(&directory, now).unwrap();
        let terms: Vec<u64> = listed.servers.iter().map(|info| info.leads_term).collect();
        assert_eq!(terms, [0, 4, 0]);
        directory.heartbeat(now, beat("tso-1", 9, 0)).unwrap();
        directory.heartbeat(now, beat("tso-0", 9, 5)).unwrap();
        assert_eq!(directory.leads_term("tso-0"), 5);
        assert_eq!(directory.leads_term("tso-1"), 0);
    }

    fn oracles_of(directory: &Directory) -> Vec<&str> {
        let servers = directory.state().unwrap().servers.iter();
        servers.map(|(name, _)| name.as_str()).collect()
    }

    fn expecting(oracles: Option<u32>) -> Directory {
        let mut directory = cluster();
        directory.take_manifest(Manifest {
            oracles,
            ..Manifest::default()
        });
        directory
    }

    #[test]
    fn an_oracle_that_is_taken_away_is_forgotten_after_a_minute() {
        let mut directory = expecting(Some(2));
        let at = Duration::from_secs;
        directory.heartbeat(at(0), beat("tso-0", 9, 4)).unwrap();
        directory.heartbeat(at(0), beat("tso-1", 9, 0)).unwrap();
        for seconds in [59, 3_600] {
            directory
                .heartbeat(at(seconds), beat("tso-0", 9, 4))
                .unwrap();
            assert_eq!(oracles_of(&directory), ["tso-0", "tso-1"], "it is missing");
        }
        directory.take_manifest(Manifest {
            oracles: Some(1),
            ..Manifest::default()
        });
        directory.take_effects();
        // One that doesn't lead decides nothing.
        directory.heartbeat(at(3_601), beat("tso-0", 9, 0)).unwrap();
        assert_eq!(oracles_of(&directory), ["tso-0", "tso-1"]);
        directory.heartbeat(at(3_602), beat("tso-0", 9, 4)).unwrap();
        assert_eq!(oracles_of(&directory), ["tso-0"]);
        assert!(directory.take_effects().has_changed);
        // It may come back.
        directory.heartbeat(at(3_603), beat("tso-1", 9, 0)).unwrap();
        directory.heartbeat(at(3_662), beat("tso-0", 9, 4)).unwrap();
        assert_eq!(oracles_of(&directory), ["tso-0", "tso-1"]);
    }

    #[test]
    fn without_a_manifest_one_that_ends_is_forgotten_after_a_minute_and_others_after_ten() {
        let mut directory = expecting(None);
        let at = Duration::from_secs;
        for server in ["tso-1", "tso-2"] {
            directory.heartbeat(at(0), beat(server, 9, 0)).unwrap();
        }
        let leaving = Heartbeat {
            leaving: true,
            ..beat("tso-1", 9, 0)
        };
        directory.heartbeat(at(0), leaving).unwrap();
        for (seconds, left) in [
            (59, &["tso-0", "tso-1", "tso-2"][..]),
            (60, &["tso-0", "tso-2"]),
            (599, &["tso-0", "tso-2"]),
            (600, &["tso-0"]),
        ] {
            directory
                .heartbeat(at(seconds), beat("tso-0", 9, 4))
                .unwrap();
            assert_eq!(oracles_of(&directory), left, "after {seconds} s");
        }
    }

    #[test]
    fn a_master_that_was_just_started_waits_for_oracles_without_a_heartbeat() {
        let mut before = expecting(None);
        for server in ["tso-0", "tso-1"] {
            before
                .heartbeat(Duration::ZERO, beat(server, 9, 0))
                .unwrap();
        }
        let state = Start::State(before.take_effects().persist.unwrap());
        let mut directory = Directory::open(state, Settings::default(), 7).unwrap();
        // It leaves out that there is one oracle.
        directory.take_manifest(Manifest {
            tablet_servers: Some(1),
            ..Manifest::default()
        });
        for (seconds, left) in [(59, &["tso-0", "tso-1"][..]), (60, &["tso-0"])] {
            let now = Duration::from_secs(seconds);
            directory.heartbeat(now, beat("tso-0", 9, 4)).unwrap();
            assert_eq!(oracles_of(&directory), left, "after {seconds} s");
        }
    }

    #[test]
    fn an_oracle_with_a_longer_lease_of_a_master_before_is_not_forgotten_in_its_time() {
        let leased = |lease: u64| Settings {
            lease: Duration::from_secs(lease),
            ..Settings::default()
        };
        let mut before = Directory::open(Start::NewCluster, leased(120), 7).unwrap();
        for server in ["tso-0", "tso-1"] {
            before
                .heartbeat(Duration::ZERO, beat(server, 9, 0))
                .unwrap();
        }
        let state = Start::State(before.take_effects().persist.unwrap());
        let mut directory = Directory::open(state, leased(10), 7).unwrap();
        directory.take_manifest(Manifest {
            oracles: Some(1),
            ..Manifest::default()
        });
        let now = Duration::ZERO;
        directory.heartbeat(now, beat("tso-1", 9, 0)).unwrap();
        for (seconds, left) in [(119, &["tso-0", "tso-1"][..]), (120, &["tso-0"])] {
            let now = Duration::from_secs(seconds);
            directory.heartbeat(now, beat("tso-0", 9, 4)).unwrap();
            assert_eq!(oracles_of(&directory), left, "after {seconds} s");
        }
    }

    #[test]
    fn an_oracle_without_the_register_of_the_others_is_refused() {
        let now = Duration::ZERO;
        let mut directory = cluster();
        directory.heartbeat(now, beat("tso-0", 9, 1)).unwrap();
        for register in [0, 8] {
            for server in ["tso-0", "tso-1"] {
                let refused = directory.heartbeat(now, beat(server, register, 0));
                assert!(
                    matches!(refused, Err(Refusal::OtherRegister { .. })),
                    "{refused:?}"
                );
            }
        }
        // One that is alone may get a register, and then others.
        let mut directory = cluster();
        directory.heartbeat(now, beat("tso-0", 0, 0)).unwrap();
        let refused = directory.heartbeat(now, beat("tso-1", 9, 0));
        assert!(
            matches!(refused, Err(Refusal::SecondOracle { .. })),
            "{refused:?}"
        );
        directory.heartbeat(now, beat("tso-0", 9, 1)).unwrap();
        directory.heartbeat(now, beat("tso-1", 9, 0)).unwrap();
    }
}
