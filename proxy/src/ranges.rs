//! The range of a scan, as both doors take it.

use bytes::Bytes;
use percolator_client::Range;

use crate::failure::{Failure, Reason};

/// What a request says of a range; what it doesn't say is empty.
#[derive(Debug, Default)]
pub(crate) struct RangeRequest {
    pub(crate) start: Bytes,
    pub(crate) end: Bytes,
    pub(crate) prefix: Bytes,
    pub(crate) reverse: bool,
    /// 0: none.
    pub(crate) limit: u64,
    /// 0: none.
    pub(crate) limit_rows: u64,
}

/// The range of the client library.
///
/// # Errors
/// It has both a prefix, and a start or an end.
pub(crate) fn range(request: RangeRequest) -> Result<Range, Failure> {
    let has_edges = !request.start.is_empty() || !request.end.is_empty();
    let mut range = match (request.prefix.is_empty(), has_edges) {
        (true, _) => Range::rows(request.start, request.end),
        (false, false) => Range::prefix(request.prefix),
        (false, true) => {
            let message = "a scan has a prefix, or a start and an end: not both";
            return Err(Failure::new(Reason::Invalid, message));
        }
    };
    if request.reverse {
        range = range.reverse();
    }
    if request.limit > 0 {
        range = range.limit(request.limit);
    }
    if request.limit_rows > 0 {
        range = range.limit_rows(request.limit_rows);
    }
    Ok(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_stands_alone() {
        let bytes = Bytes::from_static;
        let asked = |start, prefix| RangeRequest {
            start: bytes(start),
            prefix: bytes(prefix),
            ..RangeRequest::default()
        };
        assert!(range(asked(b"a", b"")).is_ok());
        assert!(range(asked(b"", b"a")).is_ok());
        let failure = range(asked(b"a", b"a")).unwrap_err();
        assert_eq!(failure.reason, Reason::Invalid);
    }
}
