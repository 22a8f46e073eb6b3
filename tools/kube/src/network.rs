//! The addresses of a cluster: of IPv4, of IPv6, or of both.

use std::net::TcpListener;

use super::PORT;

/// Which addresses nodes, pods and services have. Those of the first family are the ones of whatever has only one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network(&'static [Family]);

impl Network {
    /// IPv4 alone.
    pub const IPV4: Self = Self(&[Family::Ipv4]);
    /// IPv6 alone.
    pub const IPV6: Self = Self(&[Family::Ipv6]);
    /// Dual-stack.
    pub const BOTH: Self = Self(&[Family::Ipv4, Family::Ipv6]);

    pub(super) fn families(self) -> &'static [Family] {
        self.0
    }

    /// The one of the API server, and of DNS.
    pub(super) fn first(self) -> Family {
        self.0[0]
    }

    /// Whether a machine has such addresses at all.
    pub fn is_possible(self) -> bool {
        self.0.iter().all(|family| family.is_possible())
    }

    /// Something of each family, as Kubernetes' programs take a list.
    pub(super) fn list<T: ToString>(self, of: impl Fn(Family) -> T) -> String {
        let all: Vec<String> = self
            .0
            .iter()
            .map(|family| of(*family).to_string())
            .collect();
        all.join(",")
    }
}

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Ipv4,
    Ipv6,
}

/// How addresses of nodes, pods and services begin, of both families. Those of IPv6 are local ones.
pub(super) const PREFIXES: [&str; 4] = ["172.30.0", "10.244", "10.96", "fd70:6572:63"];

impl Family {
    pub(super) const ALL: [Self; 2] = [Self::Ipv4, Self::Ipv6];

    /// Whether a machine has such addresses at all.
    fn is_possible(self) -> bool {
        let own = match self {
            Self::Ipv4 => "127.0.0.1",
            Self::Ipv6 => "::1",
        };
        TcpListener::bind((own, 0)).is_ok()
    }

    /// The machine's address among the nodes.
    pub(super) fn hub(self) -> &'static str {
        match self {
            Self::Ipv4 => "172.30.0.1",
            Self::Ipv6 => "fd70:6572:6300::1",
        }
    }

    /// The network of the nodes, behind a node's address.
    pub(super) fn mask(self) -> u8 {
        match self {
            Self::Ipv4 => 24,
            Self::Ipv6 => 64,
        }
    }

    /// Of a node by its number.
    pub(super) fn node(self, number: u32) -> String {
        let host = 10 + number;
        match self {
            Self::Ipv4 => format!("172.30.0.{host}"),
            Self::Ipv6 => format!("fd70:6572:6300::{host}"),
        }
    }

    /// The network of the pods of a node.
    pub(super) fn pods_of(self, node: u32) -> String {
        match self {
            Self::Ipv4 => format!("10.244.{node}.0/24"),
            Self::Ipv6 => format!("fd70:6572:6301:{node}::/64"),
        }
    }

    /// The network of all pods.
    pub(super) fn pods(self) -> &'static str {
        match self {
            Self::Ipv4 => "10.244.0.0/16",
            Self::Ipv6 => "fd70:6572:6301::/48",
        }
    }

    /// The network of services.
    pub(super) fn services(self) -> &'static str {
        match self {
            Self::Ipv4 => "10.96.0.0/16",
            Self::Ipv6 => "fd70:6572:6302::/112",
        }
    }

    /// The service of the API server.
    pub(super) fn first_service(self) -> &'static str {
        match self {
            Self::Ipv4 => "10.96.0.1",
            Self::Ipv6 => "fd70:6572:6302::1",
        }
    }

    /// Every address of a machine.
    pub(super) fn unspecified(self) -> &'static str {
        match self {
            Self::Ipv4 => "0.0.0.0",
            Self::Ipv6 => "::",
        }
    }

    /// Every address there is.
    pub(super) fn everywhere(self) -> &'static str {
        match self {
            Self::Ipv4 => "0.0.0.0/0",
            Self::Ipv6 => "::/0",
        }
    }

    /// The address of the API server.
    pub(super) fn server(self) -> String {
        let hub = self.hub();
        match self {
            Self::Ipv4 => format!("https://{hub}:{PORT}"),
            Self::Ipv6 => format!("https://[{hub}]:{PORT}"),
        }
    }

    /// The command that sets addresses and routes.
    pub(super) fn ip(self) -> &'static str {
        match self {
            Self::Ipv4 => "ip",
            Self::Ipv6 => "ip -6",
        }
    }

    /// The flag with which an address is added. Nobody else can have the address, and without the flag it is usable only after
    /// some seconds.
    pub(super) fn added(self) -> &'static str {
        match self {
            Self::Ipv4 => "",
            Self::Ipv6 => "nodad",
        }
    }

    pub(super) fn iptables(self) -> &'static str {
        match self {
            Self::Ipv4 => "iptables",
            Self::Ipv6 => "ip6tables",
        }
    }

    /// The setting that lets packets pass.
    pub(super) fn forwarding(self) -> &'static str {
        match self {
            Self::Ipv4 => "net.ipv4.ip_forward",
            Self::Ipv6 => "net.ipv6.conf.all.forwarding",
        }
    }
}
