//! Lines of a file, one in memory at a time, none longer than a limit.

use std::io::{self, BufRead};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use percolator_client::limits::TRANSACTION_BYTES_MAX;

/// Longest line, and longest CSV record, in bytes: a row that one transaction can hold, with each of its bytes
/// escaped, so that whatever was exported can be imported.
pub(crate) const LINE_BYTES_MAX: usize = 6 * TRANSACTION_BYTES_MAX;

/// What came next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A line; it's in the buffer, with its `\n` if it has one.
    Line,
    /// A line over the limit; it was passed over.
    TooLong,
    End,
}

/// Reads lines.
pub(crate) struct Lines<R> {
    input: R,
    line: u64,
    limit: usize,
    bytes: Arc<AtomicU64>,
    /// Within the array that the file begins with.
    pub(super) in_array: bool,
}

impl<R: BufRead> Lines<R> {
    /// Counts what it has read in `bytes`.
    pub(crate) fn new(input: R, bytes: Arc<AtomicU64>) -> Self {
        Self {
            input,
            line: 0,
            limit: LINE_BYTES_MAX,
            bytes,
            in_array: false,
        }
    }

    /// The next byte, which is left there.
    pub(super) fn peek(&mut self) -> io::Result<Option<u8>> {
        loop {
            match self.input.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                available => return Ok(available?.first().copied()),
            }
        }
    }

    pub(super) fn take_byte(&mut self) -> io::Result<Option<u8>> {
        let byte = self.peek()?;
        if let Some(byte) = byte {
            self.input.consume(1);
            self.bytes.fetch_add(1, Ordering::Relaxed);
            self.line += u64::from(byte == b'\n');
        }
        Ok(byte)
    }

    #[cfg(test)]
    pub(crate) fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// The number of the line that was read last, from 1.
    pub(crate) fn line(&self) -> u64 {
        self.line
    }

    /// Longest line, in bytes.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Puts the next line into `buffer`, in place of what was there.
    pub(crate) fn next(&mut self, buffer: &mut Vec<u8>) -> io::Result<Next> {
        buffer.clear();
        let mut read = 0;
        let mut too_long = false;
        loop {
            let available = match self.input.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                available => available?,
            };
            let newline = available.iter().position(|byte| *byte == b'\n');
            let taken = newline.map_or(available.len(), |at| at + 1);
            too_long |= buffer.len() + taken > self.limit;
            if !too_long {
                buffer.extend_from_slice(&available[..taken]);
            }
            self.input.consume(taken);
            read += taken;
            self.bytes.fetch_add(taken as u64, Ordering::Relaxed);
            if newline.is_some() || taken == 0 {
                break;
            }
        }
        if read == 0 {
            return Ok(Next::End);
        }
        self.line += 1;
        // A byte order mark, as some programs write it, isn't part of the text.
        if self.line == 1 && buffer.starts_with(b"\xef\xbb\xbf") {
            buffer.drain(..3);
        }
        Ok(if too_long { Next::TooLong } else { Next::Line })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(input: &[u8], limit: usize) -> Vec<(u64, Option<Vec<u8>>)> {
        let bytes = Arc::new(AtomicU64::new(0));
        // A small buffer, so that lines lie over its edges.
        let input_small = io::BufReader::with_capacity(3, input);
        let mut lines = Lines::new(input_small, bytes.clone()).with_limit(limit);
        let mut buffer = Vec::new();
        let mut all = Vec::new();
        loop {
            match lines.next(&mut buffer).unwrap() {
                Next::Line => all.push((lines.line(), Some(buffer.clone()))),
                Next::TooLong => all.push((lines.line(), None)),
                Next::End => break,
            }
        }
        assert_eq!(bytes.load(Ordering::Relaxed), input.len() as u64);
        all
    }

    #[test]
    fn lines_are_numbered() {
        assert_eq!(
            read(b"\xef\xbb\xbfabcd\n\nef", 100),
            [
                (1, Some(b"abcd\n".to_vec())),
                (2, Some(b"\n".to_vec())),
                (3, Some(b"ef".to_vec())),
            ]
        );
        assert_eq!(read(b"", 100), []);
    }

    #[test]
    fn a_long_line_is_passed_over() {
        assert_eq!(
            read(b"ab\n0123456789\ncd\n0123456789", 5),
            [
                (1, Some(b"ab\n".to_vec())),
                (2, None),
                (3, Some(b"cd\n".to_vec())),
                (4, None),
            ]
        );
    }
}
