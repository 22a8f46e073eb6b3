//! Of several oracles or masters one leads (`docs/design/failover.md`, rules 1 to 3): as the world sees it, nobody answers in a
//! term after another one has answered in a later one, and one server alone answers in each term.

use std::collections::BTreeMap;

use super::Invariant;

#[derive(Default)]
pub(super) struct OneLeader {
    /// The latest term in which one answered, and who did, of the oracles and of the masters.
    latest: BTreeMap<&'static str, (u64, String)>,
}

impl Invariant for OneLeader {
    fn name(&self) -> &'static str {
        "one leader"
    }

    fn led(&mut self, role: &'static str, server: &str, term: u64) -> Result<(), String> {
        if let Some((latest, leader)) = self.latest.get(role) {
            if term == *latest && server == leader {
                return Ok(());
            }
            if term <= *latest {
                return Err(format!(
                    "{server} answered in term {term} of the {role}s, after {leader} had in term {latest}"
                ));
            }
        }
        self.latest.insert(role, (term, server.to_owned()));
        Ok(())
    }
}
