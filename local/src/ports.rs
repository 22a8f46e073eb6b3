//! Where a local cluster's proxy listens.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, bail};
use percolator_api::Spec;

use crate::layout::servers;

/// The proxy's port lies so far above the first master's, or farther: there is room for servers between them.
const ABOVE: u32 = 90;

/// The ports of a proxy; 0: any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyPorts {
    /// For its clients.
    port: u16,
    /// For metrics and health.
    metrics_port: u16,
}

impl ProxyPorts {
    /// The port that is `asked` for, or one behind those of the servers, and the next one for metrics. `first` is the first master's;
    /// the other servers and the metrics of all have the ports behind it.
    ///
    /// # Errors
    /// There are not enough ports, or one that is asked for is a server's.
    pub fn beside(spec: &Spec, first: u16, asked: Option<u16>) -> anyhow::Result<Self> {
        if first == 0 {
            return Self::from(asked.unwrap_or(0));
        }
        let servers = u32::from(first)..u32::from(first) + 2 * u32::from(servers(spec));
        let Some(asked) = asked else {
            let port = servers.end.max(u32::from(first) + ABOVE);
            let port = u16::try_from(port).with_context(|| {
                format!(
                    "there are not enough ports above {first} for the proxy; choose a lower --port, or a --proxy-port"
                )
            })?;
            return Self::from(port);
        };
        let ports = Self::from(asked)?;
        let taken = [ports.port, ports.metrics_port]
            .into_iter()
            .find(|port| servers.contains(&u32::from(*port)));
        if let Some(taken) = taken {
            bail!(
                "the proxy can't have port {taken}: from {first} to {} are the servers and their metrics; choose another --proxy-port, \
                 or another --port",
                servers.end - 1
            );
        }
        Ok(ports)
    }

    /// This one, and the next one for metrics.
    fn from(port: u16) -> anyhow::Result<Self> {
        let metrics_port = match port {
            0 => 0,
            port => port.checked_add(1).with_context(|| {
                format!("there is no port above {port} for the proxy's metrics; choose a lower --proxy-port")
            })?,
        };
        Ok(Self { port, metrics_port })
    }

    pub(crate) fn listen(self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    pub(crate) fn listen_metrics(self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.metrics_port).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With one master and one oracle.
    fn of(tablet_servers: u32, first: u16, asked: Option<u16>) -> Result<(u16, u16), String> {
        let mut spec = Spec::default();
        spec.tablets.replicas = tablet_servers;
        let ports = ProxyPorts::beside(&spec, first, asked);
        let ports = ports.map(|it| (it.port, it.metrics_port));
        ports.map_err(|error| error.to_string())
    }

    #[test]
    fn the_proxy_listens_behind_the_servers() {
        assert_eq!(of(3, 7400, None), Ok((7490, 7491)));
        assert_eq!(of(43, 7400, None), Ok((7490, 7491)));
        assert_eq!(of(44, 7400, None), Ok((7492, 7493)));
        assert_eq!(of(100, 7400, None), Ok((7604, 7605)));
        assert_eq!(of(100, 0, None), Ok((0, 0)));
        let refused = of(100, 65_400, None).expect_err("too high");
        assert!(refused.contains("not enough ports"), "{refused}");
    }

    #[test]
    fn a_port_of_a_server_is_refused_with_the_range() {
        for asked in [7399, 7400, 7450, 7491] {
            let refused = of(44, 7400, Some(asked)).expect_err("a server's");
            assert!(refused.contains("from 7400 to 7491"), "{refused}");
        }
        for asked in [7398, 7492] {
            assert_eq!(of(44, 7400, Some(asked)), Ok((asked, asked + 1)));
        }
        assert_eq!(of(44, 7400, Some(0)), Ok((0, 0)));
        assert_eq!(of(44, 0, Some(7400)), Ok((7400, 7401)));
    }
}
