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
