//! The answer of an oracle or a master that may not act, because another one leads.

use percolator_protocol::election::NamedLeader;
use tonic::Status;
use tonic::metadata::{MetadataMap, MetadataValue};

/// The leader's address in the status's metadata; empty: it isn't known.
const LEADER: &str = "percolator-leader";
/// For how long it has not been seen to renew its right, in milliseconds.
const SILENT_MS: &str = "percolator-leader-silent-ms";

/// `UNAVAILABLE`: this server, an "oracle" or a "master", isn't the leader. It names the leader if that is known. Another one
/// leads, or will; nothing was done.
pub fn not_leader(role: &str, leader: Option<&NamedLeader>) -> Status {
    let message = match leader {
        Some(NamedLeader { address, .. }) => {
            format!("this {role} is a standby; the {role} at {address} leads")
        }
        None => format!("this {role} is a standby, and knows no leader at the moment"),
    };
    unavailable(message, leader)
}

/// `UNAVAILABLE`: this server, an "oracle" or a "master", leads, but may not act until it has renewed its right. Another one
/// may lead soon; nothing was done.
pub fn right_ended(role: &str) -> Status {
    let message = format!(
        "this {role} leads, but may not act at the moment: its register has not answered for too long, and not all replicas that \
         could take over promise not to"
    );
    unavailable(message, None)
}

fn unavailable(message: String, leader: Option<&NamedLeader>) -> Status {
    let mut metadata = MetadataMap::new();
    let address = leader.map_or("", |leader| &leader.address).parse();
    metadata.insert(
        LEADER,
        address.unwrap_or_else(|_| MetadataValue::from_static("")),
    );
    if let Some(leader) = leader {
        metadata.insert(SILENT_MS, leader.silent_ms.into());
    }
    Status::with_metadata(tonic::Code::Unavailable, message, metadata)
}

/// Whether a status is [`not_leader`]'s or [`right_ended`]'s, and the leader that it names.
pub fn leader_of(status: &Status) -> Option<Option<NamedLeader>> {
    let text = |key| status.metadata().get(key)?.to_str().ok();
    let address = text(LEADER)?.to_owned();
    let silent_ms = text(SILENT_MS).and_then(|it| it.parse().ok());
    Some((!address.is_empty()).then(|| NamedLeader {
        address,
        // Nobody says that it is alive.
        silent_ms: silent_ms.unwrap_or(u64::MAX),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leader_is_read_from_the_status() {
        let leader = Some(NamedLeader {
            address: "tso-1:7400".to_owned(),
            silent_ms: 1_234,
        });
        assert_eq!(
            leader_of(&not_leader("oracle", leader.as_ref())),
            Some(leader)
        );
        assert_eq!(leader_of(&not_leader("master", None)), Some(None));
        assert_eq!(leader_of(&right_ended("oracle")), Some(None));
        assert_eq!(leader_of(&Status::unavailable("away")), None);
    }
}
