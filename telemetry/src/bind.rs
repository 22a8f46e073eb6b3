//! Taking an address, in whatever families of addresses the machine has.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use rustix::io::Errno;
use socket2::{Domain, Socket, Type};

/// Listens on the address; port 0 picks a free one. `backlog` is how many connections may wait to be accepted.
///
/// `[::]` is every address of the machine, IPv4 included, whatever the kernel's own default is
/// (`net.ipv6.bindv6only`). If the kernel has no IPv6, it is every address of IPv4. The listener blocks.
///
/// # Errors
/// The system's error.
pub fn bind(address: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    with_fallback(address, |address| take(address, backlog))
}

fn take(address: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // A restart need not wait until the connections of the last run are forgotten.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    Ok(socket.into())
}

fn with_fallback<T>(
    address: SocketAddr,
    take: impl Fn(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    match take(address) {
        Err(error) if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && is_ipv4_only(&error) => {
            take((Ipv4Addr::UNSPECIFIED, address.port()).into())
        }
        result => result,
    }
}

/// Without IPv6 there is no such socket; with IPv6 turned off on all interfaces there is no such address.
fn is_ipv4_only(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error())
        || error.kind() == io::ErrorKind::AddrNotAvailable
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn every_address_is_one_of_ipv4_where_there_is_no_ipv6() {
        let every: SocketAddr = "[::]:7400".parse().unwrap();
        let one: SocketAddr = "[::1]:7400".parse().unwrap();
        let ipv4_only = |errno: Errno| {
            move |address: SocketAddr| match address {
                SocketAddr::V4(_) => Ok(address),
                SocketAddr::V6(_) => Err(io::Error::from_raw_os_error(errno.raw_os_error())),
            }
        };
        for errno in [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL] {
            let taken = with_fallback(every, ipv4_only(errno)).unwrap();
            assert_eq!(taken.to_string(), "0.0.0.0:7400");
            // Nobody asked for other addresses than this one.
            assert!(with_fallback(one, ipv4_only(errno)).is_err());
        }
        assert!(with_fallback(every, ipv4_only(Errno::ADDRINUSE)).is_err());
    }

    #[test]
    fn every_address_is_reached_over_both_families() {
        let listener = bind("[::]:0".parse().unwrap(), 16).unwrap();
        let address = listener.local_addr().unwrap();
        TcpStream::connect((Ipv4Addr::LOCALHOST, address.port())).unwrap();
        // On a machine without IPv6 there is no second family.
        if address.is_ipv6() && bind("[::1]:0".parse().unwrap(), 16).is_ok() {
            TcpStream::connect((Ipv6Addr::LOCALHOST, address.port())).unwrap();
        }
    }
}
