//! Where a server is reached.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};

use percolator_wire::is_address;
use tokio::net::TcpListener;

use crate::Error;

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Listens on the address, as [`percolator_telemetry::bind`] does; port 0 picks a free one. Returns where that is, too. Needs a tokio runtime
/// around it.
///
/// # Errors
/// [`Error::AddressInUse`], [`Error::AddressNotPermitted`], [`Error::AddressNotHere`] or
/// [`Error::Listen`].
pub fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    bind(address).map_err(|cause| match cause.kind() {
        io::ErrorKind::AddrInUse => Error::AddressInUse { address },
        io::ErrorKind::PermissionDenied => Error::AddressNotPermitted { address },
        io::ErrorKind::AddrNotAvailable => Error::AddressNotHere { address },
        _ => Error::Listen { address, cause },
    })
}

fn bind(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = percolator_telemetry::bind(address, BACKLOG)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok((TcpListener::from_std(listener)?, address))
}

/// Where others reach a server that listens on `listens`: `given`, which is HOST:PORT with an IPv6 address in brackets,
/// or an IP address alone, with the port of `listens`. Kubernetes knows the address of a pod as such a one. Without
/// `given`, where the server listens.
///
/// # Errors
/// [`Error::NoAddress`].
pub fn advertised(given: Option<&str>, listens: SocketAddr) -> Result<String, Error> {
    let Some(given) = given else {
        return Ok(listens.to_string());
    };
    if let Ok(ip) = given.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, listens.port()).to_string());
    }
    if is_address(given) {
        return Ok(given.to_owned());
    }
    Err(Error::NoAddress {
        text: given.to_owned(),
    })
}

/// Prints the line that a parent process waits for, `listening on ADDRESS`; before it, where metrics are shown,
/// `metrics on ADDRESS`.
///
/// # Errors
/// [`Error::Announce`] if standard output is closed.
pub fn announce(address: SocketAddr, metrics: Option<SocketAddr>) -> Result<(), Error> {
    let mut lines = metrics.map_or_else(String::new, |at| format!("metrics on {at}\n"));
    lines += &format!("listening on {address}\n");
    let mut out = io::stdout().lock();
    out.write_all(lines.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|cause| Error::Announce { cause })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn says_what_is_wrong_with_an_address() {
        let (_first, taken) = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        assert_ne!(taken.port(), 0);
        let error = listen(taken).unwrap_err();
        assert!(matches!(error, Error::AddressInUse { .. }), "{error}");
        assert!(error.to_string().contains(&taken.to_string()));
        let error = listen("192.0.2.1:0".parse().unwrap()).unwrap_err();
        assert!(matches!(error, Error::AddressNotHere { .. }), "{error}");
    }

    #[test]
    fn an_address_is_advertised_with_a_port_and_brackets() {
        let listens: SocketAddr = "[::]:7400".parse().unwrap();
        let advertised = |given| advertised(given, listens).map_err(|error| error.to_string());
        for (given, reached) in [
            (None, "[::]:7400"),
            (Some("10.0.0.7"), "10.0.0.7:7400"),
            (Some("fd00::7"), "[fd00::7]:7400"),
            // All of it is an address: a port needs brackets.
            (Some("fd00::7:7410"), "[fd00::7:7410]:7400"),
            (Some("[fd00::7]:7410"), "[fd00::7]:7410"),
            (Some("tso-0.example:7410"), "tso-0.example:7410"),
        ] {
            assert_eq!(advertised(given).as_deref(), Ok(reached), "{given:?}");
        }
        for wrong in [
            "",
            "tso-0.example",
            "fd00::7%eth0:7400",
            "[fd00::7]",
            "a:b",
            "a:0",
        ] {
            let error = advertised(Some(wrong)).unwrap_err();
            assert!(error.contains("[fd00::1]:7400"), "{error}");
        }
    }
}
