//! Which oracles a cluster may have: one alone, or several of one register.
//!
//! Of several, the register says who grants (`protocol::election`). The master only knows which ones there are, so that
//! clients find them. Its lease for oracles fences the starts of each of them, and decides nothing between them.

use crate::core::Directory;
use crate::events::Heartbeat;
use crate::refusal::Refusal;
use crate::state::{DirectoryState, Role};

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
        let foreign = state.servers.iter().find(|(name, server)| {
            server.role == Role::Oracle && **name != self.server && !shares(server.oracle_register)
        });
        match foreign {
            Some((first, _)) => Err(Refusal::SecondOracle {
                first: first.clone(),
                second: self.server.clone(),
            }),
            None => Ok(()),
        }
    }
}

impl Directory {
    /// The term in which an oracle leads, as it said last; 0: it doesn't, or is alone.
    pub(crate) fn leads_term(&self, server: &str) -> u64 {
        self.live.get(server).map_or(0, |live| live.leads_term)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::convert;
    use crate::core::Settings;
    use crate::events::Start;

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

    #[test]
    fn an_oracle_without_the_register_of_the_others_is_refused() {
        let now = Duration::ZERO;
        let mut directory = cluster();
        directory.heartbeat(now, beat("tso-0", 9, 1)).unwrap();
        for register in [0, 8] {
            let refused = directory.heartbeat(now, beat("tso-1", register, 0));
            assert!(
                matches!(refused, Err(Refusal::SecondOracle { .. })),
                "{refused:?}"
            );
            let refused = directory.heartbeat(now, beat("tso-0", register, 0));
            assert!(
                matches!(refused, Err(Refusal::OtherRegister { .. })),
                "{refused:?}"
            );
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
