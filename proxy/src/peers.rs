//! The other proxies of the cluster, as this one may reach them: a client that joins a transaction names the proxy that has it,
//! and a proxy doesn't connect to whatever a client names.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tonic::transport::{Channel, Endpoint};

const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// What a call of another proxy may take: it answers sooner, also where the cluster doesn't.
const CALL_WITHIN: Duration = Duration::from_secs(30);

/// Where they are.
#[derive(Debug)]
pub(crate) struct Peers {
    /// HOST:PORT each; a host may have many addresses.
    names: Vec<String>,
    channels: Mutex<HashMap<String, Channel>>,
}

impl Peers {
    pub(crate) fn new(names: Vec<String>) -> Self {
        Self {
            names,
            channels: Mutex::default(),
        }
    }

    /// Connections to the proxy with this address; `None`: it isn't one of them.
    pub(crate) async fn reach(&self, address: &str) -> Option<Channel> {
        if !self.has(address).await {
            return None;
        }
        if let Some(channel) = self.channels.lock().get(address) {
            return Some(channel.clone());
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}")).ok()?;
        let endpoint = endpoint
            .connect_timeout(CONNECT_WITHIN)
            .timeout(CALL_WITHIN);
        let channel = endpoint.connect_lazy();
        let mut channels = self.channels.lock();
        // Pods come and go, each with an address of its own.
        if channels.len() >= self.names.len().max(64) * 4 {
            channels.clear();
        }
        channels.insert(address.to_owned(), channel.clone());
        Some(channel)
    }

    async fn has(&self, address: &str) -> bool {
        if self.names.iter().any(|name| name == address) {
            return true;
        }
        let Ok(address) = address.parse::<SocketAddr>() else {
            return false;
        };
        for name in &self.names {
            if let Ok(mut found) = tokio::net::lookup_host(name).await
                && found.any(|found| found == address)
            {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_peers_are_reached() {
        let peers = Peers::new(vec!["localhost:7".into(), "proxy.example:8".into()]);
        for (address, is_reached) in [
            ("127.0.0.1:7", true),
            ("proxy.example:8", true),
            ("127.0.0.1:8", false),
            ("127.0.0.2:7", false),
            ("elsewhere.example:7", false),
            ("proxy-0", false),
            ("", false),
        ] {
            let reached = peers.reach(address).await.is_some();
            assert_eq!(reached, is_reached, "{address}");
        }
        let alone = Peers::new(Vec::new());
        assert!(alone.reach("127.0.0.1:7").await.is_none());
    }
}
