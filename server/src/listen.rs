//! Where a server is reached.

use std::io::{self, Write};
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

use crate::Error;

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 1024;

/// Listens on the address; port 0 picks a free one. Returns where that is, too. Needs a tokio runtime
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
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // A restart need not wait until the connections of the last run are forgotten.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let listener = socket.listen(BACKLOG)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
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
}
