//! The answer of an oracle or a master that may not act, because another one leads.

use tonic::Status;
use tonic::metadata::MetadataMap;

/// The leader's address in the status's metadata; empty: it isn't known.
const LEADER: &str = "percolator-leader";

/// `UNAVAILABLE`: this server, an "oracle" or a "master", isn't the leader. It names the leader's address (HOST:PORT) if that
/// is known. Another one leads, or will; nothing was done.
pub fn not_leader(role: &str, leader: Option<&str>) -> Status {
    let message = match leader {
        Some(leader) => format!("this {role} is a standby; the {role} at {leader} leads"),
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

fn unavailable(message: String, leader: Option<&str>) -> Status {
    let mut metadata = MetadataMap::new();
    let value = leader.unwrap_or_default().parse();
    metadata.insert(
        LEADER,
        value.unwrap_or_else(|_| tonic::metadata::MetadataValue::from_static("")),
    );
    Status::with_metadata(tonic::Code::Unavailable, message, metadata)
}

/// Whether a status is [`not_leader`]'s or [`right_ended`]'s, and the address that it names.
pub fn leader_of(status: &Status) -> Option<Option<String>> {
    let leader = status.metadata().get(LEADER)?.to_str().unwrap_or_default();
    Some((!leader.is_empty()).then(|| leader.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leader_is_read_from_the_status() {
        let leader = Some("tso-1:7400".to_owned());
        assert_eq!(
            leader_of(&not_leader("oracle", leader.as_deref())),
            Some(leader)
        );
        assert_eq!(leader_of(&not_leader("master", None)), Some(None));
        assert_eq!(leader_of(&right_ended("oracle")), Some(None));
        assert_eq!(leader_of(&Status::unavailable("away")), None);
    }
}
