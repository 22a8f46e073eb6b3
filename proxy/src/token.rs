//! The token of a session: which transaction, on which proxy, and a secret that nobody can guess.

use percolator_client::Timestamp;

/// Hexadecimal digits of the secret: 128 bits.
const SECRET_DIGITS: usize = 32;

/// What a token says, apart from its secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    /// The transaction.
    pub start_ts: Timestamp,
    /// The name of the proxy that has the session.
    pub proxy: &'a str,
}

/// `START_TS.PROXY.SECRET`.
pub fn write(start_ts: Timestamp, proxy: &str, secret: u128) -> String {
    format!("{start_ts}.{proxy}.{secret:032x}")
}

/// `None`: it isn't a token.
pub fn read(token: &str) -> Option<Token<'_>> {
    let (start_ts, rest) = token.split_once('.')?;
    // A name may have dots.
    let (proxy, secret) = rest.rsplit_once('.')?;
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_whole = secret.len() == SECRET_DIGITS && secret.bytes().all(is_digit);
    let start_ts = Timestamp::from_u64(start_ts.parse().ok()?);
    (is_whole && !proxy.is_empty()).then_some(Token { start_ts, proxy })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_which_proxy_has_the_session() {
        for proxy in [
            "proxy-0",
            "proxy-0.example.svc",
            "10.244.1.5:7400",
            "[fd00::7]:7400",
        ] {
            let token = write(Timestamp::from_u64(77), proxy, 0xab);
            let start_ts = Timestamp::from_u64(77);
            assert_eq!(read(&token), Some(Token { start_ts, proxy }));
        }
    }

    #[test]
    fn what_is_no_token_is_none() {
        let token = write(Timestamp::from_u64(77), "proxy-0", 0xab);
        for wrong in [
            "",
            "77",
            "77.proxy-0",
            &token[1..token.len() - 1],
            &token.replace("77.", "x."),
            &token.replace("proxy-0", ""),
            &token.to_uppercase(),
            &format!("{token}0"),
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
