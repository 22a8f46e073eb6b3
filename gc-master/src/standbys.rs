//! The other masters of one of several, for people: those that introduce themselves to it while it leads, and the one that
//! led before. It decides nothing: the register says who leads, and promises say who may take over.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use percolator_protocol::election::StoredLeadership;
use percolator_server::promises::IntroducedReplica;
use percolator_wire::v1;

use crate::oracles::has_departed;

/// A master that was silent for longer counts as down: three introductions are missing.
const INTRODUCTION_TIMEOUT_MS: u64 = 3_000;

/// The other masters.
pub(crate) struct Standbys {
    /// This master's name.
    own: String,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The register's version that another master has stored last.
    version: Option<u64>,
    /// By name.
    masters: BTreeMap<String, KnownMaster>,
}

struct KnownMaster {
    address: String,
    /// Of the start that led; 0: it is known by its introduction.
    incarnation: u64,
    heard_ms: u64,
}

impl Standbys {
    /// Of the master of this name.
    pub(crate) fn new(own: String) -> Self {
        Self {
            own,
            known: Mutex::default(),
        }
    }

    /// A standby has introduced itself.
    pub(crate) fn introduced(&self, now_ms: u64, standby: &IntroducedReplica) {
        let master = KnownMaster {
            address: standby.peer.address.clone(),
            incarnation: 0,
            heard_ms: now_ms,
        };
        self.insert(&standby.server, master);
    }

    /// Removes a standby that ends.
    pub(crate) fn left(&self, server: &str) {
        self.known.lock().masters.remove(server);
    }

    /// The register holds this.
    pub(crate) fn loaded(&self, now_ms: u64, found: &StoredLeadership) {
        let swapped_by = found.value.swap.incarnation;
        {
            let mut known = self.known.lock();
            if known.version == Some(found.version) {
                return;
            }
            known.version = Some(found.version);
            if found.value.holder.is_none() {
                // It has handed over, and ends.
                known
                    .masters
                    .retain(|_, master| master.incarnation != swapped_by);
            }
        }
        if let Some(holder) = &found.value.holder {
            let master = KnownMaster {
                address: holder.address.clone(),
                incarnation: holder.incarnation,
                heard_ms: now_ms,
            };
            self.insert(&holder.name, master);
        }
    }

    fn insert(&self, server: &str, master: KnownMaster) {
        // A name is 0 bytes long in an introduction of another version of this program.
        if server != self.own && !server.is_empty() {
            self.known.lock().masters.insert(server.to_owned(), master);
        }
    }

    /// Adds the masters that are known to what is shown of a cluster.
    pub(crate) fn show(&self, now_ms: u64, response: &mut v1::DirectoryResponse) {
        response.standby_masters = self.list(now_ms, response.masters_expected);
    }

    /// The known masters, by name. `expected`: their number including this one; 0: that isn't known.
    fn list(&self, now_ms: u64, expected: u32) -> Vec<v1::StandbyMaster> {
        let silent_ms = |master: &KnownMaster| now_ms.saturating_sub(master.heard_ms);
        let is_alive = |master: &KnownMaster| silent_ms(master) < INTRODUCTION_TIMEOUT_MS;
        let mut known = self.known.lock();
        let alive = 1 + known.masters.values().filter(|it| is_alive(it)).count();
        known.masters.retain(|_, master| {
            let silence = Duration::from_millis(silent_ms(master));
            !has_departed(silence, false, alive, expected)
        });
        let masters = known.masters.iter();
        masters
            .map(|(server, master)| v1::StandbyMaster {
                server: server.clone(),
                address: master.address.clone(),
                alive: is_alive(master),
                silent_ms: silent_ms(master),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use percolator_protocol::election::{Leadership, Member, Peer, SwapName};
    use percolator_protocol::types::Timestamp;

    use super::*;

    fn standby(server: &str) -> IntroducedReplica {
        IntroducedReplica {
            register: 5,
            server: server.to_owned(),
            peer: Peer {
                replica: 3,
                address: format!("{server}:1"),
            },
            is_leaving: false,
        }
    }

    /// What the start 9 of this master has stored.
    fn stored(version: u64, holder: Option<&str>) -> StoredLeadership {
        let mut value = Leadership::first(1, Timestamp::ZERO);
        value.holder = holder.map(|name| Member {
            name: name.to_owned(),
            address: format!("{name}:1"),
            incarnation: 9,
            replica: 4,
        });
        value.swap = SwapName {
            incarnation: 9,
            sequence: version,
        };
        StoredLeadership { version, value }
    }

    fn listed(standbys: &Standbys, now_ms: u64, expected: u32) -> Vec<(String, bool, u64)> {
        let mut response = v1::DirectoryResponse {
            masters_expected: expected,
            // Fewer where there are several masters, and more where there is one.
            oracles_expected: if expected > 1 { 1 } else { 3 },
            ..v1::DirectoryResponse::default()
        };
        standbys.show(now_ms, &mut response);
        let list = response.standby_masters.into_iter();
        list.map(|it| (it.server, it.alive, it.silent_ms)).collect()
    }

    #[test]
    fn standbys_are_listed_while_they_introduce_themselves_and_then_as_down() {
        let standbys = Standbys::new("a".to_owned());
        standbys.introduced(1_000, &standby("b"));
        standbys.introduced(1_000, &standby("a"));
        assert_eq!(listed(&standbys, 3_999, 2), [("b".to_owned(), true, 2_999)]);
        assert_eq!(
            listed(&standbys, 4_000, 2),
            [("b".to_owned(), false, 3_000)]
        );
        // It is missing for as long as it takes.
        let late = 1_000 + 3_600_000;
        assert_eq!(listed(&standbys, late, 2).len(), 1);
        standbys.left("b");
        assert_eq!(listed(&standbys, late, 2), []);
    }

    #[test]
    fn a_master_that_is_not_expected_any_more_leaves_the_list() {
        let standbys = Standbys::new("a".to_owned());
        standbys.introduced(0, &standby("b"));
        assert_eq!(listed(&standbys, 59_999, 1).len(), 1);
        assert_eq!(listed(&standbys, 60_000, 1), []);
    }

    #[test]
    fn the_leader_before_is_listed_unless_it_has_handed_over() {
        let standbys = Standbys::new("a".to_owned());
        standbys.loaded(1_000, &stored(7, Some("b")));
        // It has stored nothing since.
        standbys.loaded(5_000, &stored(7, Some("b")));
        assert_eq!(
            listed(&standbys, 6_000, 2),
            [("b".to_owned(), false, 5_000)]
        );
        standbys.loaded(6_000, &stored(8, Some("b")));
        assert_eq!(listed(&standbys, 6_000, 2), [("b".to_owned(), true, 0)]);
        standbys.loaded(7_000, &stored(9, None));
        assert_eq!(listed(&standbys, 7_000, 2), []);
    }
}
