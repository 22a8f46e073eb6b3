//! Timestamps by way of relays: one that takes timestamps for many clients is one client to the oracle, and their requests go there
//! together. Proxies are relays.

use crate::oracle::Place;

/// Relays, and which of them is asked first: clients spread over them.
#[derive(Clone)]
pub(crate) struct Relays {
    addresses: Vec<String>,
    first: usize,
}

impl Relays {
    pub(crate) fn new(addresses: &[String]) -> Self {
        Self {
            addresses: addresses.to_vec(),
            first: rand::random_range(0..addresses.len().max(1)),
        }
    }

    /// Where to ask: at one of the relays, then at the others, then at the oracles.
    pub(crate) fn before(&self, oracles: Place) -> Place {
        let oracle = std::iter::once(oracles.address).chain(oracles.others);
        let relays = self.addresses.iter().cycle().skip(self.first);
        let relays = relays.take(self.addresses.len()).cloned();
        let mut addresses = relays.chain(oracle);
        Place {
            // There is the oracle's at least.
            address: addresses.next().unwrap_or_default(),
            others: addresses.collect(),
            cluster_id: oracles.cluster_id,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relays_are_asked_before_oracles() {
        let oracles = || Place {
            address: "o:1".to_owned(),
            cluster_id: "c".to_owned(),
            others: vec!["p:1".to_owned()],
        };
        assert_eq!(Relays::new(&[]).before(oracles()), oracles());
        let addresses = ["a:1", "b:1", "c:1"].map(str::to_owned).to_vec();
        let relays = Relays {
            addresses,
            first: 1,
        };
        let place = relays.before(oracles());
        assert_eq!(place.address, "b:1");
        assert_eq!(place.others, ["c:1", "a:1", "o:1", "p:1"]);
        assert_eq!(place.cluster_id, "c");
    }
}
